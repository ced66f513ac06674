package crc32c

import "testing"

// The check value of CRC-32C, of the catalogue of parametrised CRC algorithms.
func TestOf(t *testing.T) {
	const want = "crc32c:e3069283"
	if got := Of([]byte("123456789")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	h := New()
	h.Write([]byte("1234"))
	h.Write([]byte("56789"))
	if got := Text(h); got != want {
		t.Errorf("in two writes: got %s, want %s", got, want)
	}
}
