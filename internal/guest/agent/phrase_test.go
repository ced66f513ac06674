package agent

import (
	"strings"
	"testing"
)

// TestPhrase_SplitAnywhere cuts a stream into pieces of every size.
func TestPhrase_SplitAnywhere(t *testing.T) {
	for text, want := range map[string]bool{
		"before out of memory after": true, "out of memory": true, "out of out of memory": true,
		"out of memor": false, "ut of memory": false, "out of  memory": false, "": false,
	} {
		for size := 1; size <= len(text)+1; size++ {
			f := phrase{text: "out of memory"}
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				f.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			if f.seen != want || len(f.tail) >= len(f.text) {
				t.Errorf("%q in pieces of %d: got %v with %d bytes kept, want %v", text, size, f.seen, len(f.tail), want)
			}
		}
	}
	long := phrase{text: "out of memory"}
	for range 1000 {
		long.write([]byte(strings.Repeat("x", 1000)))
	}
	if cap(long.tail) > 100 {
		t.Errorf("it keeps %d bytes", cap(long.tail))
	}
}
