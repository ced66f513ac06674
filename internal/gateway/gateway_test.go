package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// TestMain is a server where the environment says so. It notes that it was started.
func TestMain(m *testing.M) {
	name := os.Getenv("GATEWAY_TEST_SERVER")
	if name == "" {
		os.Exit(m.Run())
	}
	gatewaytest.Note(os.Getenv("GATEWAY_TEST_NOTES"), name)
	s := gatewaytest.New(name, os.Getenv("GATEWAY_TEST_NOTES"))
	if err := s.Run(context.Background(), &mcp.IOTransport{Reader: os.Stdin, Writer: tasksOnly{os.Stdout}}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tasksOnly makes the tool shout in messages one that runs as a task only, which the
// SDK's servers cannot say, if the server is the one named tasks.
type tasksOnly struct{ io.WriteCloser }

func (w tasksOnly) Write(p []byte) (int, error) {
	text := string(p)
	if os.Getenv("GATEWAY_TEST_SERVER") == "tasks" {
		text = strings.ReplaceAll(text, `"name":"shout"`, `"name":"shout","execution":{"taskSupport":"required"}`)
	}
	if _, err := io.WriteString(w.WriteCloser, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// world is a gateway and a client of it.
type world struct {
	*mcp.ClientSession
	g        *Gateway
	changed  chan struct{}
	progress chan *mcp.ProgressNotificationParams
}

// options are those of a gateway to servers of those names. The notes and what is
// remembered are in dir.
func options(dir string, trust mcpkit.Trust, servers ...string) Options {
	cfg := &mcpjson.Config{}
	for _, name := range servers {
		cfg.Servers = append(cfg.Servers, &mcpjson.Server{
			Name: name, Transport: mcpjson.TransportStdio, Command: mcpjson.Literal(os.Args[0]), Dir: dir,
			Env: []mcpjson.Pair{
				{Name: "GATEWAY_TEST_SERVER", Value: mcpjson.Literal(name)},
				{Name: "GATEWAY_TEST_NOTES", Value: mcpjson.Literal(filepath.Join(dir, "notes"))},
			},
		})
	}
	return Options{
		Servers: mcpkit.Options{Config: cfg, Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return trust, nil }},
		Offers:  listing.Open(filepath.Join(dir, "offers.json")),
	}
}

// register has a server offer what a new gateway offers.
func register(t *testing.T, o Options) (*Gateway, *mcp.Server) {
	t.Helper()
	g := New(o)
	so := &mcp.ServerOptions{Capabilities: Capabilities()}
	g.Configure(so)
	s := mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"}, so)
	s.AddReceivingMiddleware(g.Middleware)
	g.Register(s)
	return g, s
}

// open makes a gateway, and a client of it.
func open(t *testing.T, dir string, trust mcpkit.Trust, servers ...string) *world {
	t.Helper()
	g, s := register(t, options(dir, trust, servers...))
	w := &world{g: g, changed: make(chan struct{}, 100), progress: make(chan *mcp.ProgressNotificationParams, 100)}
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { w.changed <- struct{}{} },
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { w.progress <- r.Params },
	})
	var err error
	if w.ClientSession, err = c.Connect(t.Context(), here, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.ClientSession.Close()
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

func (w *world) names(t *testing.T) (names []string) {
	t.Helper()
	for tool, err := range w.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}

func (w *world) say(t *testing.T, tool string) string {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool}
	if strings.HasSuffix(tool, "__say") {
		params.Arguments = map[string]any{"text": "hello"}
	}
	res, err := w.CallTool(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Content) == 0 {
		return ""
	}
	return res.Content[0].(*mcp.TextContent).Text
}

func notes(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "notes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

func TestManyServersAsOne(t *testing.T) {
	dir := t.TempDir()
	want := []string{"a__ask", "a__change", "a__crash", "a__learn", "a__say", "a__shout", "a__wait", "b__ask", "b__change", "b__crash", "b__learn", "b__say", "b__shout", "b__wait"}
	w := open(t, dir, mcpkit.Trusted, "a", "b")
	if diff := cmp.Diff(want, w.names(t)); diff != "" {
		t.Fatalf("tools (-want +got)\n%s", diff)
	}
	if got := w.say(t, "b__say"); got != "b says hello" {
		t.Errorf("got %q", got)
	}
	if _, err := w.CallTool(t.Context(), &mcp.CallToolParams{Name: "say"}); err == nil {
		t.Error("a tool without its server: no error")
	}
	w.ClientSession.Close()
	if err := w.g.Close(); err != nil {
		t.Fatal(err)
	}

	// What was learnt is offered without starting anything, until it is used.
	if err := os.Remove(filepath.Join(dir, "notes")); err != nil {
		t.Fatal(err)
	}
	w = open(t, dir, mcpkit.Trusted, "a", "b")
	if diff := cmp.Diff(want, w.names(t)); diff != "" {
		t.Fatalf("tools from what is remembered (-want +got)\n%s", diff)
	}
	if got := notes(t, dir); got != "" {
		t.Errorf("a list started %q", got)
	}
	if got := w.say(t, "a__say"); got != "a says hello" {
		t.Errorf("got %q", got)
	}
	if got := notes(t, dir); got != "a\n" {
		t.Errorf("a call of a started %q", got)
	}
}

func TestChangesArePassedOn(t *testing.T) {
	w := open(t, t.TempDir(), mcpkit.Trusted, "a")
	w.names(t)
	for len(w.changed) > 0 {
		<-w.changed
	}
	w.say(t, "a__learn")
	want := []string{"a__ask", "a__change", "a__crash", "a__learn", "a__new", "a__shout", "a__wait"}
	for end := time.After(20 * time.Second); ; {
		select {
		case <-w.changed:
		case <-end:
			t.Fatalf("no news of the change; tools: %v", w.names(t))
		}
		if slices.Equal(w.names(t), want) {
			break
		}
	}
	if got := w.say(t, "a__new"); got != "new" {
		t.Errorf("got %q", got)
	}
}

// A server may say that it has changed as often as it likes: it is asked for all of
// that at once.
func TestManyChangesAreLearntTogether(t *testing.T) {
	var lists atomic.Int64
	o := overHTTP(t, mcpkit.Legacy, func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "tools/list" {
				lists.Add(1)
			}
			return next(ctx, method, req)
		}
	})
	g, _ := register(t, o)
	<-g.first
	const changes = 1000
	for range changes {
		g.learn("a")
	}
	until(t, "the server is asked no more", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.asking) == 0
	})
	if n := lists.Load(); n < 2 || n > 4 {
		t.Errorf("%d changes made %d lists", changes, n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A tool that a server makes wrong is gone, and is back when it is right again.
func TestAToolThatBecomesWrong(t *testing.T) {
	g, s := register(t, options(t.TempDir(), mcpkit.Trusted))
	tool := func(schema string) listing.Offer {
		return listing.Offer{Tools: []*mcp.Tool{{Name: "t", InputSchema: map[string]any{"type": schema}}}}
	}
	p := join(t, s, "ann", "2025-11-25", false)
	for _, c := range []struct {
		schema string
		tools  int
	}{{"object", 1}, {"string", 0}, {"object", 1}} {
		g.show("a", tool(c.schema), true)
		res, err := p.ListTools(t.Context(), nil)
		if err != nil || len(res.Tools) != c.tools || g.Offers("a__t") != (c.tools > 0) {
			t.Errorf("a schema of type %s: %+v, %v, want %d tools", c.schema, res, err, c.tools)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// No server takes an address from another that offers it; once it does not, the other
// has it.
func TestAnAddressStaysWithItsServer(t *testing.T) {
	g, s := register(t, options(t.TempDir(), mcpkit.Trusted))
	p := join(t, s, "ann", "2025-11-25", false)
	of := func(name string) listing.Offer {
		return listing.Offer{
			Resources: []*mcp.Resource{{Name: name, URI: "x://r"}},
			Templates: []*mcp.ResourceTemplate{{Name: name, URITemplate: "x://t/{id}"}},
		}
	}
	for _, c := range []struct {
		server string
		shows  listing.Offer
		want   string // whose it is then
	}{{"a", of("a"), "a"}, {"b", of("b"), "a"}, {"a", of("a2"), "a2"}, {"b", of("b"), "a2"}, {"a", listing.Offer{}, "b"}, {"a", of("a"), "b"}, {"b", listing.Offer{}, "a"}, {"a", listing.Offer{}, ""}} {
		g.show(c.server, c.shows, true)
		got := []string{}
		resources, err := p.ListResources(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resources.Resources {
			got = append(got, r.Name)
		}
		templates, err := p.ListResourceTemplates(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range templates.ResourceTemplates {
			got = append(got, r.Name)
		}
		want := []string{c.want, c.want}
		if c.want == "" {
			want = []string{}
		}
		owner, _ := g.owner("x://r")
		if !slices.Equal(got, want) || owner != strings.TrimRight(c.want, "2") {
			t.Errorf("%s shows %d: got %q of %q, want %q", c.server, len(c.shows.Resources), got, owner, want)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestOwner: who is told of a resource's changes is told by the server that it is
// read from, where several templates begin alike.
func TestOwner(t *testing.T) {
	g, _ := register(t, options(t.TempDir(), mcpkit.Trusted))
	for server, template := range map[string]string{"a": "y://r/{id}", "b": "y://r/{id}/whole", "c": "y://{+path}", "d": "y://r/{?q}"} {
		g.show(server, listing.Offer{Templates: []*mcp.ResourceTemplate{{Name: server, URITemplate: template}}}, true)
	}
	for uri, want := range map[string]string{"y://r/1": "a", "y://r/1/whole": "b", "y://r/1/half": "c", "y://r/?q=1": "d", "z://r": ""} {
		for range 20 {
			if server, ok := g.owner(uri); server != want || ok != (want != "") {
				t.Fatalf("%s: got %q, want %q", uri, server, want)
			}
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestProgressAndCancel(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, mcpkit.Trusted, "a")
	w.names(t)
	ctx, cancel := context.WithCancel(t.Context())
	params := &mcp.CallToolParams{Name: "a__wait"}
	params.SetProgressToken("mine")
	done := make(chan error, 1)
	go func() { _, err := w.CallTool(ctx, params); done <- err }()
	if p := <-w.progress; p.Message != "here" || p.ProgressToken != "mine" {
		t.Errorf("progress %+v", p)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("a cancelled call: no error")
	}
	for end := time.Now().Add(20 * time.Second); !strings.Contains(notes(t, dir), "cancelled"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server does not hear of the cancel")
		}
	}
}

// A server that would be refused is not listed, although what it offers is
// remembered, until the user allows it; the log says what to type. One that is no
// longer allowed says so at its next call, and is listed no more.
func TestAServerThatIsNotTrusted(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, mcpkit.Trusted, "a")
	w.names(t)
	w.ClientSession.Close()
	w.g.Close()

	var trusted atomic.Bool
	var log lockedBuffer
	o := options(dir, mcpkit.Untrusted, "a")
	o.Servers.Trust = func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) {
		if trusted.Load() {
			return mcpkit.Trusted, nil
		}
		return mcpkit.Untrusted, nil
	}
	o.TrustLine = func(server string) string { return "allow " + server }
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	g, s := register(t, o)
	p := join(t, s, "ann", "2025-11-25", false)
	tools := func() int {
		res, err := p.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Tools)
	}
	for range 3 {
		if n := tools(); n != 0 {
			t.Fatalf("%d tools of a server that is not trusted are listed", n)
		}
	}
	// A client whose list is out of date reads why, whatever tool of the server it calls.
	for _, name := range []string{"a__say", "a__gone"} {
		wantTrouble(t, p, name, `The server "a" is not trusted. Its user can allow it with: allow a`)
	}
	if _, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "b__say"}); err == nil {
		t.Error("a tool of no server was called")
	}
	if text := log.String(); strings.Count(text, "server is not offered before you allow it") != 1 || !strings.Contains(text, `type="allow a"`) {
		t.Errorf("the log is\n%s", text)
	}
	trusted.Store(true)
	// That it is trusted now needs no new list.
	if res, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__say", Arguments: map[string]any{"text": "x"}}); err != nil || res.IsError {
		t.Errorf("call once the server is trusted: %+v, %v", res, err)
	}
	until(t, "the server is listed", func() bool { return tools() > 0 })

	if err := g.Close(); err != nil {
		t.Error(err)
	}
	g, s = register(t, o)
	p = join(t, s, "ann", "2025-11-25", false)
	if tools() == 0 {
		t.Fatal("a trusted server is not listed")
	}
	trusted.Store(false)
	wantTrouble(t, p, "a__say", `The server "a" is not trusted. Its user can allow it with: allow a`)
	if n := tools(); n != 0 {
		t.Errorf("%d tools are listed that were refused", n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// wantTrouble calls a tool and checks that the model reads why that fails.
func wantTrouble(t *testing.T, p *gatewaytest.Person, tool, want string) {
	t.Helper()
	res, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"text": "x"}})
	if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, want) {
		t.Errorf("call %s: got %+v, %v, want %s", tool, res, err, want)
	}
}

// A tool that runs as a task only is not listed, also from what is remembered, which the
// log says once; a client that calls it all the same reads why.
func TestToolsThatRequireTasksAreNotOffered(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		var log lockedBuffer
		o := options(dir, mcpkit.Trusted, "tasks")
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		g, s := register(t, o)
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			p := join(t, s, "ann", version, false)
			var names []string
			for tool, err := range p.Tools(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, tool.Name)
			}
			if !slices.Contains(names, "tasks__say") || slices.Contains(names, "tasks__shout") {
				t.Errorf("%s: the tools are %v", version, names)
			}
			wantTrouble(t, p, "tasks__shout", `runs as a task only, which glovebox mcp does not support yet`)
			if text, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "tasks__say", Arguments: map[string]any{"text": "x"}}); err != nil || text.IsError {
				t.Errorf("%s: %+v, %v", version, text, err)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, "run as tasks only") != 1 || !strings.Contains(text, "tools=[shout]") {
			t.Errorf("the log is\n%s", text)
		}
	}
}

// A client that calls a tool of a server that cannot be started reads why.
func TestAServerThatIsNotAvailable(t *testing.T) {
	o := options(t.TempDir(), mcpkit.Trusted, "a")
	o.Servers.Config.Servers[0].Command = mcpjson.Literal("/no/such/program")
	g, s := register(t, o)
	wantTrouble(t, join(t, s, "ann", "2025-11-25", false), "a__say", `The server "a" is not available: `)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// lockedBuffer is a buffer that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestNames(t *testing.T) {
	n := newNames()
	long := strings.Repeat("x", 100)
	seen := make(map[string]bool)
	for _, pair := range [][2]string{{"a", "b"}, {"a b", "c"}, {"a_b", "c"}, {"a", long}, {"a", long + "y"}, {"é", "/"}, {"a", "b__c"}, {"a__b", "c"}} {
		name := n.give(pair[0], pair[1])
		if len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			t.Errorf("%q is a name that not all clients take", name)
		}
		if seen[name] || !n.has(name) || n.give(pair[0], pair[1]) != name {
			t.Errorf("%q is not one tool's", name)
		}
		seen[name] = true
	}
	if name := n.take("a", "b"); name != "a__b" || n.has(name) {
		t.Errorf("%q was not given back", name)
	}
}
