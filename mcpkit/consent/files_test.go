package consent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// define returns a definition that runs words in dir.
func define(dir string, words ...string) *mcpjson.Server {
	s := &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportStdio, Dir: dir, Command: mcpjson.Literal(words[0])}
	for _, w := range words[1:] {
		s.Args = append(s.Args, mcpjson.Literal(w))
	}
	return s
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "server.js"), "1", 0o600)
	write(t, filepath.Join(dir, "sub", "server.js"), "1", 0o600)
	write(t, filepath.Join(dir, "sp ace.js"), "1", 0o600)
	write(t, filepath.Join(dir, "run"), "#!/bin/sh\n", 0o600)
	write(t, filepath.Join(dir, "data.db"), "data", 0o600)
	write(t, filepath.Join(dir, "marked.db"), "data", 0o700)
	write(t, filepath.Join(dir, "sub", "index.js"), "1", 0o600)
	write(t, filepath.Join(dir, "pkg", "__main__.py"), "1", 0o600)
	write(t, filepath.Join(dir, ".env"), "A=1", 0o600)
	write(t, filepath.Join(dir, "ext", "start.js"), "1", 0o600)
	write(t, filepath.Join(dir, "app", "package.json"), `{"main": "lib/main", "bin": {"b": "cli.js", "a": "./bin/run"}}`, 0o600)
	write(t, filepath.Join(dir, "own", "package.json"), `{"name": "@scope/server", "bin": "run.js"}`, 0o600)
	write(t, filepath.Join(dir, "programs", "package.json"), `{"directories": {"bin": "./bin"}}`, 0o600)
	write(t, filepath.Join(dir, "build.mk"), "all:", 0o600)
	write(t, filepath.Join(dir, "bom", "package.json"), "\ufeff"+`{"main": "a.x", "Main": "b.x", "BIN": "c.x"}`, 0o600)
	if err := os.Symlink("server.js", filepath.Join(dir, "link.js")); err != nil {
		t.Fatal(err)
	}
	lookup := func(name string) (string, bool) { return "server.js", name == "SCRIPT" }
	for _, tt := range []struct {
		name   string
		s      *mcpjson.Server
		change func(*mcpjson.Server)
		want   []string
	}{
		{"script", define(dir, "node", "server.js"), nil, []string{"server.js"}},
		{"script, missing", define(dir, "node", "later.js"), nil, []string{"later.js"}},
		{"absolute", define(dir, "node", filepath.Join(dir, "server.js")), nil, []string{"server.js"}},
		{"link", define(dir, "node", "link.js"), nil, []string{"link.js"}},
		{"preloaded", define(dir, "node", "--import=./server.js", "x"), nil, []string{"server.js"}},
		{"program", define(dir, "./run", "data.db"), nil, []string{"run"}},
		{"program as an argument", define(dir, "env", "./run", "data.db"), nil, []string{"run"}},
		{"script without a suffix", define(dir, "python3.13", "data.db", ".env"), nil, []string{".env", "data.db"}},
		{"package", define(dir, "python3", "pkg"), nil, []string{"pkg/__main__.py"}},
		{"module", define(dir, "python3", "-m", "a.b"), nil, []string{"a/b.py", "a/b/__init__.py", "a/b/__main__.py"}},
		{"working directory", define(dir, "node", "server.js"), func(s *mcpjson.Server) { s.Cwd = mcpjson.Literal("sub") }, []string{"sub/server.js"}},
		{"directory flag", define(dir, "uv", "--directory", "sub", "run", "server.js"), nil,
			[]string{"pyproject.toml", "run", "server.js", "sub/pyproject.toml", "sub/server.js", "sub/uv.toml", "uv.toml"}},
		{"npx", define(dir, "npx", "-y", "@scope/server@1.2.3", "data.db"), nil, []string{".npmrc", "node_modules/.bin/data.db", "node_modules/.bin/server"}},
		{"file of variables", define(dir, "server"), func(s *mcpjson.Server) { s.EnvFile = mcpjson.Literal(".env") }, []string{".env"}},
		{"placeholders", define(dir, "node"), func(s *mcpjson.Server) {
			s.Args = []mcpjson.Text{
				{{Sources: []mcpjson.Source{{Scheme: mcpjson.SchemeDir, Name: mcpjson.DirRoot}}}, {Literal: "/server.js"}},
				mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeEnv, Name: "UNSET"}, mcpjson.Source{Scheme: mcpjson.SchemeValue, Name: "run"}),
				mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeEnv, Name: "SCRIPT"}),
				mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeInput, Name: "asked"}),
			}
		}, []string{"run", "server.js"}},
		{"of the system", define(dir, "/usr/bin/env", "/bin/sh"), nil, nil},
		{"data", define(dir, "server", "data.db"), nil, nil},
		{"data marked as executable", define(dir, "server", "marked.db"), nil, nil},
		{"directory as an argument of a script", define(dir, "python3", "server.js", "pkg"), nil, []string{"server.js"}},
		{"directory after the value of a flag", define(dir, "python3", "-W", "ignore", "pkg"), nil, []string{"pkg/__main__.py"}},
		{"directory after an interpreter", define(dir, "uv", "run", "--with", "x", "python", "pkg", "sub"), nil, []string{"pkg/__main__.py", "pyproject.toml", "run", "uv.toml"}},
		{"script with a suffix that is left out", define(dir, "node", "ext/start"), nil, []string{"ext/start", "ext/start.js"}},
		{"directory with a package.json", define(dir, "node", "app"), nil, []string{"app/bin/run", "app/cli.js", "app/lib/main", "app/package.json"}},
		{"npx of a directory", define(dir, "npx", "./app"), nil, []string{".npmrc", "app/bin/run", "app/cli.js", "app/lib/main", "app/package.json", "node_modules/.bin/app"}},
		{"script behind env", define(dir, "env", "A=b", "timeout", "5m", "bash", "data.db", "marked.db"), nil, []string{"data.db"}},
		{"script behind env with a flag", define(dir, "env", "-u", "FOO", "timeout", "-s", "KILL", "5", "node", "data.db"), nil, []string{"data.db"}},
		{"script in the text that env splits", define(dir, "env", "-S", "node data.db"), nil, []string{"data.db"}},
		{"quotes in that text", define(dir, "/usr/bin/env", "-iS", `A="b c" timeout 5 node 'sp ace.js' marked.db # data.db`), nil, []string{"sp ace.js"}},
		{"joined with the flag", define(dir, "env", "-i", "-Snode data.db"), nil, []string{"data.db"}},
		{"joined with the short flag", define(dir, "env", "-S-u FOO node", "data.db"), nil, []string{"data.db"}},
		{"joined with the long flag", define(dir, "timeout", "5", "env", "--split=node data.db"), nil, []string{"data.db"}},
		{"text in the text", define(dir, "env", "-S", `env -S "node data.db"`), nil, []string{"data.db"}},
		{"launcher in that text", define(dir, "env", "-S", "npx -y ./app"), nil, []string{".npmrc", "app/bin/run", "app/cli.js", "app/lib/main", "app/package.json", "node_modules/.bin/app"}},
		{"launcher behind env", define(dir, "env", "A=b", "make", "-f", "build.mk"), nil, []string{"GNUmakefile", "Makefile", "build.mk", "makefile"}},
		{"flag of another program", define(dir, "env", "server", "-S", "node data.db"), nil, nil},
		{"npx of the own package's program", define(filepath.Join(dir, "app"), "npx", "-y", "b"), nil,
			[]string{"app/.npmrc", "app/cli.js", "app/node_modules/.bin/b", "app/package.json"}},
		{"npx of another package's program", define(filepath.Join(dir, "app"), "npx", "-y", "c"), nil, []string{"app/.npmrc", "app/node_modules/.bin/c"}},
		{"npx of a package by its own name", define(filepath.Join(dir, "own"), "npx", "server"), nil,
			[]string{"own/.npmrc", "own/node_modules/.bin/server", "own/package.json", "own/run.js"}},
		{"npx of a package's directory of programs", define(filepath.Join(dir, "programs"), "npx", "x"), nil,
			[]string{"programs/.npmrc", "programs/bin/x", "programs/node_modules/.bin/x", "programs/package.json"}},
		{"script of package.json", define(dir, "node", "--run", "start"), nil, []string{"package.json"}},
		{"data of a program behind env", define(dir, "env", "-i", "server", "data.db"), nil, nil},
		{"package.json with a BOM and keys in another case", define(dir, "node", "bom"), nil, []string{"bom/a.x", "bom/package.json"}},
		{"make -f", define(dir, "make", "-f", "build.mk", "all"), nil, []string{"GNUmakefile", "Makefile", "build.mk", "makefile"}},
		{"make --file=", define(dir, "make", "--file=build.mk", "all"), nil, []string{"GNUmakefile", "Makefile", "build.mk", "makefile"}},
		{"-f of another program", define(dir, "server", "-f", "build.mk"), nil, nil},
		{"container", define(dir, "docker", "create", "-i", "image"), nil, nil},
		{"containers", define(dir, "docker", "compose", "exec", "srv"), nil, []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}},
		{"over HTTP", &mcpjson.Server{Transport: mcpjson.TransportHTTP}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.change != nil {
				tt.change(tt.s)
			}
			files, err := Files(t.Context(), tt.s, mcpjson.Resolver{Env: lookup, Root: dir})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range files {
				rel, err := filepath.Rel(dir, f.Path)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, rel)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// A script that is replaced, created or reached over another link after the approval
// needs another approval.
func TestState_FileChanges(t *testing.T) {
	dir, s := t.TempDir(), open(t)
	for _, tt := range []struct {
		name   string
		change func(path string)
	}{
		{"another content", func(path string) { write(t, path, "evil", 0o600) }},
		{"same size and time", func(path string) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, "Good", 0o600)
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}},
		{"no longer a program", func(path string) { write(t, strings.Replace(path, "server.js", "run", 1), "data", 0o600) }},
		{"removed", func(path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}},
		{"created", func(path string) { write(t, strings.Replace(path, "server.js", "later.js", 1), "evil", 0o600) }},
		{"replaced by a directory", func(path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(path, "index.js"), "evil", 0o600)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(tt.name, " ", "-"), "server.js")
			write(t, path, "good", 0o600)
			write(t, filepath.Join(filepath.Dir(path), "run"), "#!/bin/sh\n", 0o600)
			definition := func() Definition {
				d := Definition{Server: "srv", Source: path, Hash: "h"}
				var err error
				if d.Files, err = Files(t.Context(), define(filepath.Dir(path), "node", "server.js", "later.js", "run"), mcpjson.Resolver{}); err != nil {
					t.Fatal(err)
				}
				return d
			}
			if err := s.Grant(t.Context(), definition()); err != nil {
				t.Fatal(err)
			}
			if state, _, err := s.State(definition()); err != nil || state != Granted {
				t.Fatalf("before the change: %s, %v", state, err)
			}
			tt.change(path)
			state, files, err := s.State(definition())
			if err != nil || state != Changed || len(files) == 0 || !strings.HasPrefix(files[0], filepath.Dir(path)) {
				t.Errorf("after the change: %s, %q, %v", state, files, err)
			}
		})
	}
}

