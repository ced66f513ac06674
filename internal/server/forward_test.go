package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine/process"
	"github.com/glovebox-dev/glovebox/internal/fleet/fleettest"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// neighbor is one of several servers that share boxes.
type neighbor struct {
	*Server
	url   string
	self  *fleettest.Server
	boxes *box.Manager
}

func endpointOf(tb testing.TB, url string) netip.AddrPort {
	tb.Helper()
	text, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// neighbors starts servers that share boxes, with options that each change modifies.
func neighbors(t *testing.T, n int, change ...func(*Options)) []*neighbor {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "guests")
	last, err := process.Open(process.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // ends what the servers have left
		left, err := last.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, state := range left {
			if _, err := last.Recover(context.Background(), state); err != nil {
				t.Error(err)
			}
		}
		if err := last.Close(); err != nil {
			t.Error(err)
		}
	})
	cluster := new(fleettest.Cluster)
	var all []*neighbor
	for range n {
		e, err := process.Open(process.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		one := &neighbor{self: cluster.Join(e)}
		one.boxes = toolstest.ManagerWith(t, nil, func(p *box.Parts) { p.Machines.Engine, p.Fleet = e, one.self })
		one.Server, one.url = serve(t, func(o *Options) {
			o.Tools.Boxes = one.boxes
			o.Peers = func() *Peers { return &Peers{Fleet: one.self, Boxes: one.boxes} }
			for _, c := range change {
				c(o)
			}
		})
		one.self.Listen(endpointOf(t, one.url))
		all = append(all, one)
	}
	return all
}

func callStateless(t *testing.T, url, session, code string) (*http.Response, string) {
	t.Helper()
	h, body := modernCall(1, "execute_code", fmt.Sprintf(`{"session_id":%q,"code":%q}`, session, code))
	return do(t, "POST", url, h, body)
}

func wantPrinted(t *testing.T, res *http.Response, body, want string) {
	t.Helper()
	if res.StatusCode != http.StatusOK || !strings.Contains(body, `"stdout":"`+want+`\n"`) {
		t.Errorf("got %s %s; want that it prints %q", res.Status, body, want)
	}
}

func TestForward_SessionOfAnotherServer(t *testing.T) {
	all := neighbors(t, 2)
	h := session(t, all[0].url)
	if id := h["Mcp-Session-Id"]; !strings.HasPrefix(id, all[0].self.Self()+"-") {
		t.Fatalf("the session is %q, and does not name its server", id)
	}
	res, body := do(t, "POST", all[1].url, h, toolCall(1, "execute_code", `{"session_id":"s","code":"6 * 7"}`))
	wantPrinted(t, res, body, "42")
	if all[1].Sessions() != 0 || len(res.Header.Values("X-Request-Id")) != 1 {
		t.Errorf("the other server has %d sessions; the answer has %q", all[1].Sessions(), res.Header)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := listenTo(t, ctx, all[1].url, h)
	if stream.StatusCode != http.StatusOK || mediaType(stream.Header.Get("Content-Type")) != "text/event-stream" {
		t.Errorf("the stream of the session is answered with %s", stream.Status)
	}
	stream.Body.Close()
	if res, body := do(t, "DELETE", all[1].url, h, ""); res.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %s %s", res.Status, body)
	}
	if res, _ := do(t, "POST", all[1].url, h, toolCall(2, "get_sessions", "{}")); res.StatusCode != http.StatusNotFound {
		t.Errorf("after DELETE: %s, want 404", res.Status)
	}
}

func TestForward_CallIntoABoxOfAnotherServer(t *testing.T) {
	all := neighbors(t, 2)
	res, body := callStateless(t, all[0].url, "s", "x = 41")
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	res, body = callStateless(t, all[1].url, "s", "x + 1")
	wantPrinted(t, res, body, "42")
	h := session(t, all[1].url)
	res, body = do(t, "POST", all[1].url, h, toolCall(1, "execute_code", `{"session_id":"s","code":"x + 2"}`))
	wantPrinted(t, res, body, "43")
	if n := all[1].boxes.Stats().Sessions; n != 0 {
		t.Errorf("the second server has %d boxes", n)
	}
}

// TestForward_SessionAndBoxOfTwoOtherServers: a call goes to the server of its session first,
// and from there to that of the box.
func TestForward_SessionAndBoxOfTwoOtherServers(t *testing.T) {
	all := neighbors(t, 3)
	if res, body := callStateless(t, all[0].url, "s", "x = 41"); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	h := session(t, all[1].url)
	res, body := do(t, "POST", all[2].url, h, toolCall(1, "execute_code", `{"session_id":"s","code":"x + 1"}`))
	wantPrinted(t, res, body, "42")
	// The server of the box has no server to go on to.
	all[0].self.Listen(endpointOf(t, all[2].url))
	if res, body := do(t, "POST", all[2].url, h, toolCall(2, "execute_code", `{"session_id":"s","code":"x"}`)); !strings.Contains(body, "another server has it") {
		t.Errorf("with a wrong address of the box's server: %s %s", res.Status, body)
	}
}

