package gateway

import (
	"context"
	"encoding/json"
	"errors"
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
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/gateway/pin"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// A server that never answers delays no call of another, and is reported as starting.
func TestServerTools_OtherServerHangs(t *testing.T) {
	o := options(t.TempDir(), mcpkit.Trusted, "good", "hangs")
	def := o.Servers.Config.Servers[1]
	def.Command, def.Args = mcpjson.Literal("sleep"), []mcpjson.Text{mcpjson.Literal("1000")}
	o.Servers.Limits.Grace = 10 * time.Millisecond
	g, _ := register(t, o)
	t.Cleanup(func() { g.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tools := g.ServerTools(ctx, "good")
	if len(tools) == 0 || ctx.Err() != nil {
		t.Errorf("%d tools, %v", len(tools), ctx.Err())
	}
	select {
	case <-g.firstListed:
		t.Error("the server that hangs was listed")
	default:
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if tools := g.ServerTools(short, "hangs"); len(tools) != 0 {
		t.Errorf("%d tools of the server that hangs", len(tools))
	}
	if why := g.WhyUnavailable(t.Context(), "hangs", "x"); why == nil || why.Reason != ReasonStarting || !strings.Contains(why.Text, `"hangs" is still starting`) {
		t.Errorf("got %+v", why)
	}
	// All lists together wait for a while after the start, and not again in each call.
	g.registered = time.Now().Add(-partWait)
	begun := time.Now()
	if tools := g.ServerTools(t.Context(), ""); len(tools) == 0 || time.Since(begun) > partWait/2 {
		t.Errorf("%d tools after %v", len(tools), time.Since(begun))
	}
}

// TestServerTools_NoneYet: as long as no server has tools, all lists together wait longer, and end
// when the first has.
func TestServerTools_NoneYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ tools, none, want time.Duration }{
			{time.Second, time.Hour, partWait},
			{partWait + time.Second, time.Hour, partWait + time.Second},
			{time.Hour, time.Hour, listWait},
			{time.Hour, time.Second, time.Second},
		} {
			g := New(Options{Servers: mcpkit.Options{Config: &mcpjson.Config{}}})
			g.registered = time.Now()
			tools := time.AfterFunc(test.tools, g.gotTools)
			none := time.AfterFunc(test.none, func() { close(g.firstListed); g.gotTools() })
			g.ServerTools(t.Context(), "")
			if got := time.Since(g.registered); got != test.want {
				t.Errorf("first tools after %v, all listed after %v: waited %v, want %v", test.tools, test.none, got, test.want)
			}
			tools.Stop()
			none.Stop()
			g.Close()
		}
	})
}

// Programs of others than the operator read no path, command or error of the host. The log
// has them.
func TestPrograms_HideHost(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "secret.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	upstream := gatewaytest.New("socket", filepath.Join(dir, "notes"))
	web := &http.Server{Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return upstream }, &mcp.StreamableHTTPOptions{Stateless: true})}
	go web.Serve(ln)
	t.Cleanup(func() { web.Close() })

	var log polltest.Buffer
	o := options(dir, mcpkit.Trusted, "changed", "gone", "untrusted", "dies")
	o.Servers.Config.Servers[1].Command = mcpjson.Literal(filepath.Join(dir, "secret-program"))
	o.Servers.Config.Servers = append(o.Servers.Config.Servers, &mcpjson.Server{Name: "socket", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal("unix://" + socket + "#/mcp")})
	o.Servers.Trust = func(_ context.Context, def *mcpjson.Server) (mcpkit.Trust, error) {
		if def.Name == "untrusted" {
			return mcpkit.Untrusted, nil
		}
		return mcpkit.Trusted, nil
	}
	o.Pins = pin.Open(filepath.Join(dir, "tools.json"))
	if _, err := o.Pins.Changed(t.Context(), o.Servers.Config.Servers[0].Hash(), []*mcp.Tool{{Name: "say", Description: "another one"}}); err != nil {
		t.Fatal(err)
	}
	command := func(verb string) func(string) string {
		return func(server string) string { return "glovebox mcp " + verb + " --config " + dir + " " + server }
	}
	o.TrustCommand, o.ReviewCommand, o.UnpinCommand = command("trust"), command("review"), command("unpin")
	o.Log, o.HideHost = slog.New(slog.NewTextHandler(&log, nil)), true
	g, _ := register(t, o)
	t.Cleanup(func() { g.Close() })
	ctx := t.Context()
	tools := make(map[string]ServerTool)
	for _, server := range []string{"changed", "dies", "socket", "gone", "untrusted"} {
		for _, tool := range g.ServerTools(ctx, server) {
			tools[server+"."+tool.Tool.Name] = tool
		}
	}
	web.Close()

	check := func(of, text, want string) {
		t.Helper()
		for _, secret := range []string{dir, "secret", "glovebox mcp"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q is told to programs", of, text)
				break
			}
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s: got %q, want %q", of, text, want)
		}
	}
	for server, want := range map[string]string{
		"changed":   "The operator can review it, and finds the command in the log.",
		"untrusted": "The operator can allow it, and finds the command in the log.",
		"gone":      "the operator finds the cause in the log",
	} {
		if why := g.WhyUnavailable(ctx, server, "say"); why == nil {
			t.Errorf("%s is available", server)
		} else {
			check(server, why.Text, want)
		}
	}
	_, err = g.CallTool(ctx, tools["socket.change"], nil)
	if err == nil {
		t.Fatal("a call of a server that is down succeeded")
	}
	check("a call of a server that is down", err.Error(), "the operator finds the cause in the log")
	_, err = g.CallTool(ctx, tools["dies.crash"], nil)
	if _, ended := errors.AsType[*mcpkit.ServerExitedError](err); !ended {
		t.Fatalf("got %v", err)
	}
	check("a call that ends the server", err.Error(), "ended: ")
	for _, want := range []string{"secret.sock", "secret-program", "glovebox mcp trust --config", "glovebox mcp review --config"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, log.String())
		}
	}
}