// A package.json that is created after the approval decides what runs.
func TestState_PackageAppears(t *testing.T) {
	for _, command := range [][]string{
		{"node", "."}, {"npx", "."}, {"env", "-S", "node ."}, {"npx", "-y", "server"}, {"env", "A=b", "npx", "server"},
		{"node", "--run", "server"}, {"deno", "task", "server"}, {"env", "npm", "run", "server"},
	} {
		t.Run(strings.Join(command, " "), func(t *testing.T) {
			dir, s := t.TempDir(), open(t)
			write(t, filepath.Join(dir, "index.js"), "good", 0o600)
			definition := func() Definition {
				d := Definition{Server: "srv", Source: dir, Hash: "h"}
				var err error
				if d.Files, err = Files(t.Context(), define(dir, command...), mcpjson.Resolver{}); err != nil {
					t.Fatal(err)
				}
				return d
			}
			if err := s.Grant(t.Context(), definition()); err != nil {
				t.Fatal(err)
			}
			if state, _, err := s.State(definition()); err != nil || state != Granted {
				t.Fatalf("before the change: %s, %v", state, err)
			}
			path := filepath.Join(dir, "package.json")
			write(t, path, `{"name": "server", "main": "evil.js", "bin": "evil.js", "scripts": {"server": "evil"}}`, 0o600)
			if state, files, err := s.State(definition()); err != nil || state != Changed || !slices.Contains(files, path) {
				t.Errorf("got %s, %q, %v", state, files, err)
			}
		})
	}
}

