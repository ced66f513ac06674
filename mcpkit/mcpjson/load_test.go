package mcpjson

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes files below a new directory and returns it.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
}

// Load finds the right file. A missing file is an error only if one is required.
func TestD1_Discovery(t *testing.T) {
	a, b := claude(`{"command": "a"}`), claude(`{"command": "b"}`)
	for name, c := range map[string]struct {
		files map[string]string
		path  string
	}{
		"hidden first": {map[string]string{".mcp.json": a, "mcp.json": b}, ".mcp.json"},
		"plain":        {map[string]string{"mcp.json": b}, "mcp.json"},
		"none":         {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, c.files)
			cfg, err := Load(Options{Root: root})
			if err != nil || cfg.Path != c.path || (len(cfg.Servers) == 1) != (c.path != "") {
				t.Errorf("got %+v, %v", cfg, err)
			}
			if c.path != "" && cfg.Servers[0].Dir != root {
				t.Errorf("the server's directory is %q, want %q", cfg.Servers[0].Dir, root)
			}
			_, err = Load(Options{Root: root, Required: true})
			if (c.path == "") != errors.Is(err, ErrNotFound) {
				t.Errorf("required: got %v", err)
			}
		})
	}
	if _, err := Load(Options{Root: t.TempDir(), Path: "no.json"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a named file that is missing: got %v", err)
	}
	// A first file that is wrong is not passed over for the second.
	root := tree(t, map[string]string{".mcp.json": "{", "mcp.json": b})
	if _, err := Load(Options{Root: root}); err == nil || !strings.Contains(err.Error(), ".mcp.json") {
		t.Errorf("got %v", err)
	}
}

// Only regular files below the root are read.
func TestD1_FileSafety(t *testing.T) {
	good := claude(`{"command": "x"}`)
	outside := tree(t, map[string]string{"secret.json": good})

	t.Run("link", func(t *testing.T) {
		root := tree(t, map[string]string{"real.json": good})
		link(t, "real.json", filepath.Join(root, ".mcp.json"))
		_, err := Load(Options{Root: root})
		refused(t, err, "symbolic link")
		_, err = LoadFile(filepath.Join(root, ".mcp.json"), Options{})
		refused(t, err, "symbolic link")
	})
	t.Run("link out", func(t *testing.T) {
		root := tree(t, nil)
		link(t, filepath.Join(outside, "secret.json"), filepath.Join(root, "mcp.json"))
		_, err := Load(Options{Root: root})
		refused(t, err, "symbolic link")
	})
	t.Run("directory that leads out", func(t *testing.T) {
		root := tree(t, nil)
		link(t, outside, filepath.Join(root, "sub"))
		_, err := Load(Options{Root: root, Path: "sub/secret.json"})
		refused(t, err, "lies outside of")
	})
	t.Run("directory that is a link inside", func(t *testing.T) {
		root := tree(t, map[string]string{"real/c.json": good})
		link(t, "real", filepath.Join(root, "sub"))
		if _, err := Load(Options{Root: root, Path: "sub/c.json"}); err != nil {
			t.Error(err)
		}
	})
	t.Run("root that is a link", func(t *testing.T) {
		at := filepath.Join(t.TempDir(), "root")
		link(t, tree(t, map[string]string{"mcp.json": good}), at)
		if cfg, err := Load(Options{Root: at, Required: true}); err != nil || len(cfg.Servers) != 1 {
			t.Error(err)
		}
	})
	t.Run("dots", func(t *testing.T) {
		root := tree(t, map[string]string{"in/x": "", "out.json": good})
		o := Options{Root: filepath.Join(root, "in"), Path: "../out.json"}
		_, err := Load(o)
		refused(t, err, "lies outside of")
		o.AllowOutside = true
		if _, err := Load(o); err != nil {
			t.Error(err)
		}
	})
	t.Run("directory", func(t *testing.T) {
		root := tree(t, map[string]string{"mcp.json/x": ""})
		_, err := Load(Options{Root: root})
		refused(t, err, "it is a directory, not a regular file")
	})
	t.Run("too large", func(t *testing.T) {
		root := tree(t, map[string]string{"mcp.json": good + strings.Repeat(" ", maxFile)})
		_, err := Load(Options{Root: root})
		refused(t, err, "it has more than 4194304 bytes")
	})
	t.Run("byte order mark", func(t *testing.T) {
		root := tree(t, map[string]string{"mcp.json": "\ufeff" + good})
		cfg, err := Load(Options{Root: root})
		if err != nil || cfg.Servers[0].Origins["command"].Column != strings.Index(good, `"x"`)+1 {
			t.Errorf("got %v, %v", cfg, err)
		}
	})
}

