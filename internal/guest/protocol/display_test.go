package protocol

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// display returns the JSON of a display with n representations.
func display(n int, value string) []byte {
	var b strings.Builder
	b.WriteString(`{"result":true,"data":{`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%x":"%s"`, i, value)
	}
	b.WriteString("}}")
	return []byte(b.String())
}

func TestParseDisplay(t *testing.T) {
	d, err := ParseDisplay([]byte(`{"result":true,"data":{"text/plain":"a: \"b\": \\","text/html":"::::"}}`))
	want := Display{Result: true, Data: map[string]string{"text/plain": `a: "b": \`, "text/html": "::::"}}
	if err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("got %+v, %v; want %+v", d, err, want)
	}
	if d, err := ParseDisplay([]byte(`{"cut":true,"data":{"text/plain":"a"}}`)); err != nil || !d.Cut {
		t.Errorf("a cut value: got %+v, %v", d, err)
	}
	if d, err := ParseDisplay(display(MaxRepresentations, strings.Repeat(":", 1000))); err != nil || len(d.Data) != MaxRepresentations {
		t.Errorf("%d representations: got %d, %v", MaxRepresentations, len(d.Data), err)
	}
	for name, b := range map[string][]byte{
		"too many representations":   display(MaxRepresentations+1, ""),
		"not UTF-8":                  []byte("{\"data\":{\"text/plain\":\"\xff\"}}"),
		"too long":                   display(1, strings.Repeat("x", MaxDisplay)),
		"no JSON":                    []byte("{"),
		"nothing":                    nil,
		"a representation is a list": []byte(`{"data":{"text/plain":[]}}`),
	} {
		if _, err := ParseDisplay(b); !errors.Is(err, ErrDisplay) {
			t.Errorf("%s: got error %v, want ErrDisplay", name, err)
		}
	}
}

// TestParseDisplay_MemoryIsBounded: a display costs at most a few times its size in
// memory.
func TestParseDisplay_MemoryIsBounded(t *testing.T) {
	for name, b := range map[string][]byte{
		"many representations": display(MaxDisplay/12, ""),
		"invalid UTF-8":        display(1, strings.Repeat("\xff", MaxDisplay-100)),
		"escapes":              display(1, strings.Repeat(`\u00e9`, MaxDisplay/6-100)),
		"text":                 display(1, strings.Repeat("x", MaxDisplay-100)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ParseDisplay(b) // its result does not matter here
		runtime.ReadMemStats(&after)
		took := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d MiB of JSON took %d MiB", name, len(b)>>20, took>>20)
		if took > 2*MaxDisplay+1<<20 {
			t.Errorf("%s: parsing %d MiB of JSON took %d MiB of memory, want at most twice as much", name, len(b)>>20, took>>20)
		}
	}
}

// FuzzParseDisplay compares the count of values with the decoder.
func FuzzParseDisplay(f *testing.F) {
	f.Add([]byte(`{"result":true,"data":{"text/plain":"a: \"b\": \\","text/html":"::::"}}`))
	f.Add(display(MaxRepresentations, ":"))
	f.Add(display(MaxRepresentations+1, ":"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDisplay(b)
		if err != nil && !errors.Is(err, ErrDisplay) {
			t.Fatalf("error %v is not ErrDisplay", err)
		}
		if len(d.Data) > MaxRepresentations+displayMembers {
			t.Fatalf("%d representations", len(d.Data))
		}
	})
}
