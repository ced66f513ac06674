package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// openStream sends a request and returns with the head of the answer; the body goes
// on until the context ends or the test does.
func openStream(tb testing.TB, ctx context.Context, method, url string, h header, body string) *http.Response {
	tb.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range h {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { res.Body.Close() })
	return res
}

// listenTo opens the stream of a session.
func listenTo(tb testing.TB, ctx context.Context, url string, h header) *http.Response {
	tb.Helper()
	return openStream(tb, ctx, "GET", url, with(h, "Accept", eventStream), "")
}

// eventually fails the test if something does not come true.
func eventually(tb testing.TB, what string, true func() bool) {
	tb.Helper()
	polltest.Until(tb, time.Minute, what, true)
}

func (ss *sessions) has(h header) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.live[h[headerSession]] != nil
}

// rest makes a session one that has been idle for longer than restBeforeEviction.
func (ss *sessions) rest(id string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.live[id].since = time.Now().Add(-2 * restBeforeEviction)
}

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func TestSession_IDs(t *testing.T) {
	_, url := serve(t, nil)
	seen := map[string]bool{}
	for range 20 {
		id := session(t, url)[headerSession]
		if len(id) < 22 || seen[id] || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("id %q", id)
		}
		seen[id] = true
	}
}

// TestSession_IdleExpires: an idle session ends. A listener keeps it alive, and so does a
// call whose client has disconnected.
func TestSession_IdleExpires(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) {
		o.Limits.SessionIdle = 200 * time.Millisecond
		o.Extend.Tools = slow(release, started)
	})
	idle, listens, runs := session(t, url), session(t, url), session(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listenTo(t, ctx, url, listens)
	gone, leave := context.WithCancel(t.Context())
	openStream(t, gone, "POST", url, runs, toolCall(1, "slow", "{}"))
	<-started
	leave()
	eventually(t, "the idle session ends", func() bool { return !s.sessions.has(idle) })
	if res, body := do(t, "POST", url, idle, ping); res.StatusCode != 404 || parse(t, body).Error == nil {
		t.Errorf("the idle session: %s %s", res.Status, body)
	}
	// Sessions that begin after the last use of the others go before them if those are
	// taken for idle.
	for range 2 {
		later := session(t, url)
		eventually(t, "a later idle session ends", func() bool { return !s.sessions.has(later) })
	}
	if !s.sessions.has(listens) || !s.sessions.has(runs) {
		t.Errorf("sessions in use: listening %v, running %v", s.sessions.has(listens), s.sessions.has(runs))
	}
	cancel()
	release <- struct{}{}
	eventually(t, "they end as well", func() bool { return !s.sessions.has(listens) && !s.sessions.has(runs) })
	eventually(t, "the SDK forgets them", func() bool { return s.closing.value() == 0 })
	for of := range s.mcp.Sessions() {
		t.Errorf("the SDK still has %q", of.ID())
	}
}

// TestSessions_Limit: a new session replaces the one that has been idle longest, but none
// that was used recently.
func TestSessions_Limit(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Sessions = 2 })
	a, b := session(t, url), session(t, url)
	res, body := do(t, "POST", url, nil, initBody)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || parse(t, body).Error == nil || string(parse(t, body).ID) != "0" {
		t.Errorf("a third session: %s %v %s", res.Status, res.Header, body)
	}
	s.sessions.mu.Lock()
	s.sessions.live[a[headerSession]].since = time.Now().Add(-2 * restBeforeEviction)
	s.sessions.live[b[headerSession]].since = time.Now().Add(-3 * restBeforeEviction)
	s.sessions.mu.Unlock()
	c := session(t, url)
	if res, body := do(t, "POST", url, b, ping); res.StatusCode != 404 {
		t.Errorf("the evicted session: %s %s", res.Status, body)
	}
	for _, h := range []header{a, c} {
		if res, body := do(t, "POST", url, h, ping); res.StatusCode != 200 {
			t.Errorf("a session that was not replaced: %s %s", res.Status, body)
		}
	}
	if s.Sessions() != 2 {
		t.Errorf("%d sessions", s.Sessions())
	}
}

// TestDelete_DoesNotWait: DELETE cancels calls and ends streams without waiting, also if
// a tool ignores the cancellation.
func TestDelete_DoesNotWait(t *testing.T) {
	started, release := make(chan struct{}, 1), make(chan struct{})
	s, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("deaf", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			started <- struct{}{}
			<-release
			return nil, errors.New("late")
		})}
	})
	h := session(t, url)
	openStream(t, t.Context(), "POST", url, h, toolCall(1, "deaf", "{}"))
	<-started
	events := listenTo(t, t.Context(), url, h)
	begin := time.Now()
	if res, body := do(t, "DELETE", url, h, ""); res.StatusCode != 204 || time.Since(begin) > 20*time.Second {
		t.Errorf("DELETE: %s %s after %v", res.Status, body, time.Since(begin))
	}
	if _, err := io.ReadAll(events.Body); err != nil {
		t.Errorf("the stream: %v", err)
	}
	for method, body := range map[string]string{"POST": ping, "DELETE": ""} {
		if res, _ := do(t, method, url, h, body); res.StatusCode != 404 {
			t.Errorf("%s afterwards: %s", method, res.Status)
		}
	}
	close(release)
	eventually(t, "the SDK forgets the session", func() bool { return s.closing.value() == 0 })
}

// TestInitialize_Slow: the header of the answer has the session's id, so no heartbeat is
// sent before it.
func TestInitialize_Slow(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Limits.Heartbeat = 5 * time.Millisecond
		o.Extend.Middleware = []mcp.Middleware{func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == initialize {
					time.Sleep(100 * time.Millisecond) // a machine with too much to do
				}
				return next(ctx, method, req)
			}
		}}
	})
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		body := strings.Replace(initBody, "2025-11-25", version, 1)
		if res, out := do(t, "POST", url, nil, body); res.Header.Get(headerSession) == "" || !strings.Contains(out, version) {
			t.Errorf("%s: no session: %s %s", version, res.Status, out)
		}
	}
}

// TestSession_RefusalOfEndedSessionNamesTheConnection: after a restart, a client may
// pass the refusal to its model, which knows sessions of sandboxes only.
func TestSession_RefusalOfEndedSessionNamesTheConnection(t *testing.T) {
	_, before := serve(t, nil)
	h := session(t, before)
	_, boxes := serve(t, nil) // a restarted server does not know the session
	_, gateway := serve(t, func(o *Options) { o.Extend.Alone = true })
	for _, url := range []string{boxes, gateway} {
		for method, body := range map[string]string{"POST": ping, "GET": "", "DELETE": ""} {
			h := with(h, "Accept", eventStream+", application/json")
			res, text := do(t, method, url, h, body)
			m := parse(t, text)
			if res.StatusCode != http.StatusNotFound || m.Error == nil || m.Error.Code != codeRefused {
				t.Fatalf("%s: got %s %s, want 404 with an error of JSON-RPC", method, res.Status, text)
			}
			if method == "POST" && string(m.ID) != "1" {
				t.Errorf("%s: got the id %s, want that of the request", method, m.ID)
			}
			for _, want := range []string{"Session not found: the MCP session", "server was restarted", "initialize"} {
				if !strings.Contains(m.Error.Message, want) {
					t.Errorf("%s: got %q, want %q in it", method, m.Error.Message, want)
				}
			}
			if got := strings.Contains(m.Error.Message, "pass the session_id"); got != (url == boxes) {
				t.Errorf("%s: got %q; sandboxes belong in it only if the server has them", method, m.Error.Message)
			}
		}
	}
}