// A file may include its servers from another file.
func TestD1_Include(t *testing.T) {
	refer := func(to string) string { return fmt.Sprintf(`{"mcpServers": %q}`, to) }
	good := claude(`{"command": "x"}`)
	outside := tree(t, map[string]string{"secret.json": good})

	chain := map[string]string{"last.json": good}
	for i := range 20 {
		chain[fmt.Sprintf("%d.json", i)] = refer(fmt.Sprintf("%d.json", i+1))
	}
	chain["20.json"] = good
	for name, c := range map[string]struct {
		files map[string]string
		want  string // of the complaint; empty for none
	}{
		"relative to the file": {map[string]string{"mcp.json": refer("sub/a.json"), "sub/a.json": refer("b.json"), "sub/b.json": good}, ""},
		"up and still inside":  {map[string]string{"mcp.json": refer("sub/a.json"), "sub/a.json": refer("../b.json"), "b.json": good}, ""},
		"itself":               {map[string]string{"mcp.json": refer("mcp.json")}, "in a cycle"},
		"a circle":             {map[string]string{"mcp.json": refer("a.json"), "a.json": refer("./mcp.json")}, "in a cycle"},
		"out":                  {map[string]string{"mcp.json": refer("../x.json")}, "lies outside of"},
		"absolute":             {map[string]string{"mcp.json": refer(filepath.Join(outside, "secret.json"))}, "by an absolute path"},
		"home":                 {map[string]string{"mcp.json": refer("~/x.json")}, "by an absolute path"},
		"empty":                {map[string]string{"mcp.json": refer("")}, "mcpServers is empty"},
		"missing":              {map[string]string{"mcp.json": refer("no.json")}, "no such file"},
		"too many":             {merge(chain, map[string]string{"mcp.json": refer("0.json")}), "more than 16 files"},
		"just enough":          {merge(chain, map[string]string{"mcp.json": refer("6.json")}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, c.files)
			cfg, err := Load(Options{Root: root})
			if c.want != "" {
				refused(t, err, c.want)
				return
			}
			if err != nil || len(cfg.Servers) != 1 || cfg.Servers[0].Dir != root {
				t.Errorf("got %+v, %v", cfg, err)
			}
		})
	}
	t.Run("through a link", func(t *testing.T) {
		root := tree(t, map[string]string{"mcp.json": refer("a.json")})
		link(t, filepath.Join(outside, "secret.json"), filepath.Join(root, "a.json"))
		_, err := Load(Options{Root: root})
		refused(t, err, "symbolic link")
	})
}

func merge(a, b map[string]string) map[string]string {
	all := make(map[string]string)
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// Locations and the detection of dialects and roots agree.
func TestLocations_MatchDetection(t *testing.T) {
	for _, p := range Locations("/work", "/home/u", "/home/u/.config") {
		d := byName(p.Path)
		if p.Dialect != Auto && d != Auto && d != p.Dialect {
			t.Errorf("%s: is listed as %s and read as %s", p.Path, p.Dialect, d)
		}
		if p.Project && rootOf(p.Path) != "/work" {
			t.Errorf("%s is for %s, want /work", p.Path, rootOf(p.Path))
		}
	}
}
