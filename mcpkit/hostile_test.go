package mcpkit

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// hostile are the limits for hostile servers in these tests.
var hostile = Limits{Connect: 3 * time.Second, Request: 3 * time.Second, Message: 1 << 20, List: 1000}

// patience bounds waits on a busy machine.
const patience = time.Minute

// limitsFor returns limits for a server whose call is expected to end so. Time-outs
// apply only if the test expects one, so that other results do not depend on the
// machine's speed.
func limitsFor(want string) Limits {
	limits := hostile
	if !strings.Contains(want, "no answer within 3s") {
		limits.Request = patience
	}
	if !strings.Contains(want, "connect") {
		limits.Connect = patience
	}
	return limits
}

// nothingLeft checks at the end of the test that there are as many goroutines, open
// files and children as now.
func nothingLeft(t *testing.T) {
	t.Helper()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	count := func() (g, f, c int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("this system does not list open files:", err)
		}
		tasks, _ := filepath.Glob("/proc/self/task/*/children") // some kernels do not tell
		for _, task := range tasks {
			b, _ := os.ReadFile(task)
			c += len(strings.Fields(string(b)))
		}
		return runtime.NumGoroutine(), len(fds), c
	}
	goroutines, files, children := count()
	t.Cleanup(func() {
		var g, f, c int
		asBefore := func() bool {
			g, f, c = count()
			return g <= goroutines && f <= files && c <= children
		}
		if !polltest.Soon(patience, asBefore) {
			buf := make([]byte, 1<<20)
			t.Errorf("leak: goroutines %d, then %d; files %d, then %d; children %d, then %d\n%s", goroutines, g, files, f, children, c, buf[:runtime.Stack(buf, true)])
		}
	})
}

// message has the members of a message that the servers of these tests use.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name   string `json:"name"`
		Cursor string `json:"cursor"`
		State  string `json:"requestState"`
	} `json:"params"`
	Error *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func reply(w http.ResponseWriter, m message, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func events(w http.ResponseWriter) func(format string, args ...any) error {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	_ = flush()
	return func(format string, args ...any) error {
		if _, err := fmt.Fprintf(w, format, args...); err != nil {
			return err
		}
		return flush()
	}
}

const initialized = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"hostile","version":"1"}}`

// hostileHTTP is a hand-written legacy server over HTTP. If odd returns true, it has
// handled the request.
func hostileHTTP(t *testing.T, odd func(w http.ResponseWriter, r *http.Request, m message) bool) string {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m message
		if r.Method == http.MethodPost {
			if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		switch {
		case odd(w, r, m):
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case m.ID == nil || m.Method == "":
			w.WriteHeader(http.StatusAccepted)
		case m.Method == "initialize":
			reply(w, m, initialized)
		case m.Method == "tools/call":
			reply(w, m, `{"content":[{"type":"text","text":"good"}]}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	}))
	t.Cleanup(func() {
		ts.CloseClientConnections() // ends handlers that wait for their clients
		ts.Close()
	})
	return ts.URL
}

