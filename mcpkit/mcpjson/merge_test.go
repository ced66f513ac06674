package mcpjson

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newServers are the servers to merge: one that exists and one that is new.
func newServers(d Dialect) *Config {
	return &Config{Dialect: d, Servers: []*Server{
		{Name: "old", Dialect: d, Transport: TransportStdio, Command: Literal("node"), Args: []Text{Literal("new.js")}, Env: []Pair{{Name: "B", Value: Literal("2")}}},
		{Name: "web", Dialect: d, Transport: TransportHTTP, URL: Literal("https://example.com/mcp")},
	}}
}

// Merge preserves comments, order, indentation and unknown members of typical files.
func TestD2_Merge_PreservesTheRest(t *testing.T) {
	for name, c := range map[string]struct {
		d        Dialect
		in, want string
	}{
		"comments": {ClaudeCode, `{
    // My servers.
    "mcpServers": {
        "other": {"command": "x"}, // leave this
        /* the old one */
        "old": {
            "command": "node", // or deno
            "args": ["old.js"],
            // not needed any more
            "cwd": "/srv", // really
            "env": {"A": "1", /* b */ "B": "1"},
            "vendor": {"x": 1} // unknown
        }
        // the end
    },
    "unrelated": [1, 2,  3]
}
`, `{
    // My servers.
    "mcpServers": {
        "other": {"command": "x"}, // leave this
        /* the old one */
        "old": {
            "command": "node", // or deno
            "args": ["new.js"],
            // not needed any more
 // really
            "env": { /* b */ "B": "2"},
            "vendor": {"x": 1}, // unknown
            "type": "stdio"
        },
        // the end
        "web": {
            "type": "http",
            "url": "https://example.com/mcp"
        }
    },
    "unrelated": [1, 2,  3]
}
`},
		"trailing commas and tabs": {Cursor, "{\n\t\"mcpServers\": {\n\t\t\"other\": {\"command\": \"x\"},\n\t},\n}\n",
			"{\n\t\"mcpServers\": {\n\t\t\"other\": {\"command\": \"x\"},\n\t\t\"old\": {\n\t\t\t\"type\": \"stdio\",\n\t\t\t\"command\": \"node\",\n\t\t\t\"args\": [\"new.js\"],\n\t\t\t\"env\": {\n\t\t\t\t\"B\": \"2\"\n\t\t\t}\n\t\t},\n\t\t\"web\": {\n\t\t\t\"url\": \"https://example.com/mcp\"\n\t\t},\n\t},\n}\n"},
		"lines of Windows": {Windsurf, "{\r\n  \"mcpServers\": {}\r\n}\r\n",
			"{\r\n  \"mcpServers\": {\r\n    \"old\": {\r\n      \"command\": \"node\",\r\n      \"args\": [\"new.js\"],\r\n      \"env\": {\r\n        \"B\": \"2\"\r\n      }\r\n    },\r\n    \"web\": {\r\n      \"serverUrl\": \"https://example.com/mcp\"\r\n    }\r\n  }\r\n}\r\n"},
		"settings without servers": {Gemini, `{"theme": "dark", "mcp": {"excluded": ["old", "x"], "allowed": ["x"]}}`,
			`{"theme": "dark", "mcp": {"excluded": ["x"], "allowed": ["x", "old", "web"]}, "mcpServers": {
    "old": {
      "command": "node",
      "args": ["new.js"],
      "env": {
        "B": "2"
      }
    },
    "web": {
      "httpUrl": "https://example.com/mcp"
    }
  }}`},
		"TOML": {Codex, `# Settings
model = "x"   # the big one

[mcp_servers.other]
command = "x"

# the old one
[mcp_servers.old] # here
command = "node" # or deno
args = [
  "old.js", # why
]
cwd = "/srv" # really
  custom = 1

[mcp_servers.old.env]
A = "1" # a
B = '1'

[mcp_servers.old.tools.run]
approval_mode = "approve"

[tui]
theme = "dark"`, `# Settings
model = "x"   # the big one

[mcp_servers.other]
command = "x"

# the old one
[mcp_servers.old] # here
command = "node" # or deno
args = ["new.js"]
# really
  custom = 1

[mcp_servers.old.env]
# a
B = "2"

[mcp_servers.old.tools.run]
approval_mode = "approve"

[tui]
theme = "dark"

[mcp_servers.web]
url = "https://example.com/mcp"
`},
		"TOML on one line and dotted": {Codex, "mcp_servers.old.command = \"deno\"\nmcp_servers.old.env = { A = \"1\", B = \"1\" }\nmcp_servers.other = { command = \"x\" }\n",
			"mcp_servers.old.command = \"node\"\nmcp_servers.old.env = { B = \"2\" }\nmcp_servers.old.args = [\"new.js\"]\nmcp_servers.other = { command = \"x\" }\nmcp_servers.web = { url = \"https://example.com/mcp\" }\n"},
		"TOML inline": {Codex, "[mcp_servers]\nold = { command = \"deno\", custom = 1 }\n",
			"[mcp_servers]\nold = { command = \"node\", custom = 1, args = [\"new.js\"], env = { B = \"2\" } }\nweb = { url = \"https://example.com/mcp\" }\n"},
		"TOML all inline": {Codex, "mcp_servers = { old = { command = \"deno\" } }\n",
			"mcp_servers = { old = { command = \"node\", args = [\"new.js\"], env = { B = \"2\" } }, web = { url = \"https://example.com/mcp\" } }\n"},
		"TOML without servers": {Codex, "model = \"x\"", "model = \"x\"\n\n[mcp_servers.old]\ncommand = \"node\"\nargs = [\"new.js\"]\nenv = { B = \"2\" }\n\n[mcp_servers.web]\nurl = \"https://example.com/mcp\"\n"},
		"byte order mark":      {ClaudeDesktop, "\ufeff{\"mcpServers\":{\"old\":{\"command\":\"node\",\"args\":[\"new.js\"],\"env\":{\"B\":\"2\"}}}}", "\ufeff{\"mcpServers\":{\"old\":{\"command\":\"node\",\"args\":[\"new.js\"],\"env\":{\"B\":\"2\"}}}}"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := Merge([]byte(c.in), newServers(c.d), c.d)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again, _, err := Merge(got, newServers(c.d), c.d)
			if err != nil || string(again) != string(got) {
				t.Errorf("merged again it changes: %v\n%s", err, cmp.Diff(string(got), string(again)))
			}
		})
	}
}

