package config

import (
	"fmt"
	"reflect"
	"time"
)

// Change is a setting that has another value than when the server started.
type Change struct {
	Name     string
	From, To string
	Live     bool // it can be taken over without a restart
}

// Adopt returns c with what next sets otherwise and a running server can take
// over, and all that differs. The error says why the result makes no sense as a
// whole. Neither c nor next is changed.
func (c *Config) Adopt(next *Config) (*Config, []Change, error) {
	adopted := *c
	from, to, into := reflect.ValueOf(c).Elem(), reflect.ValueOf(next).Elem(), reflect.ValueOf(&adopted).Elem()
	var changes []Change
	for _, k := range Keys() {
		was, is := from.Field(k.field), to.Field(k.field)
		if reflect.DeepEqual(was.Interface(), is.Interface()) {
			continue
		}
		changes = append(changes, Change{Name: k.Name, From: shown(was), To: shown(is), Live: k.Live})
		if k.Live {
			into.Field(k.field).Set(is)
		}
	}
	if err := adopted.check(); err != nil {
		return nil, changes, err
	}
	return &adopted, changes, nil
}

// shown is a value for the log.
func shown(v reflect.Value) string {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String()
	}
	return fmt.Sprint(v.Interface())
}
