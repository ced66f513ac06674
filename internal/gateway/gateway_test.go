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
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// TestMain runs a server instead of the tests if the environment says so.
func TestMain(m *testing.M) {
	name := os.Getenv("GATEWAY_TEST_SERVER")
	if name == "" {
		os.Exit(proctest.Main(m))
	}
	gatewaytest.Note(os.Getenv("GATEWAY_TEST_NOTES"), name)
	s := gatewaytest.New(name, os.Getenv("GATEWAY_TEST_NOTES"))
	if err := s.Run(context.Background(), &mcp.IOTransport{Reader: os.Stdin, Writer: tasksOnly{os.Stdout}}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tasksOnly marks the tool shout of the server named tasks as one that only runs as a
// task, which the SDK's servers cannot declare.
type tasksOnly struct{ io.WriteCloser }

func (t tasksOnly) Write(p []byte) (int, error) {
	text := string(p)
	if os.Getenv("GATEWAY_TEST_SERVER") == "tasks" {
		text = strings.ReplaceAll(text, `"name":"shout"`, `"name":"shout","execution":{"taskSupport":"required"}`)
	}
	if _, err := io.WriteString(t.WriteCloser, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// A world is a gateway with a client.
type world struct {
	*mcp.ClientSession
	g        *Gateway
	changed  chan struct{}
	progress chan *mcp.ProgressNotificationParams
}

// options returns the options of a gateway to servers of those names, with notes and
// cache in dir.
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
		Servers:  mcpkit.Options{Config: cfg, Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return trust, nil }},
		Listings: listing.Open(filepath.Join(dir, "offers.json")),
	}
}

// register returns a new gateway and the server that it is registered with.
func register(t *testing.T, o Options) (*Gateway, *mcp.Server) {
	t.Helper()
	g := New(o)
	return g, serverOf(g)
}

// serverOf returns a server that g is registered with.
func serverOf(g *Gateway) *mcp.Server {
	so := &mcp.ServerOptions{Capabilities: Capabilities()}
	g.Configure(so)
	s := mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"}, so)
	s.AddReceivingMiddleware(g.Middleware)
	g.Register(s)
	return s
}

// open connects a client to a new gateway.
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

func TestGateway_TwoServersCachedListing(t *testing.T) {
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
		t.Error("a tool's name without its server: no error")
	}
	w.ClientSession.Close()
	if err := w.g.Close(); err != nil {
		t.Fatal(err)
	}

	// Cached listings start no server until one is used.
	if err := os.Remove(filepath.Join(dir, "notes")); err != nil {
		t.Fatal(err)
	}
	w = open(t, dir, mcpkit.Trusted, "a", "b")
	if diff := cmp.Diff(want, w.names(t)); diff != "" {
		t.Fatalf("tools of the cached listing (-want +got)\n%s", diff)
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

func TestRefresh_NotifiesClientsOfChanges(t *testing.T) {
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
			t.Fatalf("no list_changed notification; tools: %v", w.names(t))
		}
		if slices.Equal(w.names(t), want) {
			break
		}
	}
	if got := w.say(t, "a__new"); got != "new" {
		t.Errorf("got %q", got)
	}
}

