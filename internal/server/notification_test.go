package server

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// heap returns the bytes that are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// heapSettles waits until at most limit bytes are in use: the handler of an answered request may still hold
// its body. It returns the bytes in use at last, and whether they kept the limit.
func heapSettles(limit uint64) (last uint64, ok bool) {
	ok = polltest.Soon(10*time.Second, func() bool {
		last = heap()
		return last <= limit
	})
	return last, ok
}

// TestNotifications_TakeNoMemory: notifications that wait in the SDK, behind one that is being served, do
// not keep their bodies, which count against no limit any more.
func TestNotifications_TakeNoMemory(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 100)
	_, url := serve(t, func(o *Options) {
		o.Extend.Middleware = []mcp.Middleware{func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "notifications/roots/list_changed" {
					started <- struct{}{}
					<-release
				}
				return next(ctx, method, req)
			}
		}}
	})
	h := session(t, url)
	defer close(release)
	const size = 4 << 20
	send := func(method, params string) {
		t.Helper()
		if res, body := do(t, "POST", url, h, `{"jsonrpc":"2.0","method":"`+method+`","params":`+params+`}`); res.StatusCode != 202 {
			t.Fatalf("%s: %s %s", method, res.Status, body)
		}
	}
	send("notifications/roots/list_changed", "{}")
	<-started
	before := heap()
	for range 8 {
		for _, method := range []string{"notifications/progress", "notifications/roots/list_changed"} {
			send(method, `{"progressToken":"p","progress":1,"message":"`+strings.Repeat("x", size)+`"}`)
		}
	}
	if after, ok := heapSettles(before + 4*size); !ok {
		t.Errorf("16 notifications of %d bytes keep %d", size, after-before)
	}
}

// TestSession_KeepsNoParameters: an idle session keeps no parameters of its last request, whose body counts
// against no limit any more.
func TestSession_KeepsNoParameters(t *testing.T) {
	_, url := serve(t, nil)
	const size, sessions = 4 << 20, 4
	before := heap()
	for range sessions {
		h := session(t, url)
		body := `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":"` + strings.Repeat("x", size) + `"}}`
		if res, answer := do(t, "POST", url, h, body); res.StatusCode != 200 {
			t.Fatalf("%s %s", res.Status, answer)
		}
	}
	if after, ok := heapSettles(before + size); !ok {
		t.Errorf("%d sessions keep %d bytes of requests of %d", sessions, after-before, size)
	}
}

// TestSession_KeepsLittleOfItsClient: a session keeps no more than a few KiB of what its client tells with
// initialize and logging/setLevel. The server leaves out what it does not need, and refuses the rest if that
// is large.
func TestSession_KeepsLittleOfItsClient(t *testing.T) {
	s, url := serve(t, nil)
	const size = 4 << 20
	large := `"` + strings.Repeat("x", size) + `"`
	before := heap()
	for _, c := range []struct {
		at, more string
		ok       bool
	}{
		{`"capabilities":{`, `"experimental":{"a":{"b":` + large + `}}`, true},
		{`"clientInfo":{`, `"icons":[{"src":` + large + `}]`, true},
		{`"params":{`, `"_meta":{"a":` + large + `}`, true},
		{`"clientInfo":{`, `"title":` + large, false},
		{`"capabilities":{`, `"extensions":{"a/b":{"c":` + large + `}}`, false},
	} {
		body := strings.Replace(strings.Replace(initBody, c.at, c.at+c.more+",", 1), ",}", "}", 1)
		res, answer := do(t, "POST", url, nil, body)
		if ok := res.Header.Get(headerSession) != ""; len(body) < size || ok != c.ok || ok == strings.Contains(answer, "-32602") {
			t.Errorf("initialize with %.40s: %s %.200s, want a session: %v", c.more, res.Status, answer, c.ok)
		}
	}
	if n := s.sessions.count(); n != 3 {
		t.Errorf("there are %d sessions, want 3", n)
	}
	h := session(t, url)
	for _, c := range []struct {
		level string
		ok    bool
	}{{`"debug"`, true}, {large, false}} {
		if _, answer := do(t, "POST", url, h, `{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":`+c.level+`}}`); strings.Contains(answer, "-32602") == c.ok {
			t.Errorf("level %.20s: %.200s", c.level, answer)
		}
	}
	if after, ok := heapSettles(before + size); !ok {
		t.Errorf("the sessions keep %d bytes", after-before)
	}
}