// The text about a server whose program ends names the place of the cause. It has neither the
// program's standard error nor, for others than the operator, a command.
func TestPrograms_ServerEnds(t *testing.T) {
	for _, c := range []struct {
		hideHost    bool
		start, call string // ends of the texts
	}{
		{false, "exit status 3; the user sees the cause with: glovebox mcp tools --config x crash", "; the log of Glovebox has the cause"},
		{true, "exit status 3, and the operator finds the cause in the log", ", and the operator finds the cause in the log"},
	} {
		o := options(t.TempDir(), mcpkit.Trusted, "crash", "dies")
		def := o.Servers.Config.Servers[0]
		def.Command, def.Args = mcpjson.Literal("sh"), []mcpjson.Text{mcpjson.Literal("-c"), mcpjson.Literal("echo DB_URL is not set >&2; exit 3")}
		var log polltest.Buffer
		o.HideHost, o.ToolsCommand = c.hideHost, func(server string) string { return "glovebox mcp tools --config x " + server }
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		g, _ := register(t, o)
		t.Cleanup(func() { g.Close() })
		g.ServerTools(t.Context(), "crash")
		if why := g.WhyUnavailable(t.Context(), "crash", "x"); why == nil || !strings.HasSuffix(why.Text, c.start) || strings.Contains(why.Text, "DB_URL") {
			t.Errorf("hide the host %v: got %+v, want …%s", c.hideHost, why, c.start)
		}
		if !strings.Contains(log.String(), "DB_URL is not set") {
			t.Errorf("the log has no cause:\n%s", log.String())
		}
		for _, tool := range g.ServerTools(t.Context(), "dies") {
			if tool.Tool.Name != "crash" {
				continue
			}
			if _, err := g.CallTool(t.Context(), tool, nil); err == nil || !strings.HasSuffix(err.Error(), c.call) {
				t.Errorf("hide the host %v: got %v, want …%s", c.hideHost, err, c.call)
			}
		}
	}
}