// A server may send any number of changes; the gateway lists it only once for many.
func TestRefresh_CoalescesChanges(t *testing.T) {
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
	<-g.firstListed
	const changes = 1000
	for range changes {
		g.refresh("a")
	}
	until(t, "the server is asked no more", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.refreshing) == 0
	})
	if n := lists.Load(); n < 2 || n > 4 {
		t.Errorf("%d changes made %d lists", changes, n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A tool that becomes invalid disappears, and returns when it is valid again.
func TestPublish_InvalidToolIsLeftOut(t *testing.T) {
	g, s := register(t, options(t.TempDir(), mcpkit.Trusted))
	tool := func(schema string) listing.Entry {
		return listing.Entry{Tools: []*mcp.Tool{{Name: "t", InputSchema: map[string]any{"type": schema}}}}
	}
	p := join(t, s, "ann", "2025-11-25", false)
	for _, c := range []struct {
		schema string
		tools  int
	}{{"object", 1}, {"string", 0}, {"object", 1}} {
		g.publish("a", tool(c.schema), true)
		res, err := p.ListTools(t.Context(), nil)
		if err != nil || len(res.Tools) != c.tools || g.HasTool("a__t") != (c.tools > 0) {
			t.Errorf("a schema of type %s: %+v, %v, want %d tools", c.schema, res, err, c.tools)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A resource or template that several servers list is offered by none of them: each could
// answer for another. When one server lists it alone, clients get it from that server.
func TestPublish_URIOfSeveralServers(t *testing.T) {
	g, s := register(t, options(t.TempDir(), mcpkit.Trusted))
	p := join(t, s, "ann", "2025-11-25", false)
	of := func(name string) listing.Entry {
		return listing.Entry{
			Resources: []*mcp.Resource{{Name: name, URI: "x://r"}},
			Templates: []*mcp.ResourceTemplate{{Name: name, URITemplate: "x://t/{id}"}},
		}
	}
	for _, c := range []struct {
		server string
		shows  listing.Entry
		want   string   // name of what clients see
		owners []string // of a read
	}{
		{"b", of("b"), "b", []string{"b"}},
		{"a", of("a"), "", []string{"a", "b"}},
		{"a", of("a2"), "", []string{"a", "b"}},
		{"b", listing.Entry{}, "a2", []string{"a"}},
		{"a", of("a3"), "a3", []string{"a"}},
		{"b", of("b"), "", []string{"a", "b"}},
		{"a", listing.Entry{}, "b", []string{"b"}},
		{"b", listing.Entry{}, "", nil},
	} {
		g.publish(c.server, c.shows, true)
		var got, want []string
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
		if c.want != "" {
			want = []string{c.want, c.want}
		}
		if owners := g.resourceServers("x://r"); !slices.Equal(got, want) || !slices.Equal(owners, c.owners) {
			t.Errorf("%s shows %d: got %q of %q, want %q of %q", c.server, len(c.shows.Resources), got, owners, want, c.owners)
		}
		for _, uri := range []string{"x://r", "x://t/1"} {
			_, err := p.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err == nil || strings.Contains(err.Error(), "several servers have the resource") != (len(c.owners) > 1) {
				t.Errorf("%s shows %d: read %s: %v", c.server, len(c.shows.Resources), uri, err)
			}
		}
		err = p.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "x://r"})
		if err == nil || strings.Contains(err.Error(), "several servers have the resource") != (len(c.owners) > 1) {
			t.Errorf("%s shows %d: subscribe: %v", c.server, len(c.shows.Resources), err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A URI that templates of several servers match belongs to none of them, unless one
// server lists it. Templates that name no scheme match only what nobody else has.
func TestResourceServers_OverlappingTemplates(t *testing.T) {
	g, _ := register(t, options(t.TempDir(), mcpkit.Trusted))
	for server, template := range map[string]string{"a": "y://r/{id}", "b": "y://r/{id}/whole", "c": "y://{+path}", "d": "y://r/{?q}", "f": "{+uri}", "g": "{scheme}://r{/id}", "h": "y{+rest}"} {
		g.publish(server, listing.Entry{Templates: []*mcp.ResourceTemplate{{Name: server, URITemplate: template}}}, true)
	}
	g.publish("e", listing.Entry{Resources: []*mcp.Resource{{Name: "e", URI: "y://r/listed"}}}, true)
	for uri, want := range map[string]string{"y://r/1": "a c", "y://r/1/whole": "b c", "y://r/1/half": "c", "y://r/?q=1": "c d", "y://r/listed": "e",
		"z://q": "f", "z://r/1": "f g", "yy://r/1": "f g h", "no URI": ""} {
		if got := strings.Join(g.resourceServers(uri), " "); got != want {
			t.Errorf("%s: got %q, want %q", uri, got, want)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A server whose templates match everything does not take away the resources of others,
// and does not answer for them.
func TestReadResource_GreedyTemplates(t *testing.T) {
	w := open(t, t.TempDir(), mcpkit.Trusted, "a", gatewaytest.Greedy)
	w.names(t)
	for uri, want := range map[string]string{"note://a/one": "a note", "note://greedy/one": "a note", "note://b/one": "taken", "x://y": "taken"} {
		res, err := w.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil || len(res.Contents) != 1 || res.Contents[0].Text != want {
			t.Errorf("read %s: got %+v, %v, want %q", uri, res, err, want)
		}
	}
	if err := w.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "note://a/one"}); err != nil {
		t.Errorf("subscribe: %v", err)
	}
}

func TestTool_ProgressAndCancel(t *testing.T) {
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
	until(t, "the server is cancelled", func() bool { return strings.Contains(notes(t, dir), "cancelled") })
}

// An untrusted server's cached listing stays hidden until the user trusts it; the log
// names the command. A call of a server that is no longer trusted says so, and hides
// it.
func TestUntrustedServer_HiddenUntilTrusted(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, mcpkit.Trusted, "a")
	w.names(t)
	w.ClientSession.Close()
	w.g.Close()

	var trusted, changed atomic.Bool
	var log polltest.Buffer
	o := options(dir, mcpkit.Untrusted, "a")
	o.Servers.Trust = func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) {
		if trusted.Load() {
			return mcpkit.Trusted, nil
		}
		if changed.Load() {
			return mcpkit.Untrusted, errors.Join(mcpkit.ErrUntrusted, mcpkit.ErrChanged)
		}
		return mcpkit.Untrusted, nil
	}
	o.TrustCommand = func(server string) string { return "allow " + server }
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
	// A client with an outdated list reads why, whichever of the server's tools it calls.
	for _, name := range []string{"a__say", "a__gone"} {
		wantTrouble(t, p, name, `The server "a" is not trusted. Its user can allow it with: allow a`)
	}
	if _, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "b__say"}); err == nil {
		t.Error("a call of an unknown tool succeeded")
	}
	if text := log.String(); strings.Count(text, "server not listed: trust it first") != 1 || !strings.Contains(text, `command="allow a"`) {
		t.Errorf("the log is\n%s", text)
	}
	trusted.Store(true)
	// A call after the user trusts it needs no new list.
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
		t.Errorf("%d tools of a refused server are listed", n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	changed.Store(true)
	g, s = register(t, o)
	p = join(t, s, "ann", "2025-11-25", false)
	if n := tools(); n != 0 {
		t.Errorf("%d tools of a server that has changed are listed", n)
	}
	const text = `The server "a" is not trusted any more: its definition or a file that it runs has changed since its user approved it. Its user can review and allow it with: allow a`
	wantTrouble(t, p, "a__say", text)
	if why := g.WhyUnavailable(t.Context(), "a", "say"); why == nil || why.Reason != ReasonUntrusted || why.Text != text {
		t.Errorf("a program reads %+v", why)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// wantTrouble calls a tool and checks the error in its result.
func wantTrouble(t *testing.T, p *gatewaytest.Person, tool, want string) {
	t.Helper()
	res, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"text": "x"}})
	if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, want) {
		t.Errorf("call %s: got %+v, %v, want %s", tool, res, err, want)
	}
}

// A tool that only runs as a task is left out, also of cached listings, and logged
// once; a call of it says why.
func TestWithoutTaskTools_LeftOutAndLoggedOnce(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		var log polltest.Buffer
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
			wantTrouble(t, p, "tasks__shout", `only runs as a task, which glovebox mcp does not support yet`)
			if text, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "tasks__say", Arguments: map[string]any{"text": "x"}}); err != nil || text.IsError {
				t.Errorf("%s: %+v, %v", version, text, err)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, "only run as tasks") != 1 || !strings.Contains(text, "tools=[shout]") {
			t.Errorf("the log is\n%s", text)
		}
	}
}

func TestUnavailableServer_CallReturnsReason(t *testing.T) {
	o := options(t.TempDir(), mcpkit.Trusted, "a")
	o.Servers.Config.Servers[0].Command = mcpjson.Literal("/no/such/program")
	g, s := register(t, o)
	wantTrouble(t, join(t, s, "ann", "2025-11-25", false), "a__say", `The server "a" is not available: `)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestNames_UniqueAndValid(t *testing.T) {
	n := newNames([]string{"a", "a b", "a_b", "é", "a__b"})
	long := strings.Repeat("x", 100)
	seen := make(map[string]bool)
	for _, pair := range [][2]string{{"a", "b"}, {"a b", "c"}, {"a_b", "c"}, {"a", long}, {"a", long + "y"}, {"é", "/"}, {"a", "b__c"}, {"a__b", "c"}} {
		name := n.assign(pair[0], pair[1])
		if len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			t.Errorf("%q is a name that not all clients accept", name)
		}
		if seen[name] || !n.has(name) || n.assign(pair[0], pair[1]) != name {
			t.Errorf("%q is not unique or not stable", name)
		}
		seen[name] = true
	}
	if name := n.release("a", "b"); name != "a__b" || n.has(name) {
		t.Errorf("%q was not released", name)
	}
}
