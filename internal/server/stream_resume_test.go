package server

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// steps serves a tool that reports n steps of progress and then waits, and posts a call
// whose connection is cut after the first event.
func steps(t *testing.T, n, size int) (url string, h header, prime string, release chan struct{}) {
	t.Helper()
	release, reported := make(chan struct{}), make(chan struct{})
	_, url = serve(t, func(o *Options) {
		o.Limits.Replay = 4 << 10
		o.Extend.Tools = []Tool{extra("steps", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range n {
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: float64(i), Message: fmt.Sprint("step ", i, strings.Repeat(".", size))})
			}
			close(reported)
			<-release
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		})}
	})
	h = session(t, url)
	w := dialWire(t, url)
	w.post(t, h, `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"steps","arguments":{},"_meta":{"progressToken":"p"}}}`)
	prime = eventID(t, w.body(t))
	<-reported
	w.cut()
	return url, h, prime, release
}

// events returns the ids of the events of a body, by what their data contains.
func events(body string) map[string]string {
	ids := make(map[string]string)
	id := ""
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(line, "id: "); ok {
			id = strings.TrimSpace(v)
		}
		for _, word := range []string{"step 0", "step 1", "step 2", "done"} {
			if strings.HasPrefix(line, "data: ") && strings.Contains(line, word) {
				ids[word] = id
			}
		}
	}
	return ids
}

// TestResume_SecondReconnectKeepsEventIDs: an event has one id, however often it is
// replayed. Otherwise a client whose connection breaks twice misses some, or gets them
// twice.
func TestResume_SecondReconnectKeepsEventIDs(t *testing.T) {
	url, h, prime, release := steps(t, 3, 0)
	close(release)
	first := events(resume(t, url, h, prime))
	second := events(resume(t, url, h, first["step 1"]))
	if len(first) != 4 || len(second) != 2 || second["step 2"] != first["step 2"] || second["done"] != first["done"] {
		t.Errorf("first %v, second %v", first, second)
	}
}

// TestResume_EvictedEventsAreAnError: a client that missed events which have been evicted
// gets an error. A stream with the rest of them would look complete.
func TestResume_EvictedEventsAreAnError(t *testing.T) {
	url, h, prime, release := steps(t, 12, 1<<10)
	close(release)
	eventually(t, "the session is idle", func() bool {
		res, body := do(t, "GET", url, with(h, "Accept", eventStream, "Last-Event-ID", prime), "")
		if strings.Contains(body, "data: ") {
			t.Fatalf("got a part of the events: %.300q", body)
		}
		return res.StatusCode == http.StatusBadRequest && parse(t, body).Error != nil
	})
}

// TestPing_ParsesBodyOnce: the SDK's decoder allocates 32 KiB for each value, so the
// garbage of a request shows how often it was parsed.
func TestPing_ParsesBodyOnce(t *testing.T) {
	s := New(Options{})
	post := func() {
		r := httptest.NewRequest("POST", "http://localhost/mcp", bytes.NewReader([]byte(ping)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if s.Handler().ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
	post()
	const n = 50
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		post()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 64<<10 {
		t.Errorf("a ping leaves %d bytes of garbage, more than 64 KiB", each)
	}
}
