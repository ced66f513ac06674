package mcpkit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/proctest"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// TestMain runs one of the test servers if the environment selects one.
func TestMain(m *testing.M) {
	switch kind := os.Getenv("MCPKIT_TEST_SERVER"); kind {
	case "":
		os.Exit(proctest.Main(m))
	case "slow", "good":
		if kind == "slow" {
			time.Sleep(probeTimeout + probeTimeout/2)
		}
		if err := newServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "tasks":
		if err := tasksProgram(); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		if !hostileProgram(kind) {
			odd(kind)
		}
	}
}

// newServer returns a server with every kind of feature.
func newServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "good", Version: "1"}, nil)
	type text struct {
		Text string `json:"text"`
	}
	say := func(format string, a ...any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, a...)}}}
	}
	mcp.AddTool(s, &mcp.Tool{Name: "echo", Description: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, any, error) {
		return say("%s", in.Text), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait", Description: "wait"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		if token := r.Params.GetProgressToken(); token != nil {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1, Message: "waiting"})
		}
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "grow", Description: "grow"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		mcp.AddTool(s, &mcp.Tool{Name: "grown", Description: "grown"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return say("grown"), nil, nil
		})
		return say("grown"), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "pid", Description: "pid"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return say("%d", os.Getpid()), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "crash", Description: "crash"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		fmt.Fprintln(os.Stderr, "out of luck")
		os.Exit(3)
		return nil, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "env", Description: "env"}, func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, any, error) {
		value, set := os.LookupEnv(in.Text)
		return say("%s %v", value, set), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "roots", Description: "roots"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		res, err := r.Session.ListRoots(ctx, nil)
		if err != nil {
			return nil, nil, err
		}
		var uris []string
		for _, root := range res.Roots {
			uris = append(uris, root.URI)
		}
		return say("%v", uris), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "ask", Description: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "really?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}})
		if err != nil {
			return nil, nil, err
		}
		return say("%s", res.Action), nil, nil
	})
	// Modern clients are asked by the answer; the SDK does so for older ones too.
	mcp.AddTool(s, &mcp.Tool{Name: "rounds", Description: "rounds"}, func(_ context.Context, r *mcp.CallToolRequest, in struct {
		Until string `json:"until"`
	}) (*mcp.CallToolResult, any, error) {
		state := r.Params.RequestState
		if a, ok := r.Params.InputResponses["person"].(*mcp.ElicitResult); ok {
			state += a.Action + " "
		}
		if a, ok := r.Params.InputResponses["roots"].(*mcp.ListRootsResult); ok {
			state += a.Roots[0].URI + " "
		}
		if state == in.Until {
			return say("%s", state), nil, nil
		}
		return &mcp.CallToolResult{RequestState: state, InputRequests: mcp.InputRequestMap{
			"person": &mcp.ElicitParams{Message: "really?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}},
			"roots":  &mcp.ListRootsParams{},
		}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "able", Description: "able"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		b, err := json.Marshal(r.Params.Meta[mcp.MetaKeyClientCapabilities])
		return say("%s", b), nil, err
	})
	s.AddResource(&mcp.Resource{Name: "r", URI: "test://r"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "test://r", Text: "resource"}}}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "p"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "prompt"}}}}, nil
	})
	return s
}

