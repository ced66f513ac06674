//go:build linux

package snapshot

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/crc32c"
)

// TestMeta_RoundTrip fails if a field is not stored.
func TestMeta_RoundTrip(t *testing.T) {
	e := entry{Meta: box("a"), Gen: 1, Bytes: 2, Pending: 3}
	e.Written, e.Stale, e.Ran, e.Description = day(3), true, true, "what"
	e.Template, e.Limits = "data", NetLimits{{Of: OfBox, Allow: []string{"pypi"}}}
	e.Aside, e.Restored, e.InCall, e.Unreported = "its image is gone", true, true, `{"lost":{}}`
	for v := range values(reflect.ValueOf(e)) {
		if v.IsZero() {
			t.Errorf("%+v does not fill in every field", e)
		}
	}
	b, err := e.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(b)
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, e)
	}
}

func values(v reflect.Value) func(yield func(reflect.Value) bool) {
	return func(yield func(reflect.Value) bool) {
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Anonymous {
				values(v.Field(i))(yield)
			} else if !yield(v.Field(i)) {
				return
			}
		}
	}
}

func TestMeta_UnknownFields(t *testing.T) {
	got, err := decode([]byte(` {"later":1, "record": {"class":"box","later":{"x":[1]}}, "format":1, "sum":"` + crc32c.Of([]byte(`{"class":"box","later":{"x":[1]}}`)) + `"}` + "\n"))
	if err != nil || got.Purpose != Box {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzDecode decodes arbitrary bytes: an accepted entry is within its limits and
// survives another round trip.
func FuzzDecode(f *testing.F) {
	e := entry{Meta: box("a"), Gen: 1, Bytes: 2, Pending: 3}
	e.Written = day(3)
	b, err := e.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, false)
	f.Add([]byte(framed(1, `{"class":"kept"}`)), false)
	f.Add([]byte(framed(2, `{}`)), false)
	f.Add([]byte(`{"class":"box","used":"2026-01-01T00:00:00+23:59","name":"\ud800"}`), true)
	f.Add([]byte(`{"Class":"box","class":"kept","owner":null,"gen":0}`), true)
	f.Add([]byte(strings.Repeat("[", 20_000)), true)
	f.Fuzz(func(t *testing.T, b []byte, record bool) {
		if record { // else the checksum keeps most of it away
			b = []byte(framed(1, string(b)))
		}
		e, err := decode(b)
		if err != nil {
			return
		}
		if err := e.check(); err != nil {
			t.Fatalf("took %+v: %v", e, err)
		}
		first, err := e.encode()
		if err != nil || len(first) > maxEntry {
			t.Fatalf("encode %+v: %d bytes, %v", e, len(first), err)
		}
		again, err := decode(first)
		if err != nil {
			t.Fatalf("decode %q: %v", first, err)
		}
		if second, err := again.encode(); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%q became %q, %v", first, second, err)
		}
	})
}
