//go:build !race

package server

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestStream_Memory: a stream that only listens holds little, of which most is
// net/http's: no more stack than waiting takes. The race detector's frames are
// larger, so it does not judge that.
func TestStream_Memory(t *testing.T) {
	const n = 200
	_, url := serve(t, func(o *Options) {
		o.Limits.Connections, o.Limits.Streams = 2*n, 2*n
	})
	var sessions []header
	for range n {
		sessions = append(sessions, session(t, url))
	}
	stacks := func() int {
		var m runtime.MemStats
		for range 3 { // a collection halves stacks that are not used
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int(m.StackInuse)
	}
	before := stacks()
	for _, h := range sessions {
		w := dialWire(t, url)
		if _, err := fmt.Fprintf(w, "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\n\r\n", h[headerSession]); err != nil {
			t.Fatal(err)
		}
		body := w.body(t)
		for line := ""; !strings.HasPrefix(line, ": ok"); { // all is written that will be for a while
			var err error
			if line, err = body.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
	}
	each := 0
	small := func() bool { // once goroutines of others have ended
		each = (stacks() - before) / n
		return each <= 15<<10
	}
	if !polltest.Soon(10*time.Second, small) {
		t.Errorf("a stream holds %d bytes of stack, more than 15 KiB", each)
	}
}
