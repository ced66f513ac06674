package config

import (
	"fmt"
	"reflect"
	"time"
)

// Change is a setting whose value differs from the running one.
type Change struct {
	Name     string
	From, To string
	Live     bool // it was applied; others need a restart
}

// Adopt returns c with the live settings of next, and all differences. It returns an
// error if the combination is invalid. Neither c nor next is changed.
func (c *Config) Adopt(next *Config) (*Config, []Change, error) {
	adopted := *c
	from, to, into := reflect.ValueOf(c).Elem(), reflect.ValueOf(next).Elem(), reflect.ValueOf(&adopted).Elem()
	var changes []Change
	for _, k := range Keys() {
		was, is := from.Field(k.field), to.Field(k.field)
		if reflect.DeepEqual(was.Interface(), is.Interface()) {
			continue
		}
		changes = append(changes, Change{Name: k.Name, From: k.shown(was), To: k.shown(is), Live: k.Live})
		if k.Live {
			into.Field(k.field).Set(is)
		}
	}
	if err := adopted.check(); err != nil {
		return nil, changes, err
	}
	return &adopted, changes, nil
}

// shown formats a value for the log.
func (k Key) shown(v reflect.Value) string {
	if k.Kind == "secret" {
		return "(hidden)"
	}
	if k.Kind == "proxyurl" {
		return redacted(v.String())
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String()
	}
	return fmt.Sprint(v.Interface())
}