// bomb is a compressed response that expands to many times the message limit.
func bomb(t *testing.T, head string, fill byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, head)
	part := bytes.Repeat([]byte{fill}, 1<<20)
	for range 16 {
		if err == nil {
			_, err = z.Write(part)
		}
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// says reports whether an error has one of these texts, separated by '|'. An empty text
// means no error.
func says(err error, texts string) bool {
	if err == nil || texts == "" {
		return err == nil && texts == ""
	}
	return slices.ContainsFunc(strings.Split(texts, "|"), func(text string) bool { return strings.Contains(err.Error(), text) })
}

func TestD6_HostileServersOverHTTP(t *testing.T) {
	nothingLeft(t)
	zip := func(w http.ResponseWriter, kind string, b []byte) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(b)
	}
	jsonBomb, eventBomb, lineBomb := bomb(t, `{"jsonrpc":"2.0","id":1,"result":"`, 'x'), bomb(t, "data: ", 'x'), bomb(t, "", '\n')
	for _, tt := range []struct {
		name string
		// odd is what the server does with a call.
		odd  func(w http.ResponseWriter, r *http.Request, m message)
		want string // in the error of the call, one of these; "" means that it succeeds
		then string // the same for a good call after it
	}{
		{"says nothing", func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() },
			"no answer within 3s", ""},
		{"says nothing after the head", func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "no answer within 3s", ""},
		{"sends a byte now and then", func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}, "no answer within 3s", ""},
		{"has an endless stream without data", func(w http.ResponseWriter, _ *http.Request, _ message) {
			send := events(w)
			for send(": still here\n\n") == nil {
				time.Sleep(10 * time.Millisecond)
			}
		}, "no answer within 3s", ""},
		{"goes on after the answer", func(w http.ResponseWriter, _ *http.Request, m message) {
			send := events(w)
			_ = send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", m.ID)
			for send(": and on\n\n") == nil {
				time.Sleep(time.Millisecond)
			}
		}, "", ""},
		{"floods with notifications", func(w http.ResponseWriter, _ *http.Request, m message) {
			send := events(w)
			_ = send("%s", strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"x\"}}\n\n", 3000))
			_ = send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", m.ID)
		}, "", ""},
		{"declares a huge body", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000000000000")
			w.WriteHeader(http.StatusOK)
		}, "larger than 1048576 bytes", ""},
		{"sends a huge body", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			for part := bytes.Repeat([]byte{' '}, 1<<16); ; {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		}, "larger than 1048576 bytes", ""},
		{"sends a huge refusal", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			for part := bytes.Repeat([]byte{' '}, 1<<16); ; {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		}, "larger than 1048576 bytes", ""},
		{"sends a huge event", func(w http.ResponseWriter, _ *http.Request, _ message) {
			send := events(w)
			for part := strings.Repeat("x", 1<<16); send("data: %s", part) == nil; {
			}
		}, "larger than 1048576 bytes", ""},
		{"sends a huge event in many lines", func(w http.ResponseWriter, _ *http.Request, _ message) {
			send := events(w)
			for part := strings.Repeat("x", 1<<16); send("data: %s\n", part) == nil; {
			}
		}, "larger than 1048576 bytes", ""},
		{"packs much into little", func(w http.ResponseWriter, _ *http.Request, _ message) {
			zip(w, "application/json", jsonBomb)
		}, "larger than 1048576 bytes", ""},
		{"packs a huge event into little", func(w http.ResponseWriter, _ *http.Request, _ message) {
			zip(w, "text/event-stream", eventBomb)
		}, "larger than 1048576 bytes", ""},
		{"packs many empty lines into little", func(w http.ResponseWriter, _ *http.Request, _ message) {
			zip(w, "text/event-stream", lineBomb)
		}, "terminated without response|no answer within 3s", ""}, // on a slow machine
		{"nests deeply", func(w http.ResponseWriter, _ *http.Request, m message) {
			reply(w, m, `{"content":[],"structuredContent":`+strings.Repeat("[", 200_000)+strings.Repeat("]", 200_000)+"}")
		}, "depth", ""},
		{"has other ids", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"nobody","result":{}}`)
		}, "no answer within 3s", ""},
		{"answers with a page", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>hello")
		}, `unsupported content type "text/html"`, ""},
		{"answers with nothing", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
		}, "failed to decode", ""},
		{"answers with half", func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0",`)
		}, "unexpected EOF", ""},
		{"hangs up", func(http.ResponseWriter, *http.Request, message) { panic(http.ErrAbortHandler) },
			"EOF", ""},
		{"hangs up in a stream", func(w http.ResponseWriter, _ *http.Request, _ message) {
			_ = events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"x\"}}\n\n")
			panic(http.ErrAbortHandler)
		}, "terminated without response", ""},
		{"has a huge session id", func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Mcp-Session-Id", strings.Repeat("s", 1<<20))
			reply(w, m, "{}")
		}, "header", ""},
		{"has a large session id", func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Mcp-Session-Id", strings.Repeat("s", 100<<10))
			reply(w, m, "{}")
		}, "header", ""},
		{"redirects elsewhere", func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusTemporaryRedirect)
		}, "a redirect to another origin", ""},
		{"redirects in circles", func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, "/", http.StatusTemporaryRedirect)
		}, "more than 5 redirects", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Params.Name != "odd" {
					return false
				}
				tt.odd(w, r, m)
				return true
			})
			s := session(t, manager(t, Options{Limits: limitsFor(tt.want)}, endpoint("srv", url)), "srv")
			begun := time.Now()
			check := func(tool, want string) {
				t.Helper()
				_, err := call(t, s, tool, nil)
				if !says(err, want) {
					t.Errorf("%s: got %.300v, want %q", tool, err, want)
				}
			}
			check("odd", tt.want)
			check("good", tt.then)
			if took := time.Since(begun); took > patience {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Servers that misbehave while a session begins.
func TestD6_HostileHandshakes(t *testing.T) {
	nothingLeft(t)
	for _, tt := range []struct {
		name string
		odd  func(w http.ResponseWriter, r *http.Request, m message) bool
		want string
	}{
		{"never answers", func(_ http.ResponseWriter, r *http.Request, _ message) bool {
			<-r.Context().Done()
			return true
		}, `connect of mcp server "srv": no answer within 3s`},
		{"never answers the request for a stream", func(_ http.ResponseWriter, r *http.Request, _ message) bool {
			if r.Method == http.MethodGet {
				<-r.Context().Done()
			}
			return r.Method == http.MethodGet
		}, ""},
		{"has a huge event in the stream", func(w http.ResponseWriter, r *http.Request, m message) bool {
			if r.Method == http.MethodGet {
				send := events(w)
				for part := strings.Repeat("x", 1<<16); send("data: %s", part) == nil; {
				}
			}
			if m.Method == "tools/call" {
				<-r.Context().Done()
			}
			return r.Method == http.MethodGet
		}, "event exceeded 1048576 bytes|no answer within 3s"}, // the call may be on its way
		{"never ends the end", func(w http.ResponseWriter, r *http.Request, _ message) bool {
			w.Header().Set("Mcp-Session-Id", "s")
			if r.Method == http.MethodDelete {
				<-r.Context().Done()
			}
			return r.Method == http.MethodDelete
		}, ""},
		{"redirects to a private address", func(w http.ResponseWriter, r *http.Request, _ message) bool {
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusPermanentRedirect)
			return true
		}, "a redirect to another origin"},
		{"knows no revision", func(w http.ResponseWriter, _ *http.Request, m message) bool {
			if m.Method == "initialize" {
				reply(w, m, `{"protocolVersion":"1999-01-01","capabilities":{},"serverInfo":{"name":"x","version":"1"}}`)
			}
			return m.Method == "initialize"
		}, "unsupported protocol version"},
		{"is a page", func(w http.ResponseWriter, _ *http.Request, _ message) bool {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>hello")
			return true
		}, `unsupported content type "text/html"`},
		{"wants a login", func(w http.ResponseWriter, _ *http.Request, _ message) bool {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}, "Unauthorized"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := manager(t, Options{Limits: limitsFor(tt.want)}, endpoint("srv", hostileHTTP(t, tt.odd)))
			begun := time.Now()
			_, err := call(t, session(t, m, "srv"), "good", nil)
			if !says(err, tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > patience {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Notifications arrive over a stream whose response is late.
func TestLateStream_DeliversNotifications(t *testing.T) {
	nothingLeft(t)
	heard := make(chan string, 10)
	url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, _ message) bool {
		if r.Method == http.MethodGet {
			time.Sleep(2 * streamTimeout)
			_ = events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			<-r.Context().Done()
		}
		return r.Method == http.MethodGet
	})
	m := manager(t, Options{Hooks: Hooks{ListChanged: func(_ context.Context, _, list string) { heard <- list }}}, endpoint("srv", url))
	wantCall(t, session(t, m, "srv"), "any", nil, "good")
	select {
	case got := <-heard:
		if got != "tools" {
			t.Errorf("got %q", got)
		}
	case <-time.After(patience):
		t.Error("the stream delivers nothing")
	}
}

// Over the older transport, the server announces the URL for POSTs.
func TestD6_HostileEventStreams(t *testing.T) {
	nothingLeft(t)
	var reached atomic.Bool
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	t.Cleanup(inside.Close)
	for _, tt := range []struct {
		name, want string
		stream     func(w http.ResponseWriter, r *http.Request)
	}{
		{"says nothing", "connect of mcp server \"srv\": no answer within 3s", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"never says where to post to", "connect of mcp server \"srv\": no answer within 3s", func(w http.ResponseWriter, r *http.Request) {
			for send := events(w); send(": on\n\n") == nil; time.Sleep(10 * time.Millisecond) {
			}
		}},
		{"never answers", "connect of mcp server \"srv\": no answer within 3s", func(w http.ResponseWriter, r *http.Request) {
			_ = events(w)("event: endpoint\ndata: /post\n\n")
			<-r.Context().Done()
		}},
		{"has a huge event", "larger than 1048576 bytes", func(w http.ResponseWriter, r *http.Request) {
			send := events(w)
			for part := strings.Repeat("x", 1<<16); send("data: %s", part) == nil; {
			}
		}},
		{"hangs up", "EOF|closed|missing endpoint", func(w http.ResponseWriter, r *http.Request) {
			_ = events(w)("event: endpoint\ndata: /post\n\n")
		}},
		{"posts elsewhere", "a redirect to another origin", func(w http.ResponseWriter, r *http.Request) {
			_ = events(w)("event: endpoint\ndata: %s/post\n\n", inside.URL)
			<-r.Context().Done()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			def := endpoint("srv", hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, _ message) bool {
				if r.Method == http.MethodGet {
					tt.stream(w, r)
				} else {
					w.WriteHeader(http.StatusAccepted)
				}
				return true
			}))
			def.Transport = mcpjson.TransportSSE
			m := manager(t, Options{Limits: limitsFor(tt.want)}, def)
			if _, err := session(t, m, "srv").Initialize(t.Context()); !says(err, tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { // when all have run
		if reached.Load() {
			t.Error("a message went to another server")
		}
	})
}

// Redirects of an untrusted server are not followed, not even to itself under another
// name.
func TestD4_Untrusted_RedirectsAreRefused(t *testing.T) {
	var reached atomic.Bool
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	t.Cleanup(inside.Close)
	url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, _ message) bool {
		http.Redirect(w, r, strings.Replace(inside.URL, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect)
		return true
	})
	m := manager(t, Options{
		Limits: hostile, Outbound: outbound.Policy{AllowHTTP: true, AllowLocalhost: true},
		Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil },
	}, endpoint("srv", url))
	if _, err := session(t, m, "srv").Initialize(t.Context()); !errors.Is(err, outbound.ErrRefused) {
		t.Errorf("got %v", err)
	}
	if reached.Load() {
		t.Error("the redirect was followed")
	}
}

// Lists that never end, with full pages and with empty ones.
func TestList_Endless(t *testing.T) {
	for _, full := range []bool{true, false} {
		var pages atomic.Int64
		url := hostileHTTP(t, func(w http.ResponseWriter, _ *http.Request, m message) bool {
			if m.Method != "tools/list" {
				return false
			}
			tools := "[]"
			if full {
				tools = "[" + strings.TrimSuffix(strings.Repeat(`{"name":"x","inputSchema":{"type":"object"}},`, 100), ",") + "]"
			}
			reply(w, m, fmt.Sprintf(`{"tools":%s,"nextCursor":"%d"}`, tools, pages.Add(1)))
			return true
		})
		s := session(t, manager(t, Options{Limits: hostile}, endpoint("srv", url)), "srv")
		_, err := s.Tools(t.Context())
		want := "the list has more than 1000 entries"
		if !full {
			want = "no answer within 3s"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := call(t, s, "good", nil); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// A tool that disappears between a list and a call is the server's error.
func TestCallTool_ToolHasDisappeared(t *testing.T) {
	s := session(t, manager(t, Options{Era: Legacy}, program("srv", "good")), "srv")
	if _, err := s.Tools(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCall(t, s, "grow", nil, "grown")
	wantCall(t, s, "grown", nil, "grown") // it was not in the list
	var gone atomic.Bool
	url := hostileHTTP(t, func(w http.ResponseWriter, _ *http.Request, m message) bool {
		switch {
		case m.Method == "tools/list":
			reply(w, m, `{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}`)
			gone.Store(true)
		case m.Method == "tools/call" && gone.Load():
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"unknown tool \"a\""}}`, m.ID)
		default:
			return false
		}
		return true
	})
	s = session(t, manager(t, Options{}, endpoint("srv", url)), "srv")
	if _, err := s.Tools(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, "a", nil); err == nil || !strings.Contains(err.Error(), `unknown tool "a"`) {
		t.Errorf("got %v", err)
	}
}

// Questions of a server that are not offered are refused.
func TestD5_Questions_NotOffered(t *testing.T) {
	told := make(chan message, 10)
	url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
		switch {
		case m.Method == "" && m.ID != nil: // an answer
			told <- m
			return false
		case m.Method != "tools/call":
			return false
		}
		send := events(w)
		for i, method := range []string{"roots/list", "sampling/createMessage", "elicitation/create", "acme/secrets"} {
			_ = send("data: {\"jsonrpc\":\"2.0\",\"id\":\"q%d\",\"method\":%q,\"params\":{\"messages\":[],\"maxTokens\":1,\"message\":\"your password?\"}}\n\n", i, method)
			select {
			case m := <-told:
				if m.Error == nil || m.Error.Code != -32601 {
					t.Errorf("%s: answered %+v", method, m)
				}
			case <-r.Context().Done():
				t.Errorf("%s: no answer", method)
			}
		}
		_ = send("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}}\n\n", m.ID)
		return true
	})
	wantCall(t, session(t, manager(t, Options{}, endpoint("srv", url)), "srv"), "any", nil, "done")
}

// xs is a text of n x's; read counts the bytes read.
type xs struct{ left, read int }

func (s *xs) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), s.left)
	for i := range p[:n] {
		p[i] = 'x'
	}
	s.left -= n
	s.read += n
	return n, nil
}

// A refusal in plain text is quoted and read up to a limit.
func TestErrorResponse_LongRefusal(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	text := &xs{left: 1 << 20}
	res := errorResponse(req, &http.Response{
		Status: "400 Bad Request", StatusCode: http.StatusBadRequest,
		Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(text),
	})
	var got struct {
		ID    int
		Error struct{ Message string }
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.ID != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
	if want := "400 Bad Request: " + strings.Repeat("x", maxRefusal); got.Error.Message != want || text.read != maxRefusal {
		t.Errorf("%d bytes were read and %d quoted", text.read, len(got.Error.Message))
	}
}
