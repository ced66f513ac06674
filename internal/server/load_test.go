package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestLoad_IdleAndSlowClients: callers are served beside idle sessions, streams and clients that do not
// read, read slowly, trickle their requests and break off; and when all are gone
// nothing of them is left.
func TestLoad_IdleAndSlowClients(t *testing.T) {
	const sessions, streams, callers, calls = 100, 10, 8, 40
	large := strings.Repeat("x", 1<<20)
	s, url := serve(t, func(o *Options) {
		o.Limits.Connections, o.Limits.Streams, o.Limits.Sessions, o.Limits.Calls = 500, 100, 500, 200
		o.Limits.Heartbeat, o.Limits.Write = 50*time.Millisecond, time.Second
		o.Extend.Tools = []Tool{
			extra("large", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: large}}}, nil
			}),
			extra("wait", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
				return &mcp.CallToolResult{}, ctx.Err()
			}),
		}
		o.Extend.Tools[0].Direct = true // and the other by the SDK
	})
	end := func(h header) {
		if res, _ := do(t, "DELETE", url, h, ""); res.StatusCode != http.StatusNoContent {
			t.Errorf("DELETE: %s", res.Status)
		}
	}
	end(session(t, url)) // what is made once is there
	before := load(t)

	var open []header
	for range sessions {
		open = append(open, session(t, url))
	}
	listening, hush := context.WithCancel(t.Context())
	defer hush()
	for _, h := range open[:streams] {
		go io.Copy(io.Discard, listenTo(t, listening, url, h).Body)
	}

	bad, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	many := func(n int, client func(w wire)) {
		for range n {
			all.Go(func() {
				for bad.Err() == nil {
					w := dialWire(t, url)
					done := context.AfterFunc(bad, w.cut)
					client(w)
					done()
					w.cut()
				}
			})
		}
	}
	modern, wait := modernCall(1, "wait", "{}")
	big := toolCall(1, "large", "{}")
	ask := func(w wire, h header, body string) {
		var b strings.Builder
		for k, v := range h {
			fmt.Fprintf(&b, "%s: %s\r\n", k, v)
		}
		// The connection may be gone by now.
		_, _ = fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", b.String(), len(body), body)
	}
	sip := func(w wire, n int, pause time.Duration) {
		_ = w.SetReadBuffer(4 << 10)
		for range 8 {
			ask(w, nil, big) // until the buffers are full
		}
		for bad.Err() == nil {
			time.Sleep(pause) // a client that takes its time
			if _, err := io.CopyN(io.Discard, w.in, int64(n)); n > 0 && err != nil {
				return
			}
			if n == 0 && s.posts.value() == 0 {
				return // it was ended, which it does not see since it does not read
			}
		}
	}
	many(4, func(w wire) { sip(w, 0, 100*time.Millisecond) })
	many(4, func(w wire) { sip(w, 64, 20*time.Millisecond) })
	many(4, func(w wire) {
		for _, b := range []byte("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{") {
			if _, err := w.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	own := open[streams : streams+4]
	for i := range 8 {
		many(1, func(w wire) {
			if i%2 == 0 {
				ask(w, modern, wait)
			} else {
				ask(w, own[i/2], toolCall(int(time.Now().UnixNano()%1e9), "wait", "{}"))
			}
			time.Sleep(10 * time.Millisecond)
		})
	}

	var good sync.WaitGroup
	for i := range callers {
		h := open[len(open)-1-i]
		good.Go(func() {
			for id := range calls {
				body := toolCall(id, "list_contexts", "{}")
				if i%2 == 0 {
					body = toolCall(id, "wait", "{}")
				}
				if res, out := do(t, "POST", url, h, body); res.StatusCode != 200 || parse(t, out).Error != nil {
					t.Errorf("a caller that behaves: %s %s", res.Status, out)
					return
				}
			}
		})
	}
	good.Wait()
	stop()
	all.Wait()
	hush()
	for _, h := range open {
		end(h)
	}

	eventually(t, "the server has forgotten its clients", func() bool {
		s.replay.mu.Lock()
		kept, bytes := len(s.replay.sessions), s.replay.bytes
		s.replay.mu.Unlock()
		return s.Sessions() == 0 && s.posts.value() == 0 && s.streams.value() == 0 && s.calls.counted.value() == 0 && kept == 0 && bytes == 0
	})
	var after burden
	asBefore := func() bool {
		after = load(t)
		return after.goroutines <= before.goroutines && after.descriptors <= before.descriptors
	}
	if !polltest.Soon(30*time.Second, asBefore) {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.Errorf("leak: before %+v, after %+v:\n%s", before, after, &stacks)
	}
}

// burden is what clients cost a process as long as they are there.
type burden struct{ goroutines, descriptors int }

// load counts without what the client at this end keeps.
func load(tb testing.TB) burden {
	tb.Helper()
	http.DefaultClient.CloseIdleConnections()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Skipf("descriptors are counted in /proc: %v", err)
	}
	return burden{runtime.NumGoroutine(), len(files)}
}
