package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/fleet/fleettest"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// hanging makes requests to a server arrive at one that accepts them, writes first, and then
// hangs until it ends. It returns that one.
func hanging(t *testing.T, one *neighbor, first string) *recorded {
	t.Helper()
	ended := make(chan struct{})
	rec := record(t, func(w http.ResponseWriter, r *http.Request) {
		if first != "" {
			w.Header().Set("Content-Type", eventStream)
			_, _ = io.WriteString(w, first)
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(ended) }) // before the server waits for its handlers
	one.self.Listen(endpointOf(t, rec.URL))
	return rec
}

// TestForward_ServerHangs: a server whose process has stopped keeps its connections, and what
// was forwarded to it ends once the fleet knows that it is gone.
func TestForward_ServerHangs(t *testing.T) {
	for name, c := range map[string]struct {
		method, body, first string
		status              int
		want                string
	}{
		"call":         {"POST", toolCall(5, "get_sessions", "{}"), "", http.StatusBadGateway, "whether the call ran is unknown"},
		"begun stream": {"POST", toolCall(5, "get_sessions", "{}"), ": hello\n\n", http.StatusOK, "whether the call ran is unknown"},
		"notification": {"POST", fmt.Sprintf(cancelBody, "5"), "", http.StatusBadGateway, ""},
		"DELETE":       {"DELETE", "", "", http.StatusBadGateway, ""},
	} {
		t.Run(name, func(t *testing.T) {
			all := neighbors(t, 2)
			all[1].watchEvery = 20 * time.Millisecond
			h := session(t, all[0].url)
			rec := hanging(t, all[0], c.first)
			go func() {
				for rec.requests.Load() == 0 && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
				all[0].self.Kill()
			}()
			if res, body := do(t, c.method, all[1].url, h, c.body); res.StatusCode != c.status || !strings.Contains(body, c.want) {
				t.Errorf("got %s %s; want %d, %q", res.Status, body, c.status, c.want)
			}
		})
	}
}

// TestForward_GivenUp: a client that still waits gets the answer that it would get from the
// server of its box.
func TestForward_GivenUp(t *testing.T) {
	all := neighbors(t, 2)
	if res, body := callStateless(t, all[0].url, "s", "1"); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	theirs := session(t, all[0].url)
	rec := hanging(t, all[0], "")
	for _, c := range []struct {
		name   string
		body   string
		end    func(h header)
		status int
	}{
		{"message", toolCall(7, "execute_code", `{"session_id":"s","code":"1"}`), func(h header) { do(t, "POST", all[1].url, h, fmt.Sprintf(cancelBody, "7")) }, http.StatusOK},
		{"end of the session", toolCall(7, "execute_code", `{"session_id":"s","code":"1"}`), func(h header) { do(t, "DELETE", all[1].url, h, "") }, http.StatusNotFound},
		{"end of the server", "", func(header) { go func() { _ = all[1].Shutdown(context.Background()) }() }, http.StatusServiceUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, body := theirs, fmt.Sprintf(cancelBody, "1")
			if c.body != "" {
				h, body = session(t, all[1].url), c.body
			}
			before := rec.requests.Load()
			type answer struct {
				status    int
				kind, all string
			}
			got := make(chan answer, 1)
			go func() {
				res, text := do(t, "POST", all[1].url, h, body)
				got <- answer{res.StatusCode, mediaType(res.Header.Get("Content-Type")), text}
			}()
			eventually(t, "the call is forwarded", func() bool { return rec.requests.Load() > before })
			c.end(h)
			a := <-got
			if a.status != c.status || a.status == http.StatusOK && (a.kind != eventStream || a.all != "") {
				t.Errorf("got %+v, want status %d", a, c.status)
			}
		})
	}
}

// TestForward_DELETEsTakePlaces: those of this server are short, and others may wait.
func TestForward_DELETEsTakePlaces(t *testing.T) {
	all := neighbors(t, 2)
	h := session(t, all[0].url)
	rec := hanging(t, all[0], "")
	all[1].inFlight.all = 1
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "DELETE", all[1].url, nil)
		for k, v := range h {
			req.Header.Set(k, v)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
		}
	}()
	eventually(t, "the first is forwarded", func() bool { return rec.requests.Load() == 1 })
	if res, body := do(t, "DELETE", all[1].url, h, ""); res.StatusCode != http.StatusServiceUnavailable || rec.requests.Load() != 1 {
		t.Errorf("the second gets %s %s, after %d requests to the other server", res.Status, body, rec.requests.Load())
	}
}

// TestBoundedWriter_ClientThatDoesNotRead: events are smaller than the buffer of a connection,
// and reach it in a flush.
func TestBoundedWriter_ClientThatDoesNotRead(t *testing.T) {
	s := New(Options{Limits: Limits{Write: 100 * time.Millisecond}})
	failed := make(chan error, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b := &boundedWriter{ResponseWriter: w, s: s}
		small := make([]byte, 512)
		for {
			if _, err := b.Write(small); err != nil {
				failed <- err
				return
			}
			_ = http.NewResponseController(b).Flush()
		}
	}))
	defer web.Close()
	c := dialWire(t, web.URL)
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-failed:
	case <-time.After(30 * time.Second):
		c.Close()
		t.Error("the handler waits for a client that does not read")
	}
}

// slowFleet is a fleet in which the next search for a box, once it is armed, lasts until its caller
// gives up.
type slowFleet struct {
	fleet.Fleet
	armed     atomic.Bool
	searching chan struct{} // gets a value when the search waits
}

func (f *slowFleet) Boxes(ctx context.Context, tags ...string) ([]fleet.Guest, error) {
	if f.armed.CompareAndSwap(true, false) {
		f.searching <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return f.Fleet.Boxes(ctx, tags...)
}

// TestForward_CancelledDuringTheSearch: a call that its client cancels while this server asks the
// peers for its box does not run.
func TestForward_CancelledDuringTheSearch(t *testing.T) {
	e, err := process.Open(process.Config{Dir: filepath.Join(t.TempDir(), "guests")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	slow := &slowFleet{Fleet: new(fleettest.Cluster).Join(e), searching: make(chan struct{}, 1)}
	boxes := toolstest.ManagerWith(t, nil, func(p *box.Parts) { p.Machines.Engine, p.Fleet = e, slow })
	_, url := serve(t, func(o *Options) {
		o.Tools.Boxes = boxes
		o.Peers = func() *Peers { return &Peers{Fleet: slow, Boxes: boxes} }
	})
	h := session(t, url)
	slow.armed.Store(true)
	type answer struct {
		status     int
		kind, body string
	}
	got := make(chan answer, 1)
	go func() {
		res, body := do(t, "POST", url, h, toolCall(7, "execute_code", `{"session_id":"s","code":"print(42)"}`))
		got <- answer{res.StatusCode, mediaType(res.Header.Get("Content-Type")), body}
	}()
	<-slow.searching
	do(t, "POST", url, h, fmt.Sprintf(cancelBody, "7"))
	if a := <-got; a != (answer{http.StatusOK, eventStream, ""}) {
		t.Errorf("got %+v, want a stream without an answer", a)
	}
	if s := boxes.Stats(); s.Sessions != 0 {
		t.Errorf("the call made %d boxes", s.Sessions)
	}
}
