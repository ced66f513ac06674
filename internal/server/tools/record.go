package tools

import (
	"context"
	"reflect"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// A Record says which box a call was about, for whoever keeps account of calls.
// Its methods may be called concurrently.
type Record struct {
	mu  sync.Mutex
	box string // guarded by mu
}

// Box returns the id of the box or, if there was none, what the client called it
// if that is plain text; "" if nobody said.
func (r *Record) Box() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.box
}

type recordKey struct{}

// WithRecord returns a context for a call that fills in the record.
func WithRecord(ctx context.Context, r *Record) context.Context {
	return context.WithValue(ctx, recordKey{}, r)
}

// boxFields are the arguments and results that name what a call is about, the
// first that is there counts.
var boxFields = []string{"session_id", "context_id", "snapshot_id"}

// recordFields remembers what a struct of arguments or a result says of the box. What a
// client wrote is remembered only if it can do no harm in a log.
func recordFields(ctx context.Context, v any) {
	r, _ := ctx.Value(recordKey{}).(*Record)
	if r == nil {
		return
	}
	if id := boxOf(reflect.ValueOf(v)); plainID(id) {
		r.set(id)
	}
}

// recordBox remembers which box a call works in, which the client may have called by
// a name, or not at all.
func recordBox(ctx context.Context, s *box.Box) {
	if r, _ := ctx.Value(recordKey{}).(*Record); r != nil && s != nil {
		r.set(s.ID())
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

// plainID reports whether a text may be an id or a name.
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
