package secret

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/redact"
)

// wsHeader returns the header of an unmasked frame.
func wsHeader(opcode byte, last bool, size int) []byte {
	if last {
		opcode |= 0x80
	}
	switch {
	case size <= 125:
		return []byte{opcode, byte(size)}
	case size < 1<<16:
		return binary.BigEndian.AppendUint16([]byte{opcode, 126}, uint16(size))
	}
	return binary.BigEndian.AppendUint64([]byte{opcode, 127}, uint64(size))
}

func apiMask(t testing.TB) *redact.Set {
	t.Helper()
	mask, err := redact.New(apiValue)
	if err != nil {
		t.Fatal(err)
	}
	return mask
}

// TestFrames_MaskWholeMessages: however a host cuts messages into frames, and whatever control frames
// are between them, the payloads are those of the masked messages, and the headers stay.
func TestFrames_MaskWholeMessages(t *testing.T) {
	mask := apiMask(t)
	for range 500 {
		var sent, want []byte
		frame := func(to *[]byte, opcode byte, last bool, payload string) {
			*to = append(append(*to, wsHeader(opcode, last, len(payload))...), payload...)
		}
		for range 1 + rand.IntN(4) {
			message := ""
			for range rand.IntN(5) {
				message += strings.Repeat(".", rand.IntN(1<<rand.IntN(14))) + apiValue[:len(apiValue)*rand.IntN(3)/2] + apiValue
			}
			masked := mask.String(message)
			opcode := byte(1 + rand.IntN(2))
			for last := false; !last; {
				n := min(len(message), rand.IntN(1<<rand.IntN(18)))
				last = n == len(message)
				frame(&sent, opcode, last, message[:n])
				frame(&want, opcode, last, masked[:n])
				message, masked, opcode = message[n:], masked[n:], 0
				if rand.IntN(4) == 0 {
					ping := "ping " + apiValue
					frame(&sent, 9, true, ping)
					frame(&want, 9, true, mask.String(ping))
				}
			}
		}
		var out bytes.Buffer
		f := newFrames(&out, mask, nil)
		for rest := sent; len(rest) > 0; {
			n := 1 + rand.IntN(min(len(rest), 1+rand.IntN(1<<rand.IntN(17))))
			if _, err := f.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if !bytes.Equal(out.Bytes(), want) {
			t.Fatalf("of %d bytes, got %d bytes that differ from the masked ones", len(sent), out.Len())
		}
	}
}

// TestFrames_BeginningWaits: a message that has not ended keeps the beginning of a value, also if its
// frame ends; a message that has ended keeps nothing.
func TestFrames_BeginningWaits(t *testing.T) {
	mask := apiMask(t)
	for n := range len(apiValue) {
		var out bytes.Buffer
		f := newFrames(&out, mask, nil)
		text := "Bearer " + apiValue[:n]
		f.Write(append(wsHeader(1, false, len(text)), text...))
		if got := out.String(); len(got) > 2+len("Bearer ") {
			t.Fatalf("after %d bytes of the value: got %q", n, got)
		}
		f.Write(append(wsHeader(0, true, len(apiValue)-n), apiValue[n:]...))
		if got := out.String(); strings.Contains(got, apiValue[:4]) || out.Len() != 4+len("Bearer ")+len(apiValue) {
			t.Fatalf("the value in frames of %d and %d bytes: got %q", n, len(apiValue)-n, got)
		}
	}
}

func TestFrames_Invalid(t *testing.T) {
	begun := append(wsHeader(1, false, 1), 'x')
	for what, sent := range map[string][]byte{
		"an extension":               {0xc1, 1, 'x'},
		"a masked frame":             {0x81, 0x81, 1, 2, 3, 4, 'x'},
		"a long control frame":       append(wsHeader(9, true, 126), make([]byte, 126)...),
		"a control frame in parts":   wsHeader(9, false, 0),
		"an unknown frame":           wsHeader(3, true, 0),
		"a part without a message":   wsHeader(0, true, 0),
		"a message within a message": append(slices.Clone(begun), wsHeader(1, true, 0)...),
		"a size above 2^63":          {0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0},
		"frames without end":         append(slices.Clone(begun), bytes.Repeat(wsHeader(0, false, 0), 2*maxQueued)...),
	} {
		var out bytes.Buffer
		f := newFrames(&out, apiMask(t), nil)
		if _, err := f.Write(append(sent, apiValue...)); !errors.Is(err, errFrames) {
			t.Errorf("%s: got %v", what, err)
		}
		size := out.Len()
		if _, err := f.Write(append(wsHeader(1, true, 1), 'x')); err == nil || out.Len() != size || len(f.queue) > maxQueued {
			t.Errorf("after %s: got %v, %d bytes more, %d queued", what, err, out.Len()-size, len(f.queue))
		}
	}
}

// FuzzFrames: frames of a host are refused, or pass on the bytes that came, as far as no value is masked,
// and never more than came.
func FuzzFrames(f *testing.F) {
	f.Add(append(wsHeader(1, true, 5), "hello"...), 3)
	f.Add(append(append(wsHeader(2, false, 3), "abc"...), append(wsHeader(9, true, 1), 'p', 0x80, 2, 'd', 'e')...), 4)
	f.Add(wsHeader(1, true, 1<<20), 1)
	f.Fuzz(func(t *testing.T, sent []byte, piece int) {
		var out bytes.Buffer
		fr := newFrames(&out, apiMask(t), nil)
		piece = max(1, piece)
		for rest := sent; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			if _, err := fr.Write(rest[:min(piece, len(rest))]); err != nil {
				break
			}
			if len(fr.queue) > maxQueued+1 {
				t.Fatalf("%d frames wait", len(fr.queue))
			}
		}
		if !bytes.HasPrefix(sent, out.Bytes()) && fr.stream.Matches() == 0 && fr.head == 0 {
			t.Errorf("of %q, %q is passed on", sent, out.Bytes())
		}
	})
}
