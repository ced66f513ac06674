package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	file, err := Parse("glovebox.toml", []byte(`#:schema docs/glovebox.schema.json
[template.data]
description = "polars and our data"
copy = ["data:/home/user/data", "wheels"]
run = ["pip install --no-index wheels/*.whl"]
preload = ["polars"]
env = { TZ = "UTC" }
flavor = "medium"
[template.web-1]
language = "javascript"
`))
	if err != nil {
		t.Fatal(err)
	}
	data, web := file.Template["data"], file.Template["web-1"]
	if data == nil || web == nil || data.From != Toolchain || data.Language != Python || data.Flavor != "medium" || data.Variables()[0] != "TZ=UTC" {
		t.Errorf("got %+v and %+v", data, web)
	}
	if web.Language != JavaScript || web.Flavor != "small" || web.Preload != nil {
		t.Errorf("defaults: got %+v", web)
	}
}

// Every mistake names its position, so that an editor can jump there.
func TestParse_Errors(t *testing.T) {
	long := strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"[template.data]\nrun = [\"x\",\n  \"\"]\n":               "r.toml:3:3: template \"data\": run: an empty command",
		"[template.data]\n\nrum = [\"x\"]\n":                      "r.toml:3:1: unknown key \"template.data.rum\"; did you mean run?",
		"[template.data]\nfrobnicate = 1\n":                       "r.toml:2:1: unknown key \"template.data.frobnicate\"; the keys are: description, from, language,",
		"[data]\nrun = [\"x\"]\n":                                 "r.toml:1:2: unknown key \"data\": a recipe is in a section [template.NAME]",
		"[template.data]\nrun = \"x\"\n":                          "r.toml:2:7: run must be a list of strings, such as run = [",
		"[template.data]\nflavor = \"huge\"\n":                    "r.toml:2:1: template \"data\": flavor: must be small, medium or large, got \"huge\"",
		"[template.data]\nlanguage = \"ruby\"\n":                  "r.toml:2:1: template \"data\": language: must be",
		"[template.data]\ncopy = [\"../x\"]\n":                    "r.toml:2:9: template \"data\": copy: the source \"../x\" is outside",
		"[template.data]\ncopy = [\"/etc/passwd:/tmp/x\"]\n":      "is outside of the directory of the recipe",
		"[template.data]\ncopy = [\"a:\"]\n":                      "must be SOURCE or SOURCE:DEST",
		"[template.data]\npreload = [\"a\", \"b c\"]\n":           "r.toml:2:17: template \"data\": preload: invalid module name",
		"[template.data]\nenv = { \"A B\" = \"x\" }\n":            "template \"data\": env: invalid variable name",
		"[template.data]\ndescription = \"a\\nb\"\n":              "description: must be one line",
		"[template.python]\n":                                     "r.toml:1:11: the template name \"python\" is reserved for what Glovebox has built in: choose another name, such as \"my-python\"",
		"[template.Data]\n":                                       "r.toml:1:11: invalid template name \"Data\"",
		"[template.\"../x\"]\n":                                   "invalid template name \"../x\"",
		"[template." + long + "]\n":                               "invalid template name",
		"[template.data\n":                                        "r.toml:1:",
		"template = 5\n":                                          "r.toml:1:",
		"[template]\ndata = { run = [\"ok\", \" \"] }\n":          "run: an empty command",
		strings.Repeat("#", maxFile+1):                            "larger than",
		"[template.data]\nrun = [" + strings.Repeat("\"x\",", 65): "r.toml:",
	} {
		_, err := Parse("r.toml", []byte(text))
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want %q", text, err, want)
		}
	}
}

