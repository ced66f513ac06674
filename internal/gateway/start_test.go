package gateway

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// installing returns the options of a gateway to a server that npx installs while the
// file "installed" is missing in dir. Each start adds a line to the file "starts".
func installing(t *testing.T, dir string) Options {
	t.Helper()
	npx := filepath.Join(dir, "npx")
	script := "#!/bin/sh\necho start >>starts\nwhile ! [ -e installed ]; do sleep 0.02; done\nexec \"$@\"\n"
	if err := os.WriteFile(npx, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	o := options(dir, mcpkit.Trusted, "srv")
	def := o.Servers.Config.Servers[0]
	def.Args, def.Command = []mcpjson.Text{def.Command}, mcpjson.Literal(npx)
	o.Servers.Limits.Install = time.Minute
	return o
}

func starts(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "starts"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

// connect connects a client to the server of a gateway. The test closes both.
func connect(t *testing.T, g *Gateway, s *mcp.Server) *mcp.ClientSession {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// The time for listing a server does not end an installation.
func TestRefresh_WaitsForAnInstallation(t *testing.T) {
	dir := t.TempDir()
	g := New(installing(t, dir))
	g.listTimeout = 2 * time.Second
	connect(t, g, serverOf(g))
	polltest.Until(t, 20*time.Second, "npx runs", func() bool { return starts(t, dir) == 1 })
	time.Sleep(g.listTimeout + 200*time.Millisecond) // what must not happen now has no event
	if n := starts(t, dir); n != 1 {
		t.Errorf("npx was started %d times during the installation", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, 40*time.Second, "the tool is listed", func() bool { return g.HasTool("srv__say") })
}

// A client that cancels its call does not end the installation that the call began.
func TestTool_CancelKeepsAnInstallation(t *testing.T) {
	dir := t.TempDir()
	installed := filepath.Join(dir, "installed")
	if err := os.WriteFile(installed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := New(installing(t, dir))
	c := connect(t, first, serverOf(first))
	polltest.Until(t, 40*time.Second, "the listing is cached", func() bool {
		all, err := first.listings.All()
		return err == nil && len(all) == 1
	})
	c.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(installed); err != nil {
		t.Fatal(err)
	}
	second := New(installing(t, dir))
	c = connect(t, second, serverOf(second))
	say := &mcp.CallToolParams{Name: "srv__say", Arguments: map[string]any{"text": "hello"}}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		polltest.Soon(20*time.Second, func() bool { return starts(t, dir) == 2 })
		cancel()
	}()
	if _, err := c.CallTool(ctx, say); err == nil {
		t.Error("a cancelled call has succeeded")
	}
	time.Sleep(time.Second) // for the program to end, if it is ended
	again, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(500*time.Millisecond, cancel)
	if _, err := c.CallTool(again, say); err == nil {
		t.Error("a second cancelled call has succeeded")
	}
	if n := starts(t, dir); n != 2 {
		t.Errorf("npx was started %d times, want 2", n)
	}
	if err := os.WriteFile(installed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if res, err := c.CallTool(t.Context(), say); err != nil || res.IsError {
		t.Errorf("the next call: %v, %v", res, err)
	}
}

// TestWithStarting checks that the gateway names the server that starts while a client waits for
// it, for lists of tools and for a call.
func TestWithStarting(t *testing.T) {
	dir := t.TempDir()
	g := New(installing(t, dir))
	connect(t, g, serverOf(g))
	told := make(chan string, 10)
	ctx, cancel := context.WithTimeout(WithStarting(t.Context(), func(server string) { told <- server }), 30*time.Second)
	defer cancel()
	waits := make(chan struct{})
	for what, wait := range map[string]func(){
		"srv": func() { g.ServerTools(ctx, "srv") },
		"":    func() { g.ServerTools(ctx, "") },
		"call": func() {
			_, _ = g.CallTool(ctx, ServerTool{Server: "srv", Tool: &mcp.Tool{Name: "say"}}, nil) // fails, since nothing is listed yet
		},
	} {
		go func() {
			wait()
			waits <- struct{}{}
		}()
		select {
		case got := <-told:
			if got != what && (what != "call" || got != "srv") {
				t.Errorf("%q: told of %q", what, got)
			}
		case <-ctx.Done():
			t.Fatalf("%q: told of nothing", what)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-waits
	}
}
