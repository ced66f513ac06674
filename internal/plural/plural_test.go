package plural

import "testing"

func TestN(t *testing.T) {
	for n, want := range map[int]string{0: "0 bytes", 1: "1 byte", 2: "2 bytes", -1: "-1 bytes"} {
		if got := N(n, "byte"); got != want {
			t.Errorf("N(%d): got %q, want %q", n, got, want)
		}
		if got := N(int64(n), "byte"); got != want {
			t.Errorf("N(int64(%d)): got %q, want %q", n, got, want)
		}
	}
}
