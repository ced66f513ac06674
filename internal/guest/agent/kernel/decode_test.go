package kernel

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

func event(typ byte, payload string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)))
	return append(append(b, typ), payload...)
}

// decode feeds b in pieces of n bytes and returns the events as typ:payload lines, with
// adjacent output joined.
func decode(b []byte, n int) (events string, partial bool, err error) {
	var d decoder
	var out strings.Builder
	var last byte
	emit := func(typ byte, p []byte) error {
		if typ != last || typ == 'd' || typ == 'm' {
			out.WriteString("|" + string(typ) + ":")
		}
		last = typ
		out.Write(p)
		return nil
	}
	for len(b) > 0 && err == nil {
		m := min(n, len(b))
		err = d.feed(b[:m], emit)
		b = b[m:]
	}
	return out.String(), d.partial(), err
}

func TestDecoder(t *testing.T) {
	all := bytes.Join([][]byte{event('o', "hello"), event('o', ""), event('e', "err"), event('d', "{}"), event('d', ""), event('m', "12345678"), event('o', strings.Repeat("x", 100))}, nil)
	for _, n := range []int{1, 2, 3, 5, 7, 1000} {
		got, partial, err := decode(all, n)
		if want := "|o:hello|e:err|d:{}|d:|m:12345678|o:" + strings.Repeat("x", 100); got != want || partial || err != nil {
			t.Errorf("in pieces of %d: got %q, %v, %v; want %q", n, got, partial, err, want)
		}
	}
	for _, c := range []struct {
		b       []byte
		partial bool
		bad     bool
	}{
		{all[:3], true, false},
		{all[:7], true, false},
		{[]byte{0, 0, 0, 0, 'o'}, false, true},
		{[]byte{0, 0, 0, 2, 'x', 0}, false, true},
		{[]byte{0, 0, 0, 2, 'D', 0}, false, true},
		{[]byte{0, 0, 0, 9, 'm', 0, 0}, true, false},
		{[]byte{0, 0, 0, 8, 'm', 0, 0}, false, true},
		{[]byte{0, 0x80, 0, 1, 'd'}, true, false},
		{[]byte{0, 0x80, 0, 2, 'd'}, false, true},
		{[]byte{255, 255, 255, 255, 'o'}, false, true},
	} {
		_, partial, err := decode(c.b, 2)
		if (err != nil) != c.bad || !c.bad && partial != c.partial {
			t.Errorf("%v: got partial %v, error %v", c.b, partial, err)
		}
	}
}

func TestParseControl(t *testing.T) {
	b := append(event('D', "{}"), 9)
	typ, payload, rest, ok, err := parseControl(b)
	if typ != 'D' || string(payload) != "{}" || len(rest) != 1 || !ok || err != nil {
		t.Errorf("got %q %q %v %v %v", typ, payload, rest, ok, err)
	}
	if _, _, _, ok, err := parseControl(b[:6]); ok || err != nil {
		t.Errorf("half a message: got %v, %v", ok, err)
	}
	for _, b := range [][]byte{{0, 0, 0, 0}, {0, 0x10, 0, 1}, {255, 255, 255, 255}} {
		if _, _, _, _, err := parseControl(b); err == nil {
			t.Errorf("%v was taken", b)
		}
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add(event('o', "hello"), 3)
	f.Add(append(event('d', "{}"), event('e', "x")...), 1)
	f.Add(event('m', "12345678"), 3)
	f.Add([]byte{0, 0x80, 0, 1, 'd', 1, 2}, 2)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n = max(n%64, 1)
		one, partialOne, errOne := decode(b, len(b)+1)
		two, partialTwo, errTwo := decode(b, n)
		if one != two || partialOne != partialTwo || errOne != errTwo {
			t.Errorf("%q: whole gives %q %v %v, pieces of %d give %q %v %v", b, one, partialOne, errOne, n, two, partialTwo, errTwo)
		}
		if typ, payload, rest, ok, err := parseControl(b); ok && (err != nil || len(payload)+len(rest)+5 != len(b) || typ != b[4]) {
			t.Errorf("%q: got %q %q %q %v", b, typ, payload, rest, err)
		}
	})
}
