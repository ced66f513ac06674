package mcpkit

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return ts.URL
}

func TestD5_Roots(t *testing.T) {
	own := program("own", "good")
	own.Roots = []mcpjson.Root{{URI: "file:///own"}}
	none := program("none", "good")
	none.Roots = []mcpjson.Root{}
	m := manager(t, Options{Era: Legacy, Roots: []*mcp.Root{{URI: "file:///all"}}}, own, none, program("other", "good"))
	for name, want := range map[string]string{"own": "[file:///own]", "none": "[]", "other": "[file:///all]"} {
		wantCall(t, session(t, m, name), "roots", nil, want)
	}
	// A client without roots does not declare the capability.
	m = manager(t, Options{Era: Legacy}, program("srv", "good"))
	if _, err := call(t, session(t, m, "srv"), "roots", nil); err == nil || !strings.Contains(err.Error(), "method not found") {
		t.Errorf("without roots: %v", err)
	}
}

func TestD5_Elicitation(t *testing.T) {
	m := manager(t, Options{Era: Legacy}, program("srv", "good"))
	if _, err := call(t, session(t, m, "srv"), "ask", nil); err == nil {
		t.Error("without a hook: no error")
	}
	var mu sync.Mutex
	most, now := 0, 0
	hook := func(ctx context.Context, server string, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() { mu.Lock(); now--; mu.Unlock() }()
		if server != "srv" || p.Message != "really?" {
			t.Errorf("%s asks %q", server, p.Message)
		}
		return &mcp.ElicitResult{Action: "decline"}, nil
	}
	m = manager(t, Options{Era: Legacy, Hooks: Hooks{Elicit: hook}}, program("srv", "good"))
	s := session(t, m, "srv")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { wantCall(t, s, "ask", nil, "decline") })
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("the user got %d questions at the same time", most)
	}
}

// Also row D7: the questions that a modern server returns instead of a result.
func TestD5_InputRounds(t *testing.T) {
	hooks := Hooks{
		Elicit: func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
		Roots: func(_ context.Context, server string) ([]*mcp.Root, error) {
			return []*mcp.Root{{URI: "file:///" + server}}, nil
		},
	}
	s := session(t, manager(t, Options{Era: Modern, Hooks: hooks}, program("srv", "good")), "srv")
	const twice = "decline file:///srv decline file:///srv "
	wantCall(t, s, "rounds", map[string]any{"until": twice}, twice)
	raw, err := s.Request(t.Context(), "tools/call", json.RawMessage(`{"name":"rounds","arguments":{"until":"`+twice+`"}}`))
	if err != nil || !strings.Contains(string(raw), twice) {
		t.Errorf("as JSON: got %s, %v", raw, err)
	}
	if _, err := call(t, s, "rounds", map[string]any{"until": "never"}); err == nil || !strings.Contains(err.Error(), "asked for more input 10 times") {
		t.Errorf("a server that never stops asking: got %v", err)
	}
	hooks.Elicit = func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) { panic("oh") }
	s = session(t, manager(t, Options{Era: Modern, Hooks: hooks}, program("srv", "good")), "srv")
	if _, err := call(t, s, "rounds", map[string]any{"until": twice}); err == nil || !strings.Contains(err.Error(), "the client's handler failed") {
		t.Errorf("a hook that panics: got %v", err)
	}
	s = session(t, manager(t, Options{Era: Modern}, program("srv", "good")), "srv")
	if _, err := call(t, s, "rounds", map[string]any{"until": twice}); err == nil {
		t.Error("without hooks: no error")
	}
}

// Requests declare the capabilities of WithCapabilities to modern servers.
func TestWithCapabilities_DeclaredToModernServers(t *testing.T) {
	hooks := Hooks{
		Elicit: func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) { return nil, nil },
		Roots:  func(context.Context, string) ([]*mcp.Root, error) { return nil, nil },
	}
	s := session(t, manager(t, Options{Era: Modern, Hooks: hooks}, program("srv", "good")), "srv")
	for want, caps := range map[string]*mcp.ClientCapabilities{
		`{}`:                          {Sampling: &mcp.SamplingCapabilities{}},
		`{"roots":{}}`:                {RootsV2: &mcp.RootCapabilities{ListChanged: true}},
		`{"elicitation":{"form":{}}}`: {Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}},
	} {
		res, err := s.CallTool(WithCapabilities(t.Context(), caps), &mcp.CallToolParams{Name: "able"})
		if err != nil || res.Content[0].(*mcp.TextContent).Text != want {
			t.Errorf("got %+v, %v, want %s", res.Content[0], err, want)
		}
	}
	wantCall(t, s, "able", nil, `{"elicitation":{"form":{}},"roots":{"listChanged":true}}`)
}