// Inputs of VS Code are added once, and comments between them stay.
func TestD2_MergeInputs(t *testing.T) {
	in := `{
	"inputs": [
		// the first
		{"id": "a", "type": "pickString", "options": [{"label": "One", "value": "1"}]},
	],
	"servers": {},
}`
	cfg := &Config{Dialect: VSCode, Inputs: []Input{
		{ID: "a", Type: "pickString", Options: []string{"1"}, Description: "A"}, {ID: "b", Type: "promptString", Password: true},
	}}
	got, _, err := Merge([]byte(in), cfg, VSCode)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
	"inputs": [
		// the first
		{"id": "a", "type": "pickString", "options": [{"label": "One", "value": "1"}], "description": "A"},
		{
			"id": "b",
			"type": "promptString",
			"password": true
		},
	],
	"servers": {},
}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMerge_Errors(t *testing.T) {
	for _, c := range []struct {
		d        Dialect
		in, want string
	}{
		{ClaudeCode, `{`, "invalid JSON"},
		{ClaudeCode, `[]`, "found a list, want an object"},
		{ClaudeCode, `{"mcpServers": []}`, `"mcpServers" is a list, want an object`},
		{ClaudeCode, `{"mcpServers": "x.json"}`, `"mcpServers" is a string, want an object`},
		{VSCode, `{"inputs": {}}`, `"inputs" is an empty object, want a list`},
		{Codex, `mcp_servers = 1`, `"mcp_servers" is a number, want an object`},
		{V1, `{"servers": {}}`, "does not use version 1"},
		{VSCode, `{"mcpServers": {"s": {"command": "x"}}}`, "the file has its servers where Claude Code has them, not where VS Code has; write the dialect that the file has"},
		{OpenCode2, `{"mcp": {"s": {"type": "local", "command": ["x"]}}}`, "the file has its servers where OpenCode has them"},
		{OpenCode, `{"mcp": {"servers": {"s": {"type": "local", "command": ["x"]}}}}`, "the file has its servers where OpenCode 2 has them"},
		{ClaudeCode, `{"s": {"command": "x"}}`, "the file is nothing but servers"},
		{SEP, "// x\n{}", "comments and trailing commas"},
	} {
		cfg := newServers(c.d)
		cfg.Inputs = []Input{{ID: "x"}}
		_, _, err := Merge([]byte(c.in), cfg, c.d)
		refused(t, err, c.want)
	}
	if _, _, err := Merge(nil, newServers(V1), "no"); err == nil {
		t.Error("an unknown dialect was taken")
	}
}