// TestForward_CancelReachesTheOtherServer has a session cancel a call that is forwarded, and
// a client without a session go away.
func TestForward_CancelReachesTheOtherServer(t *testing.T) {
	all := neighbors(t, 2)
	if res, body := callStateless(t, all[0].url, "s", "1"); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	running := func() bool { return all[0].boxes.Stats().Running > 0 }
	h := session(t, all[1].url)
	sleep := `{"session_id":"s","code":"import time; time.sleep(600)"}`
	for name, cancel := range map[string]func(context.CancelFunc){
		"message": func(context.CancelFunc) {
			do(t, "POST", all[1].url, h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
		},
		"end of the session": func(context.CancelFunc) { do(t, "DELETE", all[1].url, h, "") },
		"disconnect":         func(cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			h = session(t, all[1].url)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			done := make(chan struct{})
			go func() {
				defer close(done)
				req, _ := http.NewRequestWithContext(ctx, "POST", all[1].url, strings.NewReader(toolCall(7, "execute_code", sleep)))
				for k, v := range with(h, "Content-Type", "application/json") {
					req.Header.Set(k, v)
				}
				if res, err := http.DefaultClient.Do(req); err == nil {
					res.Body.Close()
				}
			}()
			eventually(t, "the call to run", running)
			cancel(end)
			eventually(t, "the end of the call", func() bool { return !running() })
			<-done
		})
	}
}

// TestForward_DuplicateID: two calls of a session cannot have the same id while one of them runs
// at another server. The first one stays the call that the id cancels.
func TestForward_DuplicateID(t *testing.T) {
	all := neighbors(t, 2)
	if res, body := callStateless(t, all[0].url, "s", "1"); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	running := func() bool { return all[0].boxes.Stats().Running > 0 }
	h := session(t, all[1].url)
	sleep := toolCall(7, "execute_code", `{"session_id":"s","code":"import time; time.sleep(600)"}`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(t, "POST", all[1].url, h, sleep)
	}()
	eventually(t, "the call to run", running)
	for _, body := range []string{sleep, toolCall(7, "get_sessions", "{}")} { // forwarded, and served here
		if res, out := do(t, "POST", all[1].url, h, body); res.StatusCode != 400 || !strings.Contains(out, "another request with this id") {
			t.Errorf("%s: %s %s, want 400", body, res.Status, out)
		}
	}
	do(t, "POST", all[1].url, h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	eventually(t, "the end of the call", func() bool { return !running() })
	<-done
	if res, out := do(t, "POST", all[1].url, h, toolCall(7, "execute_code", `{"session_id":"s","code":"print(42)"}`)); res.StatusCode != 200 {
		t.Errorf("the id after the call: %s %s", res.Status, out)
	}
}

// TestForward_ServerIsGone: clients begin another session, and boxes go on.
func TestForward_ServerIsGone(t *testing.T) {
	all := neighbors(t, 3)
	h := session(t, all[0].url)
	res, body := do(t, "POST", all[0].url, h, toolCall(1, "execute_code", `{"session_id":"s","code":"x = 41"}`))
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	all[0].self.Listen(netip.MustParseAddrPort(closed.Addr().String()))
	closed.Close()
	killed := time.AfterFunc(300*time.Millisecond, all[0].self.Kill) // calls wait until that is known
	defer killed.Stop()
	answers := make(chan string, 2)
	for _, other := range all[1:] {
		go func() {
			h, call := modernCall(1, "execute_code", `{"session_id":"s","code":"x + 1"}`)
			_, body := do(t, "POST", other.url, h, call)
			answers <- body
		}()
	}
	for range 2 {
		if body := <-answers; !strings.Contains(body, `"stdout":"42\n"`) {
			t.Errorf("the box answers %s", body)
		}
	}
	if res, body := do(t, "POST", all[1].url, h, toolCall(2, "get_sessions", "{}")); res.StatusCode != http.StatusNotFound {
		t.Errorf("the session of the protocol: %s %s, want 404", res.Status, body)
	}
}

// recorded is what a server gets from another one.
type recorded struct {
	*httptest.Server
	requests atomic.Int64
	last     atomic.Pointer[http.Request]
}

// record starts a server that answers like h.
func record(t *testing.T, h http.HandlerFunc) *recorded {
	t.Helper()
	rec := &recorded{}
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec.requests.Add(1)
		rec.last.Store(r.Clone(context.WithoutCancel(r.Context())))
		h(w, r)
	}))
	t.Cleanup(rec.Close)
	return rec
}