// The user may take longer to answer than the request's time-out, but not for ever.
func TestQuestionTime_IsNotRequestTime(t *testing.T) {
	for _, c := range []struct {
		ask  time.Duration
		want bool
	}{{time.Minute, true}, {time.Millisecond, false}} {
		def := program("srv", "good")
		def.Timeouts.Request = 2 * time.Second
		m := manager(t, Options{Era: Legacy, Limits: Limits{Question: c.ask}, Hooks: Hooks{
			Elicit: func(ctx context.Context, _ string, _ *mcp.ElicitParams) (*mcp.ElicitResult, error) {
				select {
				case <-time.After(4 * time.Second):
					return &mcp.ElicitResult{Action: "decline"}, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			},
		}}, def)
		text, err := call(t, session(t, m, "srv"), "ask", nil)
		if (err == nil && text == "decline") != c.want {
			t.Errorf("with %v to answer: got %q, %v", c.ask, text, err)
		}
	}
}

// Untrusted servers are offered elicitation only.
func TestUntrusted_QuestionsOffered(t *testing.T) {
	server := newServer()
	url := serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil).ServeHTTP)
	hooks := Hooks{
		Sampling: func(context.Context, string, *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error) {
			return nil, nil
		},
		Elicit: func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	}
	for _, allowed := range []bool{false, true} {
		hooks.Untrusted = allowed
		m := manager(t, Options{Era: Legacy, Hooks: hooks, Roots: []*mcp.Root{{URI: "file:///all"}},
			Trust:    func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil },
			Outbound: outbound.Policy{AllowHTTP: true, AllowLocalhost: true},
		}, &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)})
		s := session(t, m, "srv")
		wantCall(t, s, "ask", nil, "decline")
		if text, err := call(t, s, "roots", nil); (err == nil && text == "[file:///all]") != allowed {
			t.Errorf("roots, allowed %v: got %q, %v", allowed, text, err)
		}
	}
}

func TestHook_Panic(t *testing.T) {
	m := manager(t, Options{Era: Legacy, Hooks: Hooks{Elicit: func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
		panic("oh")
	}}}, program("srv", "good"))
	s := session(t, m, "srv")
	if _, err := call(t, s, "ask", nil); err == nil || !strings.Contains(err.Error(), "the client's handler failed") {
		t.Errorf("got %v", err)
	}
	wantCall(t, s, "echo", map[string]any{"text": "on"}, "on")
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	polltest.Until(t, patience, what, f)
}

// If a server sends notifications faster than the hooks take them, the excess is
// dropped and nothing else.
func TestD6_Notifications_FloodIsDropped(t *testing.T) {
	const all, room = 5000, 4
	var heard atomic.Int64
	leave := make(chan struct{})
	m := manager(t, Options{Limits: Limits{PendingNotifications: room}, Hooks: Hooks{Log: func(context.Context, string, *mcp.LoggingMessageParams) {
		heard.Add(1)
		<-leave
	}}}, program("srv", "floods"))
	s := session(t, m, "srv")
	wantCall(t, s, "any", nil, "odd") // although the hook still waits
	until(t, "the excess is dropped", func() bool { return s.Dropped() >= all-room-1 })
	close(leave)
	until(t, "the rest is delivered", func() bool { return heard.Load()+s.Dropped() == all })
	if n := heard.Load(); n < room || n > room+1 {
		t.Errorf("%d were delivered, want the %d of the queue and one delivered meanwhile", n, room)
	}
}

// Close drops queued notifications and ends the context of the running hook.
func TestClose_DropsNotifications(t *testing.T) {
	heard := make(chan struct{}, 10_000)
	m := manager(t, Options{Hooks: Hooks{Log: func(ctx context.Context, _ string, _ *mcp.LoggingMessageParams) {
		heard <- struct{}{}
		<-ctx.Done()
	}}}, program("srv", "floods"))
	s := session(t, m, "srv")
	wantCall(t, s, "any", nil, "odd")
	<-heard
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := len(heard); n > 0 {
		t.Errorf("%d notifications were delivered after Close", n)
	}
}

// A change of a list that is already queued is not queued again, and never dropped.
func TestListChanged_IsNeverDropped(t *testing.T) {
	var n notifications
	var got []string
	begun, leave := make(chan struct{}), make(chan struct{})
	put := func(method string) bool {
		return n.put(method, 1, func(context.Context) {
			if got = append(got, method); len(got) == 1 {
				close(begun)
			}
			<-leave
		})
	}
	const log, tools, prompts = "notifications/message", "notifications/tools/list_changed", "notifications/prompts/list_changed"
	put(log)
	<-begun
	for _, c := range []struct {
		method string
		want   bool
	}{{log, true}, {log, false}, {tools, true}, {tools, true}, {prompts, true}, {log, false}} {
		if ok := put(c.method); ok != c.want {
			t.Errorf("%s: got %v, want %v", c.method, ok, c.want)
		}
	}
	close(leave)
	n.running.Wait()
	if diff := cmp.Diff([]string{log, log, tools, prompts}, got); diff != "" {
		t.Errorf("notifications (-want +got)\n%s", diff)
	}
}