// odd is a hand-written server: it answers a few legacy methods, and misbehaves as kind
// says.
func odd(kind string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	var late json.RawMessage // of a question that is answered after the next
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		result := func(text string) { fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, text) }
		switch {
		case m.Method == "server/discover" && kind == "dies":
			os.Exit(4)
		case m.Method == "server/discover" && kind != "silent" && kind != "late":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`+"\n", m.ID)
		case m.Method == "server/discover":
			late = m.ID
		case m.Method == "initialize" && kind != "never":
			result(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}`)
			if kind == "late" {
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", late)
			}
		case m.Method == "tools/call" && kind == "huge":
			fmt.Println(strings.Repeat("x", 3<<20))
		case m.Method == "tools/call" && kind == "large" && late == nil:
			late = m.ID
		case m.Method == "tools/call" && kind == "large": // the answer to the call before follows
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s"}]}}`+"\n", m.ID, strings.Repeat("x", 3<<20))
			m.ID, late = late, nil
			result(`{"content":[{"type":"text","text":"odd"}]}`)
		case m.Method == "tools/call" && kind == "wrongids":
			fmt.Println(`{"jsonrpc":"2.0","id":"nobody","result":{}}` + "\n" + `{"jsonrpc":"2.0","id":99999,"result":{}}`)
			result(`{"content":[{"type":"text","text":"odd"}]}`)
		case m.Method == "tools/call" && kind == "floods":
			for range 5000 {
				fmt.Println(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
			}
			result(`{"content":[{"type":"text","text":"odd"}]}`)
		case m.Method == "tools/call":
			result(`{"content":[{"type":"text","text":"odd"}]}`)
		case m.Method == "ping" || m.Method == "logging/setLevel" || strings.HasSuffix(m.Method, "subscribe"):
			result("{}")
		case m.Method == "acme/search":
			result(`{"hits":[1,2],"unknown":{"kept":true}}`)
		}
	}
}

// program returns the definition of a test server over standard streams.
func program(name, kind string) *mcpjson.Server {
	return &mcpjson.Server{
		Name: name, Transport: mcpjson.TransportStdio, Command: mcpjson.Literal(os.Args[0]),
		Env: []mcpjson.Pair{
			{Name: "MCPKIT_TEST_SERVER", Value: mcpjson.Literal(kind)},
			{Name: "GORACE", Value: mcpjson.Literal("atexit_sleep_ms=0")}, // else each end takes a second
		},
		Dir: os.TempDir(),
	}
}

func endpoint(name, url string) *mcpjson.Server {
	return &mcpjson.Server{Name: name, Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)}
}

func trusting(context.Context, *mcpjson.Server) (Trust, error) { return Trusted, nil }

// manager returns a Manager that trusts its servers. The test closes it.
func manager(t *testing.T, o Options, servers ...*mcpjson.Server) *Manager {
	t.Helper()
	o.Config = &mcpjson.Config{Servers: servers, Client: mcpjson.Client{}}
	if o.Trust == nil {
		o.Trust = trusting
	}
	m := New(o)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func session(t *testing.T, m *Manager, name string) *Session {
	t.Helper()
	s, err := m.Session(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func call(t *testing.T, s *Session, tool string, args map[string]any) (string, error) {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			b.WriteString(text.Text)
		}
	}
	if res.IsError {
		return "", errors.New(b.String())
	}
	return b.String(), nil
}

func wantCall(t *testing.T, s *Session, tool string, args map[string]any, want string) {
	t.Helper()
	if got, err := call(t, s, tool, args); err != nil || got != want {
		t.Errorf("%s of %s: got %q, %v, want %q", tool, s.Name(), got, err, want)
	}
}

// servers starts newServer on every transport.
func servers(t *testing.T) map[string]*mcpjson.Server {
	t.Helper()
	get := func(*http.Request) *mcp.Server { return newServer() }
	start := func(h http.Handler) string {
		ts := httptest.NewServer(h)
		t.Cleanup(ts.Close)
		return ts.URL
	}
	socket := filepath.Join(t.TempDir(), "http")
	startOn(t, socket, mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true}))
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_ = newServer().Run(context.Background(), &mcp.IOTransport{Reader: conn, Writer: conn}) // ends with the client
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	sse := endpoint("sse", start(mcp.NewSSEHandler(get, nil)))
	sse.Transport = mcpjson.TransportSSE
	fallback := endpoint("fallback", sse.URL.String())
	fallback.SSEFallback = true
	return map[string]*mcpjson.Server{
		"stdio":     program("stdio", "good"),
		"unix":      {Name: "unix", Transport: mcpjson.TransportUnix, Socket: mcpjson.Literal(path)},
		"socket":    endpoint("socket", "unix://"+socket+"#mcp"),
		"stateful":  endpoint("stateful", start(mcp.NewStreamableHTTPHandler(get, nil))),
		"stateless": endpoint("stateless", start(mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true}))),
		"json":      endpoint("json", start(mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))),
		"sse":       sse,
		"fallback":  fallback,
	}
}

