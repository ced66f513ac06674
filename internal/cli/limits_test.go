package cli

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/config"
)

func TestCanonicalNetwork(t *testing.T) {
	got, err := canonicalNetwork([]string{" PyPI ", "b.example.org", "a.example.org:443", "b.example.org"})
	if want := []string{"b.example.org", "https://a.example.org", "pypi"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if again, err := canonicalNetwork(got); err != nil || !slices.Equal(again, got) {
		t.Errorf("the canonical form of %q is %q, %v", got, again, err)
	}
	if got, err := canonicalNetwork([]string{}); err != nil || got == nil || len(got) != 0 {
		t.Errorf("an empty list: %v, %v", got, err)
	}
	for _, bad := range [][]string{{"pypy"}, {"*"}, {""}, {"a.example.org/x y"}, slices.Repeat([]string{"a.example.org"}, maxNetworkEntries+1)} {
		if got, err := canonicalNetwork(bad); err == nil {
			t.Errorf("%.3q: got %q, want an error", bad, got)
		}
	}
	if limits, err := templateLimits(nil); limits != nil || err != nil {
		t.Errorf("no limit: %v, %v", limits, err)
	}
	if limits, err := templateLimits([]string{}); len(limits) != 1 || len(limits[0].Allow) != 0 || err != nil {
		t.Errorf("no network: %v, %v", limits, err)
	}
}

// Each owner's boxes are narrowed within the owner's own policy, also once that changes.
func TestNetworks_Narrow(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "net.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[owner.\"token alice\"]\nallow = [\"pypi\", \"npm\"]\n[owner.\"token bob\"]\nallow = []\n")
	cfg := &config.Config{NetworkFile: filepath.Join(dir, "net.toml"), StateDir: filepath.Join(dir, "state")}
	n, err := openNetworks(cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	if outside, allowed := n.Within("token alice", nil, []string{"npm", "files.pythonhosted.org", "evil.example", "github"}); !slices.Equal(outside, []string{"evil.example", "github"}) || !slices.Equal(allowed, []string{"pypi", "npm"}) {
		t.Errorf("alice: outside %q of %q", outside, allowed)
	}
	if outside, allowed := n.Within("token bob", nil, []string{"npm"}); len(outside) != 1 || len(allowed) != 0 {
		t.Errorf("bob: outside %q of %q", outside, allowed)
	}
	limit := snapshot.NetLimits{{Of: snapshot.OfTemplate, Allow: []string{"npm", "github"}}}
	if outside, _ := n.Within("token alice", limit, []string{"npm", "pypi"}); !slices.Equal(outside, []string{"pypi"}) {
		t.Errorf("alice, in a template: outside %q", outside)
	}
	reach := func(owner string, limits snapshot.NetLimits) string {
		t.Helper()
		b := n.Open("token "+"alice", "x", "", limits)
		if owner != "alice" {
			b = n.Open("token bob", "x", "", limits)
		}
		defer b.Close()
		return strings.Join(b.Allowed(), " ")
	}
	for _, test := range []struct {
		owner  string
		limits snapshot.NetLimits
		want   string
	}{
		{"alice", nil, "pypi npm"},
		{"alice", limit, "npm"},
		{"alice", limit.And(snapshot.NetLimits{{Of: snapshot.OfBox}}), ""},
		{"alice", snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{"a later preset"}}}, ""},
		{"bob", nil, ""},
		{"bob", limit, ""},
	} {
		if got := reach(test.owner, test.limits); got != test.want {
			t.Errorf("%s with %v: got %q, want %q", test.owner, test.limits, got, test.want)
		}
	}
	write("[owner.\"token alice\"]\nallow = [\"pypi\", \"github\"]\n")
	if err := n.reload(cfg); err != nil {
		t.Fatal(err)
	}
	if got := reach("alice", limit); got != "github" {
		t.Errorf("after the policy has changed: got %q, want what it and the limit allow", got)
	}
}

// The limits of templates are shown with what they leave of the policy, and are exported.
func TestTemplateLimits_ShowAndExport(t *testing.T) {
	cfg := &config.Config{StateDir: t.TempDir(), Network: []string{"pypi", "npm"}}
	c, err := catalog.Open(catalog.Config{Dir: filepath.Join(cfg.StateDir, "catalog")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	limits, err := templateLimits([]string{"npm", "github"})
	if err != nil {
		t.Fatal(err)
	}
	added, err := c.Put(t.Context(), catalog.Template{Name: "web", Base: "python", Flavor: "small", Limits: limits}, catalog.Details{}, 0,
		func(_ context.Context, dir string) error {
			return os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0o600)
		})
	if err != nil {
		t.Fatal(err)
	}
	n, err := cfg.ReadNetwork()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out}}
	if err := a.showTemplateLimits(cfg, n.Set(""), ""); err != nil || out.String() != "Boxes of the template web: at most github, npm, which leaves npm.\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	var file bytes.Buffer
	if err := exportTemplate(t.Context(), c, added, &file); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(file.String(), `"limits":`) || !strings.Contains(file.String(), `"github"`) {
		t.Errorf("the exported template has no limits: %.2000q", file.String())
	}
}
