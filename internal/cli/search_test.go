//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/perplexity/perplexitytest"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// The key of the search API is in no answer, page, log, audit line or recording, and not
// in what other users or boxes see of the server's processes.
func TestSearch_KeyIsNowhere(t *testing.T) {
	api := perplexitytest.New(t)
	dir := t.TempDir()
	audit := filepath.Join(dir, "audit.log")
	env := append(os.Environ(), "PERPLEXITY_API_KEY="+perplexitytest.Key, "PERPLEXITY_BASE_URL="+api.URL)
	s := launch(t, endpoint, func(cmd *exec.Cmd) { cmd.Env = env },
		"glovebox", "serve", "--port", "0", "--pool-size", "0", "--preload", "none", "--state-dir", filepath.Join(dir, "state"), "--log-level", "debug", "--audit-log", audit)
	s.awaitReady()
	seen := map[string]string{}
	c := s.connect()
	for tool, args := range map[string]string{
		"perplexity_search": `{"query": "scenario:key"}`, "perplexity_ask": `{"messages": [{"role": "user", "content": "scenario:key"}]}`,
		"perplexity_reason":   `{"messages": [{"role": "user", "content": "scenario:failed"}]}`,
		"perplexity_research": `{"messages": []}`,
		"execute_command":     `{"command": "env; cat /proc/*/environ /proc/*/cmdline", "session_id": "box"}`,
	} {
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		data, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		seen["the answer of "+tool] = string(data)
	}
	if !strings.Contains(seen["the answer of perplexity_search"], "[API key]") {
		t.Errorf("the stand-in did not repeat the key: %s", seen["the answer of perplexity_search"])
	}
	for path, accept := range map[string]string{"/": "text/html", "/mcp": "application/json", "/metrics": "*/*", "/health": "*/*", "/ready": "*/*"} {
		_, _, seen[path] = s.get(path, accept)
	}
	if !strings.Contains(seen["/mcp"], "perplexity_search") {
		t.Errorf("the status does not list the tool: %s", seen["/mcp"])
	}
	for pid, process := range processesBelow(t, s.cmd.Process.Pid) {
		seen["the command line of "+pid] = process.cmdline
		if pid != fmt.Sprint(s.cmd.Process.Pid) && strings.Contains(process.cmdline, "runsc") {
			seen["the environment of "+pid] = process.environ
		}
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	code, log := s.wait(time.Minute)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	seen["the log"], seen["standard output"] = log, s.stdout.String()
	data, err := os.ReadFile(audit)
	if err != nil || !strings.Contains(string(data), "perplexity_ask") {
		t.Errorf("audit log: %v: %s", err, data)
	}
	seen["the audit log"] = string(data)
	for what, text := range seen {
		if strings.Contains(text, perplexitytest.Key) {
			t.Errorf("%s has the key: %s", what, text)
		}
	}
}

// A read token does not search the web: the API, which is billed, gets no request.
func TestSearch_ReadToken(t *testing.T) {
	api := perplexitytest.New(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens.toml")
	secrets := map[auth.Scope]string{auth.Read: "", auth.Use: ""}
	for scope := range secrets {
		secret, token, err := auth.NewToken("alice", time.Time{}, auth.Scopes{scope})
		if err == nil {
			err = auth.AddToken(file, &token)
		}
		if err != nil {
			t.Fatal(err)
		}
		secrets[scope] = secret
	}
	env := append(os.Environ(), "PERPLEXITY_API_KEY="+perplexitytest.Key, "PERPLEXITY_BASE_URL="+api.URL)
	s := launch(t, endpoint, func(cmd *exec.Cmd) { cmd.Env = env },
		"glovebox", "serve", "--port", "0", "--pool-size", "0", "--preload", "none", "--state-dir", filepath.Join(dir, "state"), "--toolset", "all", "--tokens-file", file)
	reads, uses := s.as(t, secrets[auth.Read]), s.as(t, secrets[auth.Use])
	list, err := uses.c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, tool := range list.Tools {
		if !strings.HasPrefix(tool.Name, "perplexity_") {
			continue
		}
		found++
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		a := args{"query": "q"}
		switch {
		case strings.Contains(string(schema), `"messages"`):
			a = args{"messages": []any{args{"role": "user", "content": "q"}}}
		case strings.Contains(string(schema), `"topic"`):
			a = args{"topic": "q"}
		}
		before := len(api.Requests())
		if _, _, text, err := reads.call(t.Context(), tool.Name, a); err == nil || !strings.Contains(err.Error(), "scope") {
			t.Errorf("%s with a read token: got %s, %v", tool.Name, text, err)
		}
		if n := len(api.Requests()) - before; n != 0 {
			t.Errorf("%s with a read token: the API got %d requests", tool.Name, n)
		}
		uses.must(tool.Name, a)
		if n := len(api.Requests()) - before; n == 0 {
			t.Errorf("%s with a use token: the API got no request", tool.Name)
		}
	}
	if found != 8 {
		t.Errorf("%d tools search the web, want 8", found)
	}
	if reads.must("list_contexts", nil)["contexts"] == nil {
		t.Error("a read token lists no contexts")
	}
}

// A recording of a server that has the key in its definition has no key.
func TestSearch_KeyNotRecorded(t *testing.T) {
	api := perplexitytest.New(t)
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "glovebox")
	if err := os.Symlink(exe, program); err != nil {
		t.Fatal(err)
	}
	definition := fmt.Sprintf(`{"mcpServers": {"web": {"command": %q, "args": ["search", "stdio"], "env": {"PERPLEXITY_API_KEY": "${KEY}", "PERPLEXITY_BASE_URL": %q}}}}`, program, api.URL)
	if err := os.WriteFile(filepath.Join(dir, ".mcp.json"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "mcp", "call", "web.perplexity_search", "query=scenario:key", "max_results=1", "--trust", "--record", "web.jsonl", "--log-dir", "logs")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "KEY="+perplexitytest.Key, "GLOVEBOX_STATE_DIR="+filepath.Join(dir, "state"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "The key is [API key].") {
		t.Fatalf("got %v: %s", err, out)
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files++
		if strings.Contains(string(data), perplexitytest.Key) {
			t.Errorf("%s has the key: %s", path, data)
		}
		return err
	})
	if err != nil || files < 3 {
		t.Errorf("%d files, %v; want the definition, a recording and logs", files, err)
	}
}

// A processText is what other processes of the same user see of one.
type processText struct{ cmdline, environ string }

// processesBelow returns a process and its descendants by their ids.
func processesBelow(t *testing.T, root int) map[string]processText {
	t.Helper()
	all := map[string]processText{}
	for todo := []string{fmt.Sprint(root)}; len(todo) > 0; todo = todo[1:] {
		dir := filepath.Join("/proc", todo[0])
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		environ, _ := os.ReadFile(filepath.Join(dir, "environ")) // that of another user cannot be read
		all[todo[0]] = processText{string(cmdline), string(environ)}
		lists, err := filepath.Glob(filepath.Join(dir, "task/*/children"))
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			children, _ := os.ReadFile(list)
			todo = append(todo, strings.Fields(string(children))...)
		}
	}
	if len(all) < 2 {
		t.Errorf("found %d processes, want a server and those of a box", len(all))
	}
	return all
}
