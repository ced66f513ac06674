//go:build linux

package cli

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestServe_LogsHaveNothingOfCalls: neither the log of a whole server at the level debug nor its audit
// log has code, commands, files, output, arguments or tokens, of calls that succeed, fail or are
// refused, and of the calls that code makes of the tools of MCP servers.
func TestServe_LogsHaveNothingOfCalls(t *testing.T) {
	dir := t.TempDir()
	state, servers, owners, audit := filepath.Join(dir, "state"), filepath.Join(dir, "mcp.json"), filepath.Join(dir, "owners.json"), filepath.Join(dir, "audit.log")
	writeServers(t, servers, map[string]definition{"a": keeperNamed("zq9kept")})
	trusting(t, state, "--config", servers, "--owner", "token alice", "a")
	if err := os.WriteFile(owners, []byte(`{"owners": {"token alice": {"tools": "mcp.json", "rules": ["allow a put"]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	k := newTokens(t)
	s := startServer(t, state, "--log-level", "debug", "--audit-log", audit, "--tokens-file", k.file,
		"--pool-size", "0", "--preload", "none", "--tools-owners", owners)
	c := s.as(t, k.alice)

	// Each text that must stay out of the logs begins with zq9, which no random id has: those of
	// requests and sessions have no 9, and those of boxes no z. Programs put it together where it is
	// about their output.
	var answers strings.Builder
	call := func(tool string, a args) {
		t.Helper()
		res, err := c.c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: a})
		if err != nil {
			fmt.Fprintln(&answers, err)
			return
		}
		for _, part := range res.Content {
			if part, ok := part.(*mcp.TextContent); ok {
				answers.WriteString(part.Text + "\n")
			}
		}
	}
	code := func(text string) { t.Helper(); call("execute_code", args{"session_id": "s1", "code": text}) }
	code("zq9code = 'z' + 'q9output'\nprint(zq9code)")
	code("import sys; sys.stderr.write('z' + 'q9stderr\\n'); zq9failing = 1; raise Exception('z' + 'q9exception')")
	code("if zq9syntax error")
	call("execute_command", args{"session_id": "s1", "command": "echo z''q9printed; zq9command"})
	call("upload_file", args{"session_id": "s1", "path": "zq9file.txt", "content": "zq9content"})
	call("download_file", args{"session_id": "s1", "path": "zq9file.txt"})
	call("download_file", args{"session_id": "s1", "path": "../zq9missing.txt"})
	call("list_files", args{"session_id": "s1"})
	call("create_context", args{"name": "mine", "description": "zq9description"})
	call("run_code", args{"context_id": "mine", "code": "print('z' + 'q9ofcontext')"})
	call("run_code", args{"context_id": "mine", "code": "1", "zq9unknown": "zq9value"}) // no such argument
	call("run_code", args{"context_id": "mine", "code": []string{"zq9list"}})           // another type
	call("zq9tool", args{"code": "zq9ofnotool"})
	code("print(tools.a.get()['name'], tools.a.put(name='z' + 'q9put')['name'])")
	code("tools.a.put(name=['z' + 'q9invalid'])")
	code("import os; print('z' + 'q9last', flush=True); os.kill(os.getpid(), 9)")
	for _, path := range []string{"zq9file.txt", "zq9gone.txt"} {
		if res, err := c.c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "glovebox://session/s1/home/user/" + path}); err == nil {
			fmt.Fprintln(&answers, "read", res.Contents[0].Text)
		}
	}
	for _, r := range []struct{ query, token, body string }{
		{"", k.alice, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"print('z' + 'q9direct')"}}}`},
		{"", k.alice, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["zq9name"],"arguments":{"code":"zq9params"}}}`},
		{"", k.alice, `{"jsonrpc":"2.0","id":1,"method":"zq9method","params":{"zq9":1}}`},
		{"", k.alice, `{"jsonrpc":"2.0","zq9nojson`},
		{"", "gbx_zq9token_zq9token_zq9token_zq9token", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"zq9notoken"}}}`},
		{"?token=" + k.bob, "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.endpoint+r.query, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if r.token != "" {
			req.Header.Set("Authorization", "Bearer "+r.token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Write(&answers); err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	for _, word := range []string{"zq9output", "zq9stderr", "zq9exception", "zq9syntax", "zq9printed", "zq9command", "zq9content", "zq9ofcontext", "zq9unknown", "zq9kept zq9put", "zq9direct"} {
		if !strings.Contains(answers.String(), word) {
			t.Errorf("the answers do not have %q, so the calls did not do what they should:\n%s", word, &answers)
		}
	}

	s.cmd.Process.Signal(syscall.SIGTERM)
	exit, log := s.wait(time.Minute)
	if exit != 0 || !strings.Contains(log, `level=DEBUG msg=request method=tools/call tool=execute_code`) {
		t.Errorf("exit code %d; the log has no line of the level debug about a call:\n%s", exit, log)
	}
	lines, err := os.ReadFile(audit)
	if err != nil || !strings.Contains(string(lines), `"tool":"execute_code"`) || !strings.Contains(string(lines), `"tool":"put"`) || !strings.Contains(string(lines), `"reason":"unknown"`) {
		t.Errorf("the audit log lacks lines of calls: %v\n%s", err, lines)
	}
	secrets := regexp.MustCompile("zq9|" + k.alice + "|" + k.bob)
	for name, text := range map[string]string{"log": log, "audit log": string(lines)} {
		for line := range strings.Lines(text) {
			if found := secrets.FindString(line); found != "" {
				t.Errorf("the %s has %q: %s", name, found, line)
			}
		}
	}
}