// Values of another kind are errors in the terms of TOML, not of Go.
func TestParse_WrongKinds(t *testing.T) {
	for text, want := range map[string]string{
		"[template.data]\nrun = [\"a\", true]\n": "r.toml:2:13: run must be a list of strings, such as run = [\"pip install polars\"]",
		"[template.data]\nrun = [[1]]\n":         "r.toml:2:1: run must be a list of strings, such as",
		"[template.data.run]\na = 1\n":           "r.toml:1:2: run must be a list of strings, such as",
		"[template.data]\nenv = { A = 5 }\n":     "r.toml:2:13: env must be a table of strings, such as env = { TZ = \"UTC\" }",
		"[template.data]\nenv.A.B = \"x\"\n":     "r.toml:2:7: env must be a table of strings, such as",
		"template = 5\n":                         "r.toml:1:12: template must be sections [template.NAME], each with one recipe",
		"[template]\ndata = 5\n":                 "r.toml:2:8: template.data must be one section, such as [template.words]",
		"[[template.data]]\n":                    "r.toml:1:3: template.data must be one section, such as",
	} {
		if _, err := Parse("r.toml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, key := range keys {
		_, err := Parse("r.toml", []byte("[template.data]\n"+key+" = 1.5\n"))
		if want := fmt.Sprintf("r.toml:2:%d: %s must be %s", len(key)+4, key, kinds[key]); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", key, err, want)
		}
		example := kinds[key][strings.Index(kinds[key], key+" = "):]
		if _, err := Parse("r.toml", []byte("[template.data]\n"+example+"\n")); err != nil {
			t.Errorf("the example %s: %v", example, err)
		}
	}
	if n := reflect.TypeFor[Recipe]().NumField(); n != len(keys) || n != len(kinds) {
		t.Errorf("a recipe has %d keys, of which %d and %d are described", n, len(keys), len(kinds))
	}
}