// Resources that several servers list are no warning if clients get only tools.
func TestOptions_ToolsOnly(t *testing.T) {
	for _, toolsOnly := range []bool{false, true} {
		dir := t.TempDir()
		o := options(dir, mcpkit.Trusted, "one", "two")
		two := o.Servers.Config.Servers[1]
		two.Env[0].Value = mcpjson.Literal("one") // the same resources
		two.Env = append(two.Env, mcpjson.Pair{Name: "OTHER", Value: mcpjson.Literal("definition")})
		var log polltest.Buffer
		o.ToolsOnly, o.Log = toolsOnly, slog.New(slog.NewTextHandler(&log, nil))
		g, s := register(t, o)
		t.Cleanup(func() { g.Close() })
		tools := g.ServerTools(t.Context(), "")
		if warned := strings.Contains(log.String(), "several servers list it"); warned == toolsOnly || len(tools) == 0 {
			t.Errorf("only tools %v: %d tools and the log\n%s", toolsOnly, len(tools), log.String())
		}
		here, there := mcp.NewInMemoryTransports()
		if _, err := s.Connect(t.Context(), there, nil); err != nil {
			t.Fatal(err)
		}
		c, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), here, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		prompts, err := c.ListPrompts(t.Context(), nil)
		if err != nil || (len(prompts.Prompts) == 0) != toolsOnly {
			t.Errorf("only tools %v: %d prompts, %v", toolsOnly, len(prompts.Prompts), err)
		}
		// Other programs find all lists in the cache.
		for _, def := range g.manager.Config().Servers {
			if !polltest.Soon(10*time.Second, func() bool {
				all, err := o.Listings.All()
				return err == nil && len(all[def.Hash()].Prompts) > 0
			}) {
				t.Errorf("the cached listing of %s has no prompts", def.Name)
			}
		}
	}
}

// A call of a program that waits for its server is not made if the tool changes, or is no longer
// offered, meanwhile.
func TestCallTool_ChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*mcp.Tool) []*mcp.Tool{
		"the same": func(tool *mcp.Tool) []*mcp.Tool { c := *tool; return []*mcp.Tool{&c} },
		"changed":  func(tool *mcp.Tool) []*mcp.Tool { c := *tool; c.Description = "other"; return []*mcp.Tool{&c} },
		"gone":     func(*mcp.Tool) []*mcp.Tool { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := installing(t, dir)
			tool := listedSay(t, dir)
			if err := o.Listings.Put(t.Context(), o.Servers.Config.Servers[0].Hash(), listing.Entry{Tools: []*mcp.Tool{tool}, Complete: true}); err != nil {
				t.Fatal(err)
			}
			g, _ := register(t, o)
			t.Cleanup(func() { g.Close() })
			tools := g.ServerTools(t.Context(), "srv")
			if len(tools) != 1 {
				t.Fatalf("%d tools", len(tools))
			}
			type result struct {
				res *mcp.CallToolResult
				err error
			}
			done := make(chan result, 1)
			go func() {
				res, err := g.CallTool(t.Context(), tools[0], json.RawMessage(`{"text":"hello"}`))
				done <- result{res, err}
			}()
			polltest.Until(t, 20*time.Second, "the server starts", func() bool { return starts(t, dir) == 1 })
			g.publish("srv", listing.Entry{Tools: change(tool), Complete: true}, true)
			if err := os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			got := <-done
			if name == "the same" {
				if got.err != nil || got.res.IsError {
					t.Errorf("got %+v, %v", got.res, got.err)
				}
				return
			}
			if why, ok := errors.AsType[*UnavailableError](got.err); !ok || why.Reason != ReasonChanged || !strings.Contains(why.Text, "was not called") {
				t.Errorf("got %+v, %v", got.res, got.err)
			}
		})
	}
}

// TestWhyUnavailable_WaitsWhileListed: a call of a program that comes while its server is
// being listed, or is about to be listed once more, waits for the result.
func TestWhyUnavailable_WaitsWhileListed(t *testing.T) {
	dir := t.TempDir()
	var requests atomic.Int64
	var holding atomic.Bool
	hold := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if holding.Load() {
			<-hold
		}
		http.Error(w, "down", http.StatusServiceUnavailable)
	}))
	t.Cleanup(web.Close)
	o := options(dir, mcpkit.Trusted)
	o.Servers.Config.Servers = []*mcpjson.Server{{Name: "late", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(web.URL)}}
	g, _ := register(t, o)
	t.Cleanup(func() { g.Close() })
	<-g.firstListed
	until(t, "the server is asked no more", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.refreshing) == 0
	})
	first := requests.Load()
	holding.Store(true)
	g.refresh("late")
	until(t, "the server is being listed", func() bool { return requests.Load() > first })
	g.refresh("late") // lists it once more afterwards
	g.mu.Lock()
	f := g.failed["late"]
	f.at = time.Now().Add(-12 * time.Second)
	g.failed["late"] = f
	g.mu.Unlock()
	answer := make(chan *UnavailableError)
	go func() { answer <- g.WhyUnavailable(t.Context(), "late", "say") }()
	select {
	case why := <-answer:
		t.Errorf("an answer before the server was listed: %v", why)
	case <-time.After(100 * time.Millisecond): // the wrong answer comes at once
		close(hold)
		if why := <-answer; why == nil || strings.Contains(why.Text, "ago") {
			t.Errorf("got %v, want the result of the listing", why)
		}
		return
	}
	close(hold)
}