// Update replaces the file and keeps a copy.
func TestUpdate(t *testing.T) {
	in := "{\n  // mine\n  \"mcpServers\": {}\n}\n"
	root := tree(t, map[string]string{"mcp.json": in})
	path := filepath.Join(root, "mcp.json")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	u, err := Update(path, newServers(ClaudeCode), ClaudeCode)
	if err != nil || !u.Changed || filepath.Dir(u.Backup) != root {
		t.Fatalf("got %+v, %v", u, err)
	}
	if b, err := os.ReadFile(u.Backup); err != nil || string(b) != in {
		t.Errorf("the copy is %q, %v", b, err)
	}
	cfg, err := Load(Options{Root: root})
	if err != nil || len(cfg.Servers) != 2 {
		t.Errorf("got %v, %v", cfg, err)
	}
	for _, name := range []string{path, u.Backup} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if u, err = Update(path, newServers(ClaudeCode), ClaudeCode); err != nil || u.Changed || u.Backup != "" {
		t.Errorf("the same once more: %+v, %v", u, err)
	}
	fresh := filepath.Join(root, "config.toml")
	if u, err = Update(fresh, newServers(Codex), Codex); err != nil || !u.Changed || u.Backup != "" {
		t.Errorf("a new file: %+v, %v", u, err)
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a new file: %v, %v", info, err)
	}
	list, err := os.ReadDir(root)
	if err != nil || len(list) != 3 {
		t.Errorf("left in the directory: %v, %v", list, err)
	}
}

func TestUpdate_Errors(t *testing.T) {
	root := tree(t, map[string]string{"real.json": "{}", "bad.json": "{"})
	at := filepath.Join(root, "link.json")
	link(t, "real.json", at)
	for path, want := range map[string]string{
		at:                                  "symbolic link",
		filepath.Join(root, "bad.json"):     "invalid JSON",
		filepath.Join(root, "no", "x.json"): "no such file",
	} {
		if _, err := Update(path, newServers(ClaudeCode), ClaudeCode); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "bad.json")); err != nil || string(b) != "{" {
		t.Errorf("the file that could not be read is %q, %v", b, err)
	}
	list, err := os.ReadDir(root)
	if err != nil || len(list) != 3 {
		t.Errorf("left in the directory: %v, %v", list, err)
	}
}

// Update does not overwrite a concurrent change.
func TestUpdate_ConcurrentChange(t *testing.T) {
	dir := tree(t, map[string]string{"mcp.json": "{}"})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	old, info, err := readBelow(root, "mcp.json", maxFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := unchanged(root, "mcp.json", old, info); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mcp.json"), []byte(`{"mcpServers": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unchanged(root, "mcp.json", old, info); err == nil {
		t.Error("a change was not seen")
	}
	if err := unchanged(root, "new.json", nil, nil); err != nil {
		t.Error(err)
	}
	// The copy of the same moment is there already: nothing is overwritten.
	now := time.Now()
	if _, err := updateBelow(root, "mcp.json", newServers(ClaudeCode), ClaudeCode, now); err != nil {
		t.Fatal(err)
	}
	more := newServers(ClaudeCode)
	more.Servers[0].Command = Literal("deno")
	if _, err := updateBelow(root, "mcp.json", more, ClaudeCode, now); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
}

// The result of merging into any readable file is readable, has the servers, and does
// not change when they are merged again.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{
		"", "{}", "{\"mcpServers\": {\"old\": {\"command\": \"x\", /* c */ \"cwd\": \"y\"},}, }", "{/*a*/\"mcpServers\"/*b*/:/*c*/{/*d*/}/*e*/}//f\n",
		"{\"mcpServers\": {\"old\": {\"cwd\": \"y\" //\n ,\"env\": {\"A\": \"1\" /**/ }}}}", "{\"mcp\":{\"excluded\":[\"old\"]},\"mcpServers\":{\"web\":{}}}",
		"[mcp_servers.old]\ncommand='x'\n[mcp_servers.old.env]\nA='1'#c\n", "mcp_servers.old.env.A = 1\n[a.b]\nc=1", "[mcp_servers]\nold={}\n[[x]]\ny=1", "[mcp_servers.old.env]\n",
		"[ mcp_servers . \"old\" ]\r\n'args' = [\r\n]\r\n",
	} {
		for i := range Dialects {
			f.Add(uint8(i), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		d := Dialects[int(which)%len(Dialects)]
		want := newServers(d)
		got, _, err := Merge(data, want, d)
		if err != nil {
			return
		}
		back, _, err := parse(Options{Dialect: d, Import: true}, "", got)
		if err != nil {
			// Other mistakes in the file remain.
			if _, _, err := parse(Options{Dialect: d, Import: true}, "", data); err == nil && len(data) > 0 {
				t.Fatalf("%q became %q, which cannot be read", data, got)
			}
			return
		}
		for _, s := range want.Servers {
			if specs[d].dialect == ClaudeDesktop && s.Transport != TransportStdio {
				continue
			}
			if b := back.Server(s.Name); b == nil && len(back.Warnings) == 0 {
				t.Errorf("%s: %q became %q, without %s", d, data, got, s.Name)
			}
		}
		again, _, err := Merge(got, want, d)
		if err != nil || string(again) != string(got) {
			t.Errorf("%s: %q, merged again, became %q, %v", d, got, again, err)
		}
	})
}
