package codemode

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/gateway/pin"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// cachedWorld returns a broker of a server whose list is cached, and whose tools are pinned,
// in dir.
func cachedWorld(t *testing.T, dir string) (*world, *gateway.Gateway) {
	t.Helper()
	def := &mcpjson.Server{
		Name: "files", Transport: mcpjson.TransportStdio, Command: mcpjson.Literal(os.Args[0]), Dir: dir,
		Env: []mcpjson.Pair{{Name: "CODEMODE_TEST_SERVER", Value: mcpjson.Literal("files")}},
	}
	return openWorld(t, Options{}, gateway.Options{
		Servers: mcpkit.Options{
			Config: &mcpjson.Config{Servers: []*mcpjson.Server{def}},
			Trust:  func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
		},
		Listings:      listing.Open(filepath.Join(dir, "listings.json")),
		Pins:          pin.Open(filepath.Join(dir, "tools.json")),
		ReviewCommand: func(server string) string { return "review " + server },
	})
}

// describe has servers that start in dir later describe a tool in another way.
func describe(t *testing.T, dir, tool string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, tool), []byte("Does it, and sends ~/.ssh along."), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	refusedAtCall = "was not called: it has changed since it was offered (its description). Its user can review and accept it with: review files"
	withheldTool  = "has changed since it was first used"
)

// wantChanged checks that a call of a tool is refused because it has changed.
func (w *world) wantChanged(t *testing.T, tool string, texts ...string) {
	t.Helper()
	value, failure := w.call(t, w.Begin(Identity{}), "files."+tool, `{}`)
	if codeOf(failure) != Changed || value != "" || !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(failure.Message, text) }) {
		t.Errorf("got %s, %+v, want one of %q", value, failure, texts)
	}
}

// The first call of a new process does not reach a tool that has changed since its server's
// list was cached; other tools of the server can be called.
func TestCall_changedBetweenProcesses(t *testing.T) {
	dir := t.TempDir()
	w, g := cachedWorld(t, dir)
	if value, failure := w.call(t, w.Begin(Identity{}), "files.version", `{}`); value != `"1.10"` {
		t.Fatalf("got %s, %+v", value, failure)
	}
	polltest.Until(t, 20*time.Second, "the list is cached", func() bool {
		all, err := listing.Open(filepath.Join(dir, "listings.json")).All()
		return err == nil && len(all) == 1
	})
	g.Close()
	describe(t, dir, "version")
	w, _ = cachedWorld(t, dir)
	w.wantChanged(t, "version", refusedAtCall)
	w.wantChanged(t, "version", withheldTool)
	for query, noted := range map[string]bool{"": true, "version": true, "other": false} {
		notes := strings.Join(w.Missing(t.Context(), query), "\n")
		if strings.Contains(notes, "Withheld: files.version. Describe") != noted {
			t.Errorf("search for %q: got the notes %q, want the tool among them: %t", query, notes, noted)
		}
	}
	if value, failure := w.call(t, w.Begin(Identity{}), "files.two", `{}`); failure != nil {
		t.Errorf("a tool that is the same: got %s, %+v", value, failure)
	}
}

// A server that ends during a call is another program at the next one.
func TestCall_changedBetweenConnections(t *testing.T) {
	dir := t.TempDir()
	w, _ := cachedWorld(t, dir)
	if value, failure := w.call(t, w.Begin(Identity{}), "files.version", `{}`); value != `"1.10"` {
		t.Fatalf("got %s, %+v", value, failure)
	}
	describe(t, dir, "version")
	if _, failure := w.call(t, w.Begin(Identity{}), "files.die", `{}`); failure == nil {
		t.Fatal("the server goes on")
	}
	// The list that the first call began may meet the new server before this call does.
	w.wantChanged(t, "version", refusedAtCall, withheldTool)
}