// Questions beyond the limit are refused.
func TestD6_Questions_FloodIsRefused(t *testing.T) {
	leave := make(chan struct{})
	m := manager(t, Options{Era: Legacy, Limits: Limits{PendingQuestions: 1}, Hooks: Hooks{Elicit: func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
		<-leave
		return &mcp.ElicitResult{Action: "decline"}, nil
	}}}, program("srv", "good"))
	s := session(t, m, "srv")
	const calls = 3
	errs := make(chan error, calls)
	for range calls {
		go func() { _, err := call(t, s, "ask", nil); errs <- err }()
	}
	for range calls - 1 {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "client overloaded") {
			t.Errorf("got %v", err)
		}
	}
	close(leave)
	if err := <-errs; err != nil {
		t.Errorf("the question within the limit: %v", err)
	}
}

func TestProgress(t *testing.T) {
	heard := make(chan string, 10)
	def := program("srv", "good")
	def.Timeouts.Request = 5 * time.Second
	m := manager(t, Options{Hooks: Hooks{Progress: func(_ context.Context, server string, p *mcp.ProgressNotificationParams) {
		heard <- server + " " + p.Message
	}}}, def)
	ctx, cancel := context.WithCancel(t.Context())
	params := &mcp.CallToolParams{Name: "wait"}
	params.SetProgressToken("p")
	done := make(chan error, 1)
	go func() { _, err := session(t, m, "srv").CallTool(ctx, params); done <- err }()
	if got := <-heard; got != "srv waiting" {
		t.Errorf("got %q", got)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("a cancelled call: no error")
	}
}

func TestListChanged_EveryEra(t *testing.T) {
	for _, era := range []Era{Legacy, Modern} {
		heard := make(chan string, 10)
		m := manager(t, Options{Era: era, Hooks: Hooks{ListChanged: func(_ context.Context, server, list string) {
			heard <- server + " " + list
		}}}, program("srv", "good"))
		wantCall(t, session(t, m, "srv"), "grow", nil, "grown")
		if got := <-heard; got != "srv tools" {
			t.Errorf("%s: got %q", era, got)
		}
	}
}

// When a modern server ends its subscription, the next request reconnects and the hooks
// get a notification that the lists may have changed.
func TestSubscription_EndReconnects(t *testing.T) {
	server := newServer()
	ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(ts.Close)
	heard := make(chan string, 10)
	m := manager(t, Options{Hooks: Hooks{ListChanged: func(_ context.Context, _, list string) { heard <- list }}}, endpoint("srv", ts.URL))
	s := session(t, m, "srv")
	wantCall(t, s, "echo", map[string]any{"text": "a"}, "a")
	ts.CloseClientConnections()
	until(t, "the end is noticed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.connection == nil
	})
	wantCall(t, s, "echo", map[string]any{"text": "b"}, "b")
	lists := map[string]bool{"tools": true, "prompts": true, "resources": true}
	for len(lists) > 0 {
		delete(lists, <-heard)
	}
	wantCall(t, s, "grow", nil, "grown")
	if got := <-heard; got != "tools" {
		t.Errorf("over the new connection: got %q", got)
	}
}

// closer counts calls of Close.
type closer struct {
	mu     sync.Mutex
	b      strings.Builder
	closed int
}

func (c *closer) Write(p []byte) (int, error) { c.mu.Lock(); defer c.mu.Unlock(); return c.b.Write(p) }
func (c *closer) Close() error                { c.mu.Lock(); defer c.mu.Unlock(); c.closed++; return nil }

func TestLogsAreClosedWithTheConnection(t *testing.T) {
	var stderr, trace closer
	m := manager(t, Options{
		Stderr: func(string) io.WriteCloser { return &stderr },
		Trace:  func(string) io.WriteCloser { return &trace },
	}, program("srv", "good"))
	s := session(t, m, "srv")
	wantCall(t, s, "echo", map[string]any{"text": "traced"}, "traced")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if stderr.closed != 1 || trace.closed != 1 {
		t.Errorf("closed %d and %d times, want once", stderr.closed, trace.closed)
	}
	for _, want := range []string{`"direction":"sent"`, `"direction":"received"`, `"method":"tools/call"`, `"traced"`} {
		if !strings.Contains(trace.b.String(), want) {
			t.Errorf("the trace does not have %s:\n%s", want, trace.b.String())
		}
	}
}

// Close leaves no goroutines and no open files.
func TestD6_Close_LeavesNothing(t *testing.T) {
	once := func() {
		for _, kind := range []string{"good", "silent", "dies"} {
			def := program("srv", kind)
			m := New(Options{Trust: trusting, Config: &mcpjson.Config{Servers: []*mcpjson.Server{def}}})
			s := session(t, m, "srv")
			if _, err := s.Initialize(t.Context()); err != nil {
				t.Error(err)
			}
			m.Close()
		}
	}
	count := func() (int, int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("this system does not list open files:", err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	once()
	goroutines, files := count()
	for range 3 {
		once()
	}
	var g, f int
	if !polltest.Soon(10*time.Second, func() bool { g, f = count(); return g <= goroutines && f <= files }) {
		buf := make([]byte, 1<<20)
		t.Fatalf("leak: goroutines %d, then %d; files %d, then %d\n%s", goroutines, g, files, f, buf[:runtime.Stack(buf, true)])
	}
}
