//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logintest"
	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
)

// definition is a server of an mcp.json.
type definition map[string]any

func keeperNamed(name string, env ...string) definition {
	all := map[string]string{"KEEPER_NAME": name}
	for i := 0; i < len(env); i += 2 {
		all[env[i]] = env[i+1]
	}
	return definition{"command": "keeper", "env": all}
}

// writeServers writes an mcp.json.
func writeServers(t *testing.T, path string, servers map[string]definition) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// trusting runs glovebox mcp trust with a state directory.
func trusting(t *testing.T, state string, args ...string) {
	t.Helper()
	t.Setenv("GLOVEBOX_STATE_DIR", state)
	if code, _, stderr := run(append([]string{"mcp", "trust", "--yes"}, args...)...); code != 0 {
		t.Fatalf("glovebox mcp trust %q: exit code %d: %s", args, code, stderr)
	}
}

// lines runs code and returns the lines of its output before the status.
func lines(t *testing.T, c *mcp.ClientSession, id, code string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := python(ctx, c, id, code)
	if err != nil {
		t.Fatalf("run %q: %v", code, err)
	}
	text, _, _ := strings.Cut(out, "\n[session")
	return strings.Split(text, "\n")
}

// TestCode_serve uses the servers of an mcp.json from code in a box, those that cannot be
// used included.
func TestCode_serve(t *testing.T) {
	dir := t.TempDir()
	state, file, log := filepath.Join(dir, "state"), filepath.Join(dir, "mcp.json"), filepath.Join(dir, "log")
	started := filepath.Join(dir, "started")
	guarded := &logintest.Server{}
	guarded.Start()
	t.Cleanup(guarded.Close)
	servers := map[string]definition{
		"a":         keeperNamed("apple", "KEEPER_STARTED", started),
		"my-server": keeperNamed("pear"),
		"fresh":     keeperNamed("fig"),
		"gone":      {"command": "/nonexistent/server"},
		"hangs":     keeperNamed("quince", "KEEPER_HANGS", "1"),
		"guarded":   {"url": guarded.URL},
		"own":       {"command": "glovebox", "args": []string{"stdio"}},
	}
	writeServers(t, file, servers)
	trusting(t, state, "--config", file, "a", "my-server", "gone", "hangs", "guarded")
	s := startServer(t, state, "--pool-size", "0", "--tools", file, "--tool-rules", "allow my-server put", "--log-file", log)
	s.awaitReady()
	c := s.connect()

	if got := lines(t, c, "x", "print(1)"); got[0] != "1" {
		t.Errorf("got %q", got)
	}
	if exists(started) {
		t.Error("a run without calls started a server")
	}
	if got := lines(t, c, "x", "print(tools.a.get()['name'], tools.my_server.put(name='plum')['name'], tools['my-server'].get()['name'])"); got[0] != "apple plum plum" {
		t.Errorf("got %q", got)
	}
	if got := lines(t, c, "x", "print(tools.a.get()['uid'])"); got[0] != fmt.Sprint(os.Getuid()) {
		t.Errorf("the server runs as user %q, want %d", got, os.Getuid())
	}
	failure := func(call string) string {
		t.Helper()
		got := lines(t, c, "x", "try:\n    "+call+"\n    print('no error')\nexcept ToolError as e:\n    print(e.code, e.message)")
		return got[0]
	}
	for call, want := range map[string]string{
		"tools.a.put(name='x')": `^approval_required .*rule`,
		"tools.fresh.get()":     `^untrusted .*GLOVEBOX_STATE_DIR=\S+ glovebox mcp trust --config \S+/mcp.json fresh`,
		"tools.gone.get()":      `^unavailable .*"gone" is not available: .*/nonexistent/server`,
		"tools.guarded.echo()":  `^unavailable .*glovebox mcp login --config \S+/mcp.json guarded`,
		"tools.ap.get()":        `^unknown_server no server "ap".*; the servers are `,
		"tools.my_serve.get()":  `^unknown_server .*did you mean my_server\?`,
		"tools.a.gett()":        `^unknown_tool .*did you mean get\?`,
		"tools.a.get(x=1)":      `^invalid_arguments .*no argument "x"`,
		"tools.own.x()":         `^unknown_server `,
	} {
		if got := failure(call); !regexp.MustCompile(strings.Replace(want, "no server", "there is no server", 1)).MatchString(got) {
			t.Errorf("%s: got %q, want %s", call, got, want)
		}
	}
	// The user does what the message says.
	trusting(t, state, "--config", file, "fresh")
	if got := lines(t, c, "x", "print(tools.fresh.get()['name'])"); got[0] != "fig" {
		t.Errorf("after it was trusted: got %q", got)
	}

	// A changed file, and a file with an error.
	servers["b"] = keeperNamed("banana")
	writeServers(t, file, servers)
	trusting(t, state, "--config", file, "b")
	s.hup(log, `msg="reload: file reloaded" file="tools of code"`)
	if got := lines(t, c, "x", "print(tools.b.get()['name'], tools.a.get()['name'])"); got[0] != "banana apple" {
		t.Errorf("after a reload: got %q", got)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.hup(log, `msg="reload: file unchanged" file="tools of code"`)
	if got := lines(t, c, "x", "print(tools.b.get()['name'])"); got[0] != "banana" {
		t.Errorf("after a failed reload: got %q", got)
	}

	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 || !strings.Contains(log, "tool=get outcome=ok") {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

// TestCode_owners gives each owner servers, approvals and connections of their own.
func TestCode_owners(t *testing.T) {
	dir, k := t.TempDir(), newTokens(t)
	state := filepath.Join(dir, "state")
	for _, name := range []string{"alice", "bob"} {
		writeServers(t, filepath.Join(dir, name+".json"), map[string]definition{"box": keeperNamed("of " + name)})
	}
	owners := filepath.Join(dir, "owners.json")
	text := `{"owners": {
		"token alice": {"tools": "alice.json", "rules": ["allow box put"]},
		"token bob": {"tools": "` + dir + `/bob.json"}, // absolute
	}}`
	if err := os.WriteFile(owners, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	trusting(t, state, "--config", filepath.Join(dir, "alice.json"), "--owner", "token alice", "box")
	trusting(t, state, "--config", filepath.Join(dir, "bob.json"), "box") // the local user's approval
	s := startServer(t, state, "--pool-size", "0", "--tokens-file", k.file, "--tools-owners", owners)
	alice, bob, carol := s.as(t, k.alice), s.as(t, k.bob), s.as(t, k.carol)
	if got := lines(t, alice.c, "x", "print(tools.box.put(name='changed')['name'], tools.box.get()['name'])"); got[0] != "changed changed" {
		t.Errorf("alice: got %q", got)
	}
	get := "try:\n    print(tools.box.get()['name'])\nexcept ToolError as e:\n    print(e.code, e.message)"
	if got := lines(t, bob.c, "x", get); !strings.HasPrefix(got[0], "untrusted ") || !strings.Contains(got[0], "The operator can allow it") || strings.Contains(got[0], dir) || strings.Contains(got[0], "glovebox mcp") {
		t.Errorf("bob: got %q", got)
	}
	trusting(t, state, "--config", filepath.Join(dir, "bob.json"), "--owner", "token bob", "box")
	if got := lines(t, bob.c, "x", get); got[0] != "of bob" {
		t.Errorf("bob: got %q", got)
	}
	if got := strings.Join(lines(t, carol.c, "x", "tools.box.get()"), "\n"); !strings.Contains(got, "NameError") {
		t.Errorf("carol: got %q", got)
	}
	dirs, err := os.ReadDir(filepath.Join(state, "mcp", "owners"))
	if err != nil || len(dirs) != 2 {
		t.Errorf("state of owners: %v, %v", dirs, err)
	}
	for _, d := range dirs {
		if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(d.Name()) {
			t.Errorf("state of an owner in %q", d.Name())
		}
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if _, log := s.wait(time.Minute); !strings.Contains(log, "--owner 'token bob' box") {
		t.Errorf("the log does not have the command for the operator:\n%s", log)
	}
}

// TestCode_stdio calls tools over standard input and output, the transport of most
// clients.
func TestCode_stdio(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mcp.json")
	writeServers(t, file, map[string]definition{"a": keeperNamed("apple")})
	trusting(t, filepath.Join(dir, "state"), "--config", file, "a")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: exe, Args: []string{"glovebox", "stdio", "--pool-size", "0", "--tools", "mcp.json"}, Dir: dir, Stderr: os.Stderr}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := lines(t, c, "x", "print(tools.a.get()['name'])"); got[0] != "apple" {
		t.Errorf("got %q", got)
	}
}

// TestCode_announced uses the configuration for clients that start Glovebox themselves, as
// glovebox serve prints it.
func TestCode_announced(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mcp.json")
	writeServers(t, file, map[string]definition{"a": keeperNamed("apple")})
	trusting(t, filepath.Join(dir, "state"), "--config", file, "a")
	s := launch(t, endpoint, func(cmd *exec.Cmd) { cmd.Dir = dir }, "glovebox", "serve", "--port", "0", "--pool-size", "0", "--preload", "none",
		"--tools", "mcp.json", "--tool-rules", "deny a del*, allow a put")
	s.awaitReady()
	s.cmd.Process.Signal(syscall.SIGTERM)
	_, log := s.wait(time.Minute)
	_, text, _ := strings.Cut(log, "or, so that the client starts it itself:\n")
	var printed struct {
		Servers map[string]struct{ Args []string } `json:"mcpServers"`
	}
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&printed); err != nil {
		t.Fatalf("%v in\n%s", err, log)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: exe, Args: append([]string{"glovebox"}, append(printed.Servers["glovebox"].Args, "--pool-size", "0")...), Dir: t.TempDir(), Stderr: os.Stderr}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := lines(t, c, "x", "print(tools.a.put(name='pear')['name'])"); got[0] != "pear" {
		t.Errorf("with the arguments %q: got %q", printed.Servers["glovebox"].Args, got)
	}
}

// TestStdioArgs_reread reads the printed rules again.
func TestStdioArgs_reread(t *testing.T) {
	for _, rules := range [][]string{nil, {"allow a put"}, {"deny a del*", "allow a"}, {"allow a x,y", "allow b"}} {
		args := stdioArgs(&config.Config{Tools: "/x/mcp.json", ToolRules: rules})
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		config.Bind(flags, "code")
		if err := flags.Parse(args[1:]); err != nil {
			t.Fatal(err)
		}
		cfg, _, err := config.Load(flags, func(string) (string, bool) { return "", false })
		if err != nil || cfg.Tools != "/x/mcp.json" || !slices.Equal(cfg.ToolRules, rules) {
			t.Errorf("%q: got %q, %q, %v", args, cfg.Tools, cfg.ToolRules, err)
		}
	}
	cfg := &config.Config{NetworkFile: "/x/network.toml", EgressPins: []string{"a.example=127.0.0.1", "b.example=127.0.0.1"}, EgressCA: "/x/ca.pem", Image: "/x/image", Toolsets: []string{"files", "snapshots"}}
	want := []string{"stdio", "--toolset", "files,snapshots", "--network-file", "/x/network.toml", "--egress-pin", "a.example=127.0.0.1", "--egress-pin", "b.example=127.0.0.1", "--egress-ca", "/x/ca.pem", "--image", "/x/image"}
	if args := stdioArgs(cfg); !slices.Equal(args, want) {
		t.Errorf("got %q, want %q", args, want)
	}
	if args := stdioArgs(&config.Config{ToolRules: []string{"allow a"}, Toolsets: []string{"sessions"}}); !slices.Equal(args, []string{"stdio"}) {
		t.Errorf("without tools: got %q", args)
	}
}

// TestCode_itself calls a server that starts this program again with the same servers,
// which its definition hides.
func TestCode_itself(t *testing.T) {
	dir := t.TempDir()
	state, file := filepath.Join(dir, "state"), filepath.Join(dir, "mcp.json")
	writeServers(t, file, map[string]definition{
		"a":   keeperNamed("apple"),
		"own": {"command": "sh", "args": []string{"-c", "exec glovebox stdio --pool-size 0 --state-dir " + state + " --tools " + file}},
	})
	trusting(t, state, "--config", file, "a", "own")
	s := startServer(t, state, "--pool-size", "0", "--tools", file, "--tool-rules", "allow own *")
	s.awaitReady()
	c := s.connect()
	got := lines(t, c, "x", "try:\n    print(tools.own.execute_code(code='print(tools.a.get())'))\nexcept ToolError as e:\n    print(e.code, e.message)\nprint(tools.a.get()['name'])")
	if !strings.HasPrefix(got[0], "unavailable ") || got[len(got)-1] != "apple" {
		t.Errorf("got %q", got)
	}
	// Code is not shown what a server writes to standard error; the operator is.
	s.cmd.Process.Signal(syscall.SIGTERM)
	if _, log := s.wait(time.Minute); !strings.Contains(log, "would call itself without end") {
		t.Errorf("got the log\n%s", log)
	}
}

// TestCode_search calls the tools for web search by code.
func TestCode_search(t *testing.T) {
	dir := t.TempDir()
	api := perplexitytest.New(t)
	t.Setenv("PERPLEXITY_API_KEY", perplexitytest.Key)
	t.Setenv("PERPLEXITY_BASE_URL", api.URL)
	file := filepath.Join(dir, "mcp.json")
	writeServers(t, file, map[string]definition{"a": keeperNamed("apple")})
	s := startServer(t, filepath.Join(dir, "state"), "--pool-size", "0", "--tools", file)
	c := s.connect()
	got := lines(t, c, "x", "a = await tools.perplexity.perplexity_ask(messages=[{'role': 'user', 'content': 'q'}])\nprint(a)")
	if !strings.Contains(got[0], "The answer [1][2].") || strings.Contains(got[0], perplexitytest.Key) {
		t.Errorf("got %q", got)
	}
}

// TestCode_badSettings starts servers with settings that do not work.
func TestCode_badSettings(t *testing.T) {
	dir, k := t.TempDir(), newTokens(t)
	t.Setenv("GLOVEBOX_STATE_DIR", filepath.Join(dir, "state"))
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.json", `{"mcpServers": {"a": {"command": "keeper"}}}`)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string // of the error and the hint
	}{
		{[]string{"--tools", filepath.Join(dir, "none.json")}, `tools: .*/none.json: .*no such file or directory\n.*hint: write one, such as`},
		{[]string{"--tools", dir}, `is a directory`},
		{[]string{"--tools", file("bad.json", `{"mcpServers": `)}, `: tools: read /[^ ]*/bad\.json:1:\d+: invalid JSON: [^/]*\n.*hint: correct the file, and check it with: glovebox mcp ls --config /`},
		{[]string{"--tools", file("empty.json", `{"mcpServers": {}}`)}, `no enabled server .*\n.*hint: add one`},
		{[]string{"--tools", file("own.json", `{"mcpServers": {"box": {"command": "glovebox", "args": ["stdio"]}}}`)}, `no enabled server`},
		{[]string{"--tools", file("twice.json", `{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}`)}, `: tools: read /[^ ]*/twice\.json:1:\d+: duplicate key "a"; first in line 1\n`},
		{[]string{"--tools", good, "--tool-rules", "permit a"}, `tool-rules: parse rule "permit a": unknown decision "permit": want allow, ask or deny`},
		{[]string{"--tools", good, "--tool-rules", "deny"}, `such as "deny github delete_\*"`},
		{[]string{"--tools", good, "--tool-rules", "deny a ["}, `syntax error in pattern`},
		{[]string{"--tools", good, "--tokens-file", k.file}, `tools .* is for the user of this machine.*\n.*--tools-owners`},
		{[]string{"--tools-owners", good}, `needs access tokens.*\n.*use --tools`},
		{[]string{"--tools-owners", filepath.Join(dir, "none"), "--tokens-file", k.file}, `tools-owners: open .*/none: no such file`},
		{[]string{"--tools-owners", good, "--tokens-file", k.file}, `unknown field .*\{"owners": `},
		{[]string{"--tools-owners", file("o1.json", `{"owners": {"alice": {"tools": "good.json"}}}`), "--tokens-file", k.file}, `"alice" is no owner: write "token NAME"`},
		{[]string{"--tools-owners", file("o2.json", `{"owners": {"token alice": {}}}`), "--tokens-file", k.file}, `"token alice" has no "tools"`},
		{[]string{"--tools-owners", file("o3.json", `{"owners": {"token alice": {"tools": "none.json"}}}`), "--tokens-file", k.file}, `owner "token alice": .*/none.json: .*no such file`},
		{[]string{"--tools-owners", file("o4.json", `{"owners": {"token alice": {"tools": "good.json", "rules": ["x"]}}}`), "--tokens-file", k.file}, `owner "token alice": parse rule "x"`},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, exe)
		cmd.Args = append([]string{"glovebox", "serve", "--port", "0", "--state-dir", filepath.Join(dir, "state")}, c.args...)
		out, err := cmd.CombinedOutput()
		cancel()
		if code := cmd.ProcessState.ExitCode(); err == nil || code != ExitUsage || !regexp.MustCompile(c.want).Match(out) {
			t.Errorf("%q: exit code %d, output\n%s\nwant %s", c.args, code, out, c.want)
		}
	}
}