func TestForward_OnceAndWithTheTokenOfTheClient(t *testing.T) {
	all := neighbors(t, 2)
	h := session(t, all[0].url)
	rec := record(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	all[0].self.Listen(endpointOf(t, rec.URL))
	h = with(h, "Authorization", "Bearer secret", "X-Forwarded-For", "198.51.100.9", "Host", "localhost:1", "Expect", "", "Connection", "Upgrade", "Upgrade", "websocket")
	if res, _ := do(t, "POST", all[1].url+"?x=http://evil.example/", h, toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusTeapot {
		t.Errorf("got %s, not the answer of the other server", res.Status)
	}
	r := rec.last.Load()
	if r == nil {
		t.Fatal("nothing was forwarded")
	}
	if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get(headerForwarded) != forwardedSession || r.Header.Get("X-Forwarded-For") != "127.0.0.1" ||
		r.Header.Get("Upgrade") != "" || r.Host != "localhost:1" || r.URL.Path != "/mcp" || r.URL.RawQuery != "" {
		t.Errorf("the other server gets %s %s %q", r.Host, r.URL, r.Header)
	}
	if _, _ = do(t, "POST", all[1].url+"?codemode=OFF&x=1", h, toolCall(1, "get_sessions", "{}")); rec.last.Load().URL.RawQuery != "codemode=false" {
		t.Errorf("for a client without code mode, the other server gets %s", rec.last.Load().URL)
	}
	// One that was forwarded is not forwarded again, whoever says so.
	before := rec.requests.Load()
	for _, why := range []string{forwardedSession, forwardedCall, "1"} {
		if res, _ := do(t, "POST", all[1].url, with(h, headerForwarded, why), toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusNotFound || rec.requests.Load() != before {
			t.Errorf("a request that was forwarded before, as a %s: %s, and %d more requests", why, res.Status, rec.requests.Load()-before)
		}
	}
}

// TestForward_EndsInCircles: the address of another server is that of this one.
func TestForward_EndsInCircles(t *testing.T) {
	all := neighbors(t, 2)
	h := session(t, all[0].url)
	all[0].self.Listen(endpointOf(t, all[1].url))
	if res, body := do(t, "POST", all[1].url, h, toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusNotFound {
		t.Errorf("got %s %s, want 404", res.Status, body)
	}
}

// TestForward_NeverToAnAddressOfAClient: a client names sessions and boxes, not servers.
func TestForward_NeverToAnAddressOfAClient(t *testing.T) {
	all := neighbors(t, 1)
	trap := record(t, func(http.ResponseWriter, *http.Request) {})
	at := strings.TrimPrefix(trap.URL, "http://")
	base := header{"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25"}
	for _, id := range []string{at, trap.URL, at + "-x", "0123456789abcdef-" + at, "0123456789abcdef@" + at, "//" + at} {
		for name, h := range map[string]header{
			"session": with(base, "Mcp-Session-Id", id),
			"headers": with(base, "X-Forwarded-Host", at, "Forwarded", "host="+at, "X-Original-Url", trap.URL),
		} {
			_, _ = do(t, "POST", all[0].url, h, toolCall(1, "list_files", fmt.Sprintf(`{"session_id":%q}`, id)))
			if n := trap.requests.Load(); n != 0 {
				t.Fatalf("%s %q: %d requests reach the client's address", name, id, n)
			}
		}
	}
}

func TestForward_ServerEndsDuringTheCall(t *testing.T) {
	all := neighbors(t, 2)
	h := session(t, all[0].url)
	rec := record(t, func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	all[0].self.Listen(endpointOf(t, rec.URL))
	res, body := do(t, "POST", all[1].url, h, toolCall(5, "get_sessions", "{}"))
	if res.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"id":5`) || !strings.Contains(body, "whether the call ran is unknown") || rec.requests.Load() != 1 {
		t.Errorf("got %s %s after %d requests", res.Status, body, rec.requests.Load())
	}
	rec = record(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": hello\n\nevent: mess")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	all[0].self.Listen(endpointOf(t, rec.URL))
	res, body = do(t, "POST", all[1].url, h, toolCall(6, "get_sessions", "{}"))
	if r := parse(t, body); res.StatusCode != http.StatusOK || r.Error.Message != errStopped.Message {
		t.Errorf("a stream that breaks: %s %s", res.Status, body)
	}
}

// TestForward_WaitsForAServerThatStops: a server that stops has not served the call, and its
// box soon goes on here.
func TestForward_WaitsForAServerThatStops(t *testing.T) {
	all := neighbors(t, 2)
	if res, body := callStateless(t, all[0].url, "s", "x = 41"); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	all[0].draining.Store(true)
	if res, _ := callStateless(t, all[0].url, "s", "x"); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get(headerStopping) != "" {
		t.Errorf("a client of the server that stops gets %s %q", res.Status, res.Header)
	}
	stopped := time.AfterFunc(300*time.Millisecond, all[0].self.Kill)
	defer stopped.Stop()
	res, body := callStateless(t, all[1].url, "s", "x + 1")
	wantPrinted(t, res, body, "42")
}

func TestStoppedStream_ClientIsGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	s := &stoppedStream{ReadCloser: io.NopCloser(iotest.ErrReader(broken)), client: ctx, ctx: ctx}
	if _, err := io.ReadAll(s); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error", err)
	}
}