// An approval from before files were stored is asked for again if there are files.
func TestState_GrantWithoutFiles(t *testing.T) {
	s := open(t)
	if err := s.Grant(t.Context(), Definition{Server: "srv", Source: "/a", Hash: "h"}); err != nil {
		t.Fatal(err)
	}
	d := Definition{Server: "srv", Source: "/a", Hash: "h", Files: []File{{"/a/server.js", "1"}}}
	if state, files, err := s.State(d); err != nil || state != Changed || !slices.Equal(files, []string{"/a/server.js"}) {
		t.Errorf("got %s, %q, %v", state, files, err)
	}
}

// The approvals of definitions with long paths do not outgrow the file.
func TestGrant_BoundedBytes(t *testing.T) {
	s := open(t)
	d := Definition{Server: "srv", Hash: "h"}
	for range maxFiles {
		d.Files = append(d.Files, File{"/" + strings.Repeat("x", maxPath), strings.Repeat("0", 64)})
	}
	for _, source := range strings.Split("abcdefghijklmnop", "") {
		d.Source = source
		if err := s.Grant(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if state, _, err := s.State(d); err != nil || state != Granted {
			t.Fatalf("%s: %s, %v", source, state, err)
		}
	}
}

// Of many files, one entry stands for the rest, so that the definition can be used. A
// change of any of them needs another approval.
func TestFiles_Many(t *testing.T) {
	dir := t.TempDir()
	words := []string{"node"}
	for i := range maxFiles + 10 {
		name := fmt.Sprintf("%03d.js", i)
		write(t, filepath.Join(dir, name), "1", 0o600)
		words = append(words, name)
	}
	find := func(words ...string) []File {
		t.Helper()
		files, err := Files(t.Context(), define(dir, words...), mcpjson.Resolver{})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	before := find(words...)
	if last := before[len(before)-1]; len(before) != maxFiles+1 || last.Path != "(10 more files)" || !last.Hashed() {
		t.Fatalf("%d files, the last is %v", len(before), last)
	}
	write(t, filepath.Join(dir, fmt.Sprintf("%03d.js", maxFiles+5)), "2", 0o600)
	if got := different(before, find(words...)); !slices.Equal(got, []string{"(10 more files)"}) {
		t.Errorf("after a change of the last but five: %q", got)
	}
	for i := range 2 * maxFound {
		words = append(words, fmt.Sprintf("missing%d.js", i))
	}
	if many, err := Files(t.Context(), define(dir, words...), mcpjson.Resolver{}); err == nil || !strings.Contains(err.Error(), "more than 1024 files") {
		t.Errorf("got %d files, %v, want an error", len(many), err)
	}
}

// Another PATH asks again only if another program of the project is found with it.
func TestFiles_Path(t *testing.T) {
	home := t.TempDir()
	project := filepath.Join(home, "project")
	program := filepath.Join(project, "tools", "run")
	write(t, program, "#!/bin/sh\n", 0o700)
	write(t, filepath.Join(project, "other", "run"), "#!/bin/sh\nexit\n", 0o700)
	write(t, filepath.Join(home, "bin", "run"), "#!/bin/sh\n", 0o700)
	if err := os.MkdirAll(filepath.Join(project, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(project, "bin", "run")); err != nil {
		t.Fatal(err)
	}
	find := func(dir, path string) []File {
		t.Helper()
		t.Setenv("PATH", path)
		files, err := Files(t.Context(), define(dir, "run"), mcpjson.Resolver{Home: home})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	// A link to a program of the system is the project's, and may be changed.
	link := filepath.Join(project, "links", "run")
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", link); err != nil {
		t.Fatal(err)
	}
	if got := find(project, filepath.Dir(link)); len(got) != 1 || got[0].Path != link {
		t.Errorf("a link to a program of the system: got %v, want %s", got, link)
	}
	before := find(project, filepath.Join(project, "tools"))
	if len(before) != 1 {
		t.Fatalf("got %v, want the program", before)
	}
	if got := different(before, find(project, "/nowhere:"+filepath.Join(project, "bin"))); len(got) > 0 {
		t.Errorf("a link to the same program: %q have changed", got)
	}
	if got := different(before, find(project, filepath.Join(project, "other"))); len(got) == 0 {
		t.Error("another program of the project needs no approval")
	}
	// The definitions of the user's own file in the home directory.
	if got := different(find(home, filepath.Join(home, "bin")), find(home, "/usr/bin")); len(got) > 0 {
		t.Errorf("programs that the user has installed at home: %q have changed", got)
	}
}

// Programs of a package.json that cannot be found out are no reason to approve less.
func TestFiles_UnusablePackage(t *testing.T) {
	var many []string
	for i := range maxPrograms + 1 {
		many = append(many, fmt.Sprintf(`"p%d": "p%d.js"`, i, i))
	}
	for name, c := range map[string]struct{ text, want string }{
		"too large":     {`{"main": "a.js", "x": "` + strings.Repeat("x", maxPackage) + `"}`, "it is larger than 1048576 bytes"},
		"many programs": {`{"bin": {` + strings.Join(many, ",") + `}}`, "it names 33 programs; the limit is 32"},
		"not JSON":      {`{"main": "a.js"`, "unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "app", "package.json"), c.text, 0o600)
			files, err := Files(t.Context(), define(dir, "node", "app"), mcpjson.Resolver{})
			if err == nil || !strings.Contains(err.Error(), "package.json") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want an error with %q", files, err, c.want)
			}
		})
	}
}
