package tools

import (
	"context"
	"reflect"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// A Record collects the box of a call for the audit log. Its methods may be called
// concurrently.
type Record struct {
	mu  sync.Mutex
	box string // guarded by mu
}

// Box returns the id of the box. If there was none it returns the id that the client
// sent, provided that it is plain text, otherwise "".
func (r *Record) Box() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.box
}

type recordKey struct{}

// WithRecord returns a context for a call that fills in r.
func WithRecord(ctx context.Context, r *Record) context.Context {
	return context.WithValue(ctx, recordKey{}, r)
}

// boxFields are the fields of arguments and results that name a box, by precedence.
var boxFields = []string{"session_id", "context_id", "snapshot_id"}

// recordFields records the box that a struct of arguments or a result names, if the
// name is safe in a log.
func recordFields(ctx context.Context, v any) {
	r, _ := ctx.Value(recordKey{}).(*Record)
	if r == nil {
		return
	}
	if id := boxOf(reflect.ValueOf(v)); plainID(id) {
		r.set(id)
	}
}

// recordBox records the box that a call uses. The client may have passed its name, or
// no id at all.
func recordBox(ctx context.Context, b *box.Box) {
	if r, _ := ctx.Value(recordKey{}).(*Record); r != nil && b != nil {
		r.set(b.ID())
	}
}

func (r *Record) set(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.box = id
}

func boxOf(v reflect.Value) string {
	if v.Kind() != reflect.Struct {
		return ""
	}
	t := v.Type()
	for _, name := range boxFields {
		for i := range t.NumField() {
			if f := t.Field(i); jsonName(f) == name && f.Type.Kind() == reflect.String && v.Field(i).String() != "" {
				return v.Field(i).String()
			}
		}
	}
	for i := range t.NumField() {
		if t.Field(i).Anonymous {
			if id := boxOf(v.Field(i)); id != "" {
				return id
			}
		}
	}
	return ""
}

// plainID reports whether s has only the characters of ids and names.
func plainID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.' || b == ' ') {
			return false
		}
	}
	return true
}