// A call of a tool tries a server again that was down a moment ago. Parallel calls share the
// attempt. A note about the server says how old it is.
func TestWhyUnavailable_TriesAgain(t *testing.T) {
	dir := t.TempDir()
	var requests atomic.Int64
	var up atomic.Bool
	upstream := gatewaytest.New("late", filepath.Join(dir, "notes"))
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return upstream }, &mcp.StreamableHTTPOptions{Stateless: true})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			requests.Add(1)
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	o := options(dir, mcpkit.Trusted)
	o.Servers.Config.Servers = []*mcpjson.Server{{Name: "late", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(web.URL)}}
	g, _ := register(t, o)
	t.Cleanup(func() { g.Close() })
	if tools := g.ServerTools(t.Context(), "late"); len(tools) != 0 {
		t.Fatalf("%d tools", len(tools))
	}
	one := requests.Load() // of one attempt
	age := func(by time.Duration) {
		g.mu.Lock()
		defer g.mu.Unlock()
		f := g.failed["late"]
		f.at = time.Now().Add(-by)
		g.failed["late"] = f
	}

	age(12 * time.Second)
	if why := g.WhyUnavailable(t.Context(), "late", ""); why == nil || !strings.Contains(why.Text, "(tried 12s ago; a call of one of its tools tries again)") || requests.Load() != one {
		t.Errorf("a note: %+v after %d requests", why, requests.Load())
	}
	age(time.Second)
	if why := g.WhyUnavailable(t.Context(), "late", "say"); why == nil || requests.Load() != one {
		t.Errorf("too early: %+v after %d requests, want %d", why, requests.Load(), one)
	}
	age(12 * time.Second)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if why := g.WhyUnavailable(t.Context(), "late", "say"); why == nil || strings.Contains(why.Text, "ago") {
				t.Errorf("after a new attempt: %+v", why)
			}
		})
	}
	calls.Wait()
	if requests.Load() != 2*one {
		t.Errorf("%d requests for 20 calls, want %d", requests.Load()-one, one)
	}
	up.Store(true)
	age(3 * time.Second)
	if why := g.WhyUnavailable(t.Context(), "late", "say"); why != nil {
		t.Errorf("the server is up: %+v", why)
	}
	if tools := g.ServerTools(t.Context(), "late"); len(tools) == 0 {
		t.Error("no tools")
	}
}

// TestWhyUnavailable_ChangedAfterFailure: a server that failed, and changed since, needs its user's
// approval: programs and clients read that, rather than the failure.
func TestWhyUnavailable_ChangedAfterFailure(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "down", http.StatusServiceUnavailable)
	}))
	t.Cleanup(web.Close)
	var changed atomic.Bool
	o := options(t.TempDir(), mcpkit.Trusted)
	o.Servers.Config.Servers = []*mcpjson.Server{{Name: "late", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(web.URL)}}
	o.Servers.Trust = func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) {
		if changed.Load() {
			return mcpkit.Untrusted, errors.Join(mcpkit.ErrUntrusted, mcpkit.ErrChanged)
		}
		return mcpkit.Trusted, nil
	}
	g, s := register(t, o)
	t.Cleanup(func() { g.Close() })
	p := join(t, s, "ann", "2025-11-25", false)
	g.ServerTools(t.Context(), "late")
	if why := g.WhyUnavailable(t.Context(), "late", "say"); why == nil || why.Reason != ReasonFailed {
		t.Fatalf("a server that is down: %+v", why)
	}
	changed.Store(true)
	g.mu.Lock()
	f := g.failed["late"]
	f.at = time.Now().Add(-time.Minute)
	g.failed["late"] = f
	g.mu.Unlock()
	const want = `The server "late" is not trusted any more: its definition or a file that it runs has changed`
	wantTrouble(t, p, "late__say", want)
	if why := g.WhyUnavailable(t.Context(), "late", "say"); why == nil || why.Reason != ReasonUntrusted || !strings.HasPrefix(why.Text, want) {
		t.Errorf("got %+v, want %q", why, want)
	}
}