// Hosts of a file are checked before a build begins, at their positions.
func TestParse_WrongHosts(t *testing.T) {
	for text, want := range map[string]string{
		"net = [\"pipy\"]":                                            "r.toml:2:8: template \"data\": net: network entry \"pipy\": neither a host name with a dot nor a preset (",
		"network = [\"pypi\", \"ftp://x.org\"]":                       "r.toml:2:20: template \"data\": network: network entry \"ftp://x.org\": unknown scheme",
		"network = [\"https//x\"]":                                    "r.toml:2:12: template \"data\": network: network entry ",
		"network = [" + strings.Repeat("\"pypi\",", maxLimit+1) + "]": "r.toml:2:1: template \"data\": network: has 33 entries, at most 32 are allowed",
	} {
		if _, err := Parse("r.toml", []byte("[template.data]\n"+text+"\n")); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Parse("r.toml", []byte("[template.data]\nnet = [\"PyPI\", \"https://example.org:8443\"]\nnetwork = []\n")); err != nil {
		t.Error(err)
	}
}

// Variables that boxes need for themselves are refused, with what they would break.
func TestCheck_VariablesOfBoxes(t *testing.T) {
	for name, want := range map[string]string{
		"PATH": "~/.local/bin", "HOME": "leave it out", "LOGNAME": "leave it out",
		"HTTP_PROXY": "their network: allow hosts with net and network", "https_proxy": "net and network", "NO_PROXY": "net and network",
	} {
		err := (&Recipe{Env: map[string]string{name: "x"}}).Check()
		if err == nil || !strings.HasPrefix(err.Error(), "env: boxes set "+name+" themselves") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	for _, name := range []string{"TZ", "PATHS", "path", "PYTHONPATH", "LANG"} {
		if err := (&Recipe{Env: map[string]string{name: "x"}}).Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file gives errors that its caller finds their positions, too.
func TestFile_Locate(t *testing.T) {
	file, err := Parse("r.toml", []byte("[template.data]\ncopy = [\"a\", \"b\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, missing := Copy{Dir: t.TempDir(), From: "b"}.Open()
	err = file.Locate(missing, "data", "copy", 1)
	if want := "r.toml:2:14: template \"data\": copy \"b\": no such file or directory in \""; !strings.HasPrefix(err.Error(), want) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("[template.data]\nrun = [\"x\"]\nenv = { A = \"b\" }\n"))
	f.Add([]byte("template.a.copy = [\"x:y\", 'z']\n[[template]]\n"))
	f.Add([]byte("template = { a = { run = [[1], {x = 2}] } }"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if err != nil {
			if bad, ok := errors.AsType[*Error](err); !ok || bad.Line < 0 || bad.Line > len(data)+1 {
				t.Errorf("got %#v", err)
			}
			return
		}
		for name, r := range file.Template {
			if CheckName(name) != nil || r.Check() != nil {
				t.Errorf("accepted %q: %+v", name, r)
			}
			for _, s := range r.Copy {
				if c, err := ParseCopy(s); err != nil || !filepath.IsLocal(c.From) {
					t.Errorf("accepted the copy %q", s)
				}
			}
		}
	})
}

// tree writes files to a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func keysOf(t *testing.T, r *Recipe, base string, copies []Copy) []string {
	t.Helper()
	steps, err := r.Plan(t.Context(), base, copies)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, s := range steps {
		keys = append(keys, s.Key)
	}
	return keys
}

// A step's key changes with everything that the step depends on, and with nothing else.
func TestPlan_Keys(t *testing.T) {
	dir := tree(t, map[string]string{"data/a": "1", "data/b/c": "2", "data/run.sh": "x"})
	copies := []Copy{{Dir: dir, From: "data", To: "data"}}
	r := func() *Recipe { return &Recipe{Run: []string{"one", "two"}, Env: map[string]string{"A": "1"}} }
	first := keysOf(t, r(), "base", copies)
	if len(first) != 3 || len(first[0]) != 64 {
		t.Fatalf("keys: %q", first)
	}
	same := func(what string, keys []string, n int) {
		t.Helper()
		for i := range first {
			if equal := keys[i] == first[i]; equal != (i < n) {
				t.Errorf("%s: step %d: the same key is %t, want %t", what, i, equal, i < n)
			}
		}
	}
	later := filepath.Join(dir, "data/a")
	info, err := os.Stat(later)
	if err != nil || os.Chtimes(later, info.ModTime().Add(-1e9), info.ModTime().Add(-1e9)) != nil {
		t.Fatal("chtimes", err)
	}
	same("another time", keysOf(t, r(), "base", copies), 3)
	same("another base", keysOf(t, r(), "other", copies), 0)
	env := r()
	env.Env["A"] = "2"
	same("another environment", keysOf(t, env, "base", copies), 0)
	second := r()
	second.Run[1] = "three"
	same("another second command", keysOf(t, second, "base", copies), 2)
	net := r()
	net.Net = []string{"pypi"}
	same("another network", keysOf(t, net, "base", copies), 1)
	preload := r()
	preload.Preload = []string{"json"}
	same("other modules to preload", keysOf(t, preload, "base", copies), 3)
	same("another destination", keysOf(t, r(), "base", []Copy{{Dir: dir, From: "data", To: "elsewhere"}}), 0)
	if err := os.Chmod(filepath.Join(dir, "data/run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	same("another mode", keysOf(t, r(), "base", copies), 0)
	if err := os.Chmod(filepath.Join(dir, "data/run.sh"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data/b/c"), []byte("3"), 0o644); err != nil {
		t.Fatal(err)
	}
	same("another content", keysOf(t, r(), "base", copies), 0)
}

// Names and contents cannot be confused: moving bytes between them changes the hash.
func TestCopy_SumIsUnambiguous(t *testing.T) {
	seen := make(map[string]string)
	for name, files := range map[string]map[string]string{
		"one file":   {"d/a": "b"},
		"two files":  {"d/a": "", "d/b": ""},
		"longer":     {"d/a": "b\"c\" -rw-r--r-- 0 "},
		"other name": {"d/ab": ""},
		"empty":      {"d/a/b": ""},
	} {
		sum, err := Copy{Dir: tree(t, files), From: "d"}.Sum(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if seen[sum] != "" {
			t.Errorf("%s and %s have the same hash", name, seen[sum])
		}
		seen[sum] = name
	}
}

// A recipe from elsewhere cannot copy files of its user that are not beside it.
func TestCopy_StaysInItsDirectory(t *testing.T) {
	outside := tree(t, map[string]string{"secret": "do not read"})
	dir := tree(t, map[string]string{"data/file": "x"})
	for name, target := range map[string]string{
		"link": filepath.Join(outside, "secret"), "dirlink": outside, "relative": "../" + filepath.Base(outside) + "/secret",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := (Copy{Dir: dir, From: name}).Sum(t.Context()); err == nil {
			t.Errorf("copied through the link to %s", target)
		}
	}
	plain, err := Copy{Dir: dir, From: "data"}.Sum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Inside a directory, such links are left out.
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "data/link")); err != nil {
		t.Fatal(err)
	}
	if sum, err := (Copy{Dir: dir, From: "data"}).Sum(t.Context()); err != nil || sum != plain {
		t.Errorf("a link out of the directory counts: %v", err)
	}
}

func TestCopy_Bounds(t *testing.T) {
	dir := tree(t, map[string]string{"d/small": "x"})
	large := filepath.Join(dir, "d/large")
	if err := os.WriteFile(large, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxCopyBytes); err != nil { // takes no space
		t.Fatal(err)
	}
	if _, err := (Copy{Dir: dir, From: "d"}).Sum(t.Context()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large directory: %v", err)
	}
	if _, err := (Copy{Dir: dir, From: "missing"}).Sum(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing source: %v", err)
	}
}