// Row D7 as well.
func TestD3_RequestsOverEveryTransport(t *testing.T) {
	for name, def := range servers(t) {
		t.Run(name, func(t *testing.T) {
			m := manager(t, Options{Eras: OpenEras(filepath.Join(t.TempDir(), "eras.json"))}, def)
			s := session(t, m, name)
			for range 2 { // the second time over a connection whose era is remembered
				info, err := s.Initialize(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				modern := info.ProtocolVersion >= revision.Modern
				if want := name != "stateful" && name != "sse" && name != "fallback"; modern != want {
					t.Errorf("the revision is %s", info.ProtocolVersion)
				}
				wantCall(t, s, "echo", map[string]any{"text": "hello"}, "hello")
				if tools, err := s.Tools(t.Context()); err != nil || len(tools) != 10 {
					t.Errorf("%d tools, %v", len(tools), err)
				}
				if list, err := s.Resources(t.Context()); err != nil || len(list) != 1 {
					t.Errorf("%d resources, %v", len(list), err)
				}
				if list, err := s.ResourceTemplates(t.Context()); err != nil || len(list) != 0 {
					t.Errorf("%d templates, %v", len(list), err)
				}
				if res, err := s.ReadResource(t.Context(), "test://r"); err != nil || res.Contents[0].Text != "resource" {
					t.Errorf("resource: %v, %v", res, err)
				}
				if list, err := s.Prompts(t.Context()); err != nil || len(list) != 1 {
					t.Errorf("%d prompts, %v", len(list), err)
				}
				if res, err := s.GetPrompt(t.Context(), "p", nil); err != nil || len(res.Messages) != 1 {
					t.Errorf("prompt: %v, %v", res, err)
				}
				if !modern {
					if err := s.Ping(t.Context()); err != nil {
						t.Errorf("ping: %v", err)
					}
				}
				raw, err := s.Request(t.Context(), "tools/call", json.RawMessage(`{"name":"echo","arguments":{"text":"raw"}}`))
				if err != nil || !bytes.Contains(raw, []byte(`"raw"`)) {
					t.Errorf("raw: %s, %v", raw, err)
				}
				if err := s.Notify(t.Context(), "notifications/roots/list_changed", nil); err != nil {
					t.Errorf("notify: %v", err)
				}
				_, err = s.Request(t.Context(), "acme/unknown", nil)
				old := def.Transport == mcpjson.TransportSSE || def.SSEFallback // whose server has refused it in plain text
				if e := (*jsonrpc.Error)(nil); err == nil || !old && !errors.As(err, &e) {
					t.Errorf("an unknown method: %v", err)
				}
				wantCall(t, s, "echo", map[string]any{"text": "still"}, "still")
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				m.Release(name)
				s = session(t, m, name)
			}
		})
	}
}

func TestConnect_TimesOutWithoutAnswer(t *testing.T) {
	s := session(t, manager(t, Options{Limits: Limits{Connect: 300 * time.Millisecond}}, program("srv", "never")), "srv")
	_, err := s.Initialize(t.Context())
	if err == nil || !strings.Contains(err.Error(), `connect of mcp server "srv": no answer within 300ms`) {
		t.Errorf("got %v", err)
	}
}

// A program that may download the server first gets longer.
func TestConnect_WaitsForAnInstallation(t *testing.T) {
	npx := filepath.Join(t.TempDir(), "npx")
	if err := os.Symlink(os.Args[0], npx); err != nil {
		t.Fatal(err)
	}
	def := program("srv", "never")
	def.Command = mcpjson.Literal(npx)
	limits := Limits{Connect: 100 * time.Millisecond, Install: 700 * time.Millisecond}
	log := make(logLines, 100)
	_, err := session(t, manager(t, Options{Limits: limits, Log: slog.New(slog.NewTextHandler(log, nil))}, def), "srv").Initialize(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no answer within 700ms") {
		t.Errorf("got %v", err)
	}
	want := `msg="mcp server is still starting; its command may be downloading it" server=srv`
	for {
		select {
		case line := <-log:
			if strings.Contains(line, want) {
				return
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no line of the log has %q", want)
		}
	}
}

// logLines passes the lines of a log on.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// startOn serves HTTP on a Unix socket.
func startOn(t *testing.T, path string, h http.Handler) {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(h)
	ts.Listener.Close()
	ts.Listener = ln
	ts.Start()
	t.Cleanup(ts.Close)
}

func TestD3_Request_AnyMethod(t *testing.T) {
	s := session(t, manager(t, Options{}, program("srv", "legacy")), "srv")
	got, err := s.Request(t.Context(), "acme/search", json.RawMessage(`{"q":"x"}`))
	if want := `{"hits":[1,2],"unknown":{"kept":true}}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	type hits struct{ Hits []int }
	typed, err := RequestTyped[hits](t.Context(), s, "acme/search", map[string]string{"q": "x"})
	if diff := cmp.Diff(hits{[]int{1, 2}}, typed); err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", err, diff)
	}
	for _, params := range []string{"[]", `"x"`, "{", "null"} {
		if _, err := s.Request(t.Context(), "acme/search", json.RawMessage(params)); !errors.Is(err, ErrBadParams) {
			t.Errorf("params %s: %v", params, err)
		}
	}
	for method, params := range map[string]string{
		"ping": "", "logging/setLevel": `{"level":"info"}`,
		"resources/subscribe": `{"uri":"test://r"}`, "resources/unsubscribe": `{"uri":"test://r"}`,
	} {
		if got, err := s.Request(t.Context(), method, json.RawMessage(params)); err != nil || string(got) != "{}" {
			t.Errorf("%s: %s, %v", method, got, err)
		}
	}
	if got, err := s.Request(t.Context(), "logging/setLevel", json.RawMessage(`{"level":7}`)); !errors.Is(err, ErrBadParams) {
		t.Errorf("an invalid level: %s, %v", got, err)
	}
	if _, err := s.Request(t.Context(), "notifications/x", nil); err == nil {
		t.Error("a notification as a request: no error")
	}
	// Methods become known while other requests are under way.
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := s.Request(t.Context(), "acme/search", nil); err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			s.Request(ctx, fmt.Sprint("acme/silent", i), nil)
		})
	}
	wg.Wait()
	wantCall(t, s, "any", nil, "odd")
}

// A request that times out leaves the connection and the server running.
func TestD6_Timeout_KeepsConnection(t *testing.T) {
	def := program("srv", "good")
	def.Timeouts.Request = 200 * time.Millisecond
	s := session(t, manager(t, Options{}, def), "srv")
	pid, err := call(t, s, "pid", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = call(t, s, "wait", nil)
	var timeout interface{ Timeout() bool }
	if !errors.As(err, &timeout) || !strings.Contains(err.Error(), `call tool "wait" of mcp server "srv": no answer within 200ms`) {
		t.Errorf("got %v", err)
	}
	wantCall(t, s, "pid", nil, pid)
}

// Successive requests reuse one HTTP connection, although the context of each ends
// before the server has ended the response stream.
func TestHTTP_ReusesConnection(t *testing.T) {
	var made atomic.Int32
	serve := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer() }, nil)
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve.ServeHTTP(w, r)
		if r.Method == http.MethodPost {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond) // the end comes after the answer
		}
	}))
	ts.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	ts.Start()
	t.Cleanup(ts.Close)
	s := session(t, manager(t, Options{}, endpoint("srv", ts.URL)), "srv")
	const calls = 20
	for range calls {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "pid"})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // who comes before the end needs another connection
	}
	if n := made.Load(); n > calls/2 {
		t.Errorf("%d calls took %d connections", calls, n)
	}
}

func TestD6_PendingRequests_Bounded(t *testing.T) {
	s := session(t, manager(t, Options{Limits: Limits{PendingRequests: 3}}, program("srv", "good")), "srv")
	wantCall(t, s, "echo", map[string]any{"text": "up"}, "up")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { s.CallTool(ctx, &mcp.CallToolParams{Name: "wait"}) })
	}
	until(t, "the calls begin", func() bool { return len(s.pending) == 3 })
	if _, err := call(t, s, "echo", nil); err == nil || !strings.Contains(err.Error(), "too many pending requests (limit: 3)") {
		t.Errorf("got %v", err)
	}
	cancel()
	wg.Wait()
	wantCall(t, s, "echo", map[string]any{"text": "on"}, "on")
}

// A call that crashes the server fails with the cause and is not repeated. The next
// call starts the server again.
func TestD6_Crash_IsNotRepeated(t *testing.T) {
	s := session(t, manager(t, Options{}, program("srv", "good")), "srv")
	first, err := call(t, s, "pid", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, "crash", nil); err == nil || !strings.Contains(err.Error(), "exit status 3; it last wrote: out of luck") {
		t.Errorf("got %v", err)
	}
	second, err := call(t, s, "pid", nil)
	if err != nil || second == first {
		t.Errorf("after the crash: %s, %v, before %s", second, err, first)
	}
}

// If a server over HTTP has lost the session, the request is repeated in a new one: the
// server has not processed it.
func TestLostSession_RequestIsRepeated(t *testing.T) {
	var mu sync.Mutex
	var h http.Handler
	var calls int
	renew := func() {
		mu.Lock()
		defer mu.Unlock()
		server := newServer()
		server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "tools/call" {
					mu.Lock()
					calls++
					mu.Unlock()
				}
				return next(ctx, method, req)
			}
		})
		h = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	}
	renew()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now := h
		mu.Unlock()
		now.ServeHTTP(w, r)
	}))
	t.Cleanup(ts.Close)
	s := session(t, manager(t, Options{}, endpoint("srv", ts.URL)), "srv")
	wantCall(t, s, "echo", map[string]any{"text": "a"}, "a")
	renew()
	wantCall(t, s, "echo", map[string]any{"text": "b"}, "b")
	if calls != 2 {
		t.Errorf("%d calls arrived, want 2", calls)
	}
}

// A request in flight may have been executed, so it is not repeated because another
// request finds the session unknown.
func TestD6_LostSession_RequestInFlightIsNotRepeated(t *testing.T) {
	var sessions, slow atomic.Int32
	begun := make(chan struct{}, 2)
	url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
		switch {
		case m.Method == "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", sessions.Add(1)))
		case m.Params.Name == "slow":
			slow.Add(1)
			events(w) // it has begun to answer
			begun <- struct{}{}
			<-r.Context().Done()
			return true
		case m.Params.Name == "other" && r.Header.Get("Mcp-Session-Id") == "s1":
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	})
	s := session(t, manager(t, Options{Limits: Limits{Request: patience}}, endpoint("srv", url)), "srv")
	done := make(chan error, 1)
	go func() { _, err := call(t, s, "slow", nil); done <- err }()
	<-begun
	wantCall(t, s, "other", nil, "good")
	if err := <-done; err == nil {
		t.Error("the call in flight: no error")
	}
	if n := slow.Load(); n != 1 {
		t.Errorf("the call in flight was made %d times", n)
	}
}

func TestToolFilter(t *testing.T) {
	def := program("srv", "good")
	def.Tools = mcpjson.ToolFilter{Allow: []string{"e*"}, Deny: []string{"env"}}
	s := session(t, manager(t, Options{}, def), "srv")
	tools, err := s.Tools(t.Context())
	if err != nil || len(tools) != 1 || tools[0].Name != "echo" {
		t.Errorf("%d tools, %v", len(tools), err)
	}
	if _, err := call(t, s, "env", nil); !errors.Is(err, ErrToolDenied) {
		t.Errorf("call: %v", err)
	}
	for params, want := range map[string]error{
		`{"name":"env"}`:                ErrToolDenied,
		`{"name":"echo","name":"env"}`:  ErrToolDenied,
		`{"name":"env","Name":"echo"}`:  ErrBadParams,
		`{"name":"echo","NAME":"env"}`:  ErrBadParams,
		`{"name":["env"]}`:              ErrBadParams,
		`{"arguments":{"name":"echo"}}`: ErrBadParams,
		``:                              ErrBadParams,
	} {
		if got, err := s.Request(t.Context(), "tools/call", json.RawMessage(params)); !errors.Is(err, want) {
			t.Errorf("request %s: %s, %v, want %v", params, got, err, want)
		}
	}
	got, err := s.Request(t.Context(), "tools/call", json.RawMessage(`{"name":"env","name":"echo","arguments":{"text":"said"}}`))
	if err != nil || !bytes.Contains(got, []byte(`"said"`)) {
		t.Errorf("request of an allowed tool: %s, %v", got, err)
	}
}

func TestD3_Manager_Sessions(t *testing.T) {
	off := program("off", "good")
	off.Disabled = true
	m := manager(t, Options{}, program("a", "good"), off)
	if _, err := m.Session("off"); !errors.Is(err, ErrDisabled) {
		t.Errorf("a disabled server: %v", err)
	}
	_, err := m.Session("b")
	if want := `use mcp server "b": no server of that name; the servers are: a`; !errors.Is(err, ErrNoServer) || err.Error() != want {
		t.Errorf("an unknown server: %v, want %s", err, want)
	}
	s := session(t, m, "a")
	if again := session(t, m, "a"); again != s {
		t.Error("another session for the same server")
	}
	released, ok := m.Release("a")
	if !ok || released != s {
		t.Error("not released")
	}
	wantCall(t, s, "echo", map[string]any{"text": "x"}, "x")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantCall(t, s, "echo", map[string]any{"text": "mine"}, "mine")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := call(t, s, "echo", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	if _, err := m.Session("a"); !errors.Is(err, ErrClosed) {
		t.Errorf("session of a closed manager: %v", err)
	}
}

// A released session outlives the manager, including a connection that depends on a
// stream and one made later.
func TestD3_Release_SessionOutlivesManager(t *testing.T) {
	for name, def := range servers(t) {
		t.Run(name, func(t *testing.T) {
			m := manager(t, Options{}, def)
			s := session(t, m, name)
			wantCall(t, s, "echo", map[string]any{"text": "before"}, "before")
			m.Release(name)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			wantCall(t, s, "echo", map[string]any{"text": "after"}, "after")
			if name == "stdio" {
				if _, err := call(t, s, "crash", nil); err == nil {
					t.Error("a crash: no error")
				}
				wantCall(t, s, "echo", map[string]any{"text": "anew"}, "anew")
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Close also waits for a program that is just being started.
func TestClose_WhileConnecting(t *testing.T) {
	var stderr closer
	started := make(chan struct{})
	m := manager(t, Options{Era: Legacy, Limits: Limits{Connect: patience}, Stderr: func(string) io.WriteCloser {
		close(started)
		return &stderr
	}}, program("srv", "never"))
	s, done := session(t, m, "srv"), make(chan error, 1)
	go func() { _, err := s.Initialize(t.Context()); done <- err }()
	<-started
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	stderr.mu.Lock()
	defer stderr.mu.Unlock()
	if stderr.closed != 1 {
		t.Error("the program is still running")
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestD3_ConnectIO(t *testing.T) {
	m := manager(t, Options{})
	here, there := net.Pipe()
	ss, err := newServer().Connect(t.Context(), &mcp.IOTransport{Reader: there, Writer: there}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ss.Close()
	s, err := m.ConnectIO(t.Context(), "mine", here)
	if err != nil {
		t.Fatal(err)
	}
	wantCall(t, s, "echo", map[string]any{"text": "x"}, "x")
	if again := session(t, m, "mine"); again != s {
		t.Error("another session")
	}
	other, _ := net.Pipe()
	if _, err := m.ConnectIO(t.Context(), "mine", other); err == nil {
		t.Error("a second session of that name: no error")
	}
}

func TestEnvironmentOfPrograms(t *testing.T) {
	environ := func() []string { return []string{"PATH=/bin", "HOME=/home/u", "SECRET=hunter2", "PASSED=yes"} }
	def := program("srv", "good")
	def.PassEnv = []string{"PASSED"}
	lookup := func(name string) (string, bool) {
		for _, kv := range environ() {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v, true
			}
		}
		return "", false
	}
	s := session(t, manager(t, Options{Environ: environ, Resolver: mcpjson.Resolver{Env: lookup}}, def), "srv")
	for name, want := range map[string]string{"SECRET": " false", "PASSED": "yes true", "HOME": "/home/u true", "PATH": "/bin true"} {
		wantCall(t, s, "env", map[string]any{"text": name}, want)
	}
	def.InheritEnv = true
	s = session(t, manager(t, Options{Environ: environ, Resolver: mcpjson.Resolver{Env: lookup}}, def), "srv")
	wantCall(t, s, "env", map[string]any{"text": "SECRET"}, "hunter2 true")
}

// Close ends requests in flight, including those over a retired connection and those
// that wait for the user.
func TestClose_RequestsInFlight(t *testing.T) {
	over := make(chan struct{}) // not every server ends a call with its connection
	get := func(*http.Request) *mcp.Server {
		s := newServer()
		mcp.AddTool(s, &mcp.Tool{Name: "wait", Description: "wait"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
			<-over
			return nil, nil, errors.New("too late")
		})
		return s
	}
	all := []*mcpjson.Server{program("stdio", "good")}
	for name, stateless := range map[string]bool{"stateful": false, "stateless": true} {
		ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: stateless}))
		t.Cleanup(ts.Close)
		all = append(all, endpoint(name, ts.URL))
	}
	sse := httptest.NewServer(mcp.NewSSEHandler(get, nil))
	t.Cleanup(sse.Close)
	all = append(all, &mcpjson.Server{Name: "sse", Transport: mcpjson.TransportSSE, URL: mcpjson.Literal(sse.URL)})
	t.Cleanup(func() { close(over) })
	for _, def := range all {
		t.Run(def.Name, func(t *testing.T) {
			asked, heard, done := make(chan struct{}, 1), make(chan struct{}, 1), make(chan error, 3)
			m := manager(t, Options{Limits: Limits{Request: time.Hour, Question: time.Hour}, Hooks: Hooks{
				Progress: func(context.Context, string, *mcp.ProgressNotificationParams) { heard <- struct{}{} },
				Roots:    func(context.Context, string) ([]*mcp.Root, error) { return []*mcp.Root{{URI: "file:///"}}, nil },
				Elicit: func(ctx context.Context, _ string, _ *mcp.ElicitParams) (*mcp.ElicitResult, error) {
					asked <- struct{}{}
					<-ctx.Done()
					return nil, context.Cause(ctx)
				},
			}}, def)
			s := session(t, m, def.Name)
			wait := func() {
				params := &mcp.CallToolParams{Name: "wait"}
				params.SetProgressToken("p")
				_, err := s.CallTool(t.Context(), params)
				done <- err
			}
			go wait()
			<-heard
			s.mu.Lock()
			l := s.connection
			s.mu.Unlock()
			s.subscriptionEnded(l.state)
			go wait()
			<-heard
			calls := 2
			if def.Name != "sse" { // whose server in the SDK would wait for the answer for ever
				calls++
				go func() { _, err := call(t, s, "rounds", map[string]any{"until": "never"}); done <- err }()
				<-asked
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			for range calls {
				if err := <-done; !errors.Is(err, ErrClosed) {
					t.Errorf("got %v, want ErrClosed", err)
				}
			}
		})
	}
}

// A hook may send a request to the server whose connection is just being lost.
func TestHook_RequestDuringConnectionLoss(t *testing.T) {
	for _, notification := range []bool{false, true} {
		var s *Session
		again := make(chan error, 1)
		use := func() {
			if _, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "crash"}); err == nil {
				t.Error("a crash: no error")
			}
			_, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "x"}})
			again <- err
		}
		tool, hooks := "ask", Hooks{Elicit: func(context.Context, string, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			use()
			return &mcp.ElicitResult{Action: "decline"}, nil
		}}
		if notification {
			once := sync.OnceFunc(use) // the new connection tells of its lists as well
			tool, hooks = "grow", Hooks{ListChanged: func(context.Context, string, string) { once() }}
		}
		s = session(t, manager(t, Options{Era: Legacy, Hooks: hooks}, program("srv", "good")), "srv")
		_, _ = call(t, s, tool, nil) // may hear of the crash
		if err := <-again; err != nil {
			t.Errorf("after the crash: %v", err)
		}
	}
}
