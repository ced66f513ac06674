package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inspector is the program of the MCP Inspector.
func inspector(t *testing.T) string {
	t.Helper()
	path, err := filepath.EvalSymlinks("node_modules/.bin/mcp-inspector")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// inspectorAt returns the Inspector's command line for a server, and its arguments for a
// tool call.
func inspectorAt(t *testing.T, env []string, target ...string) (c commandLine, callArgs func(tool string, args map[string]any) []string) {
	base := append([]string{inspector(t), "--cli"}, target...)
	base = append(base, "-q", "--format", "json", "--method")
	with := func(rest ...string) []string { return append(base[:len(base):len(base)], rest...) }
	callArgs = func(tool string, args map[string]any) []string {
		text, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		return with("tools/call", "--tool-name", tool, "--tool-args-json", string(text))
	}
	c.list = func(t *testing.T) (names []string) {
		t.Helper()
		var listed struct {
			Result struct{ Tools []struct{ Name string } }
		}
		out := node(t, env, with("tools/list")...)
		if err := json.Unmarshal(out, &listed); err != nil {
			t.Fatalf("tools/list: %v: %s", err, out)
		}
		for _, tool := range listed.Result.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	c.call = func(t *testing.T, tool string, args map[string]any) *answer {
		t.Helper()
		var got struct{ Result *answer }
		// It exits with an error if the tool fails, after printing the result.
		out, failed := tryNode(t, env, callArgs(tool, args)...)
		if err := json.NewDecoder(bytes.NewReader(out)).Decode(&got); err != nil || got.Result == nil || failed != nil && !got.Result.IsError {
			t.Fatalf("%s: %v: %v: %s", tool, err, failed, out)
		}
		return got.Result
	}
	return c, callArgs
}

// TestInspector has the Inspector's command line, in each of its eras, use a server
// that is restarted. It can cancel a call only by going away, which ends neither a
// call of a session nor a task, which is what it gets for a long call in the newer
// era.
func TestInspector(t *testing.T) {
	t.Parallel()
	clients(t)
	p := launchSteady(t, state(t), "GLOVEBOX_LOG_LEVEL=debug")
	env := environment(t, p.dir)
	eras := []struct {
		era  string
		task bool
	}{{"legacy", false}, {"modern", true}, {"auto", true}}
	ids := make(map[string]string)
	at := func(era string) (commandLine, func(string, map[string]any) []string) {
		return inspectorAt(t, env, p.front.url, "--transport", "http", "--protocol-era", era)
	}
	for _, e := range eras {
		t.Run(e.era, func(t *testing.T) {
			c, callArgs := at(e.era)
			id := c.begin(t)
			ids[e.era] = id
			c.figure(t, id)
			c.fail(t, id)
			if e.era == "modern" {
				c.files(t, id)
			}
			cmd := exec.Command("node", callArgs("run_code", map[string]any{"context_id": id, "code": sleeper("5")})...)
			cmd.Env = env
			from := strings.Count(p.text(), "\n")
			asks := func() bool { return !e.task || p.line(from, "method=tasks/get") >= 0 }
			if got := killed(t, p.process, id, cmd, asks); got != "finished" {
				t.Errorf("the call of a client that was killed has %s", got)
			}
		})
	}
	t.Run("portable schemas", func(t *testing.T) {
		node(t, env, inspector(t), "--cli", p.front.url, "--transport", "http", "--protocol-era", "modern",
			"--method", "tools/list", "--strict", "-q")
	})
	p.restart()
	for _, e := range eras {
		t.Run(e.era+"/after a restart", func(t *testing.T) {
			c, _ := at(e.era)
			a := c.call(t, "run_code", map[string]any{"context_id": ids[e.era], "code": "print(x, end)"})
			if got := a.str("stdout"); got != "41 finished\n" {
				t.Errorf("state after the restart: got %s", a.text())
			}
		})
	}
	p.stop(t)
}

// TestInspector_OverStdio starts a server for each call, in each era. The context wakes up
// in the next server.
func TestInspector_OverStdio(t *testing.T) {
	t.Parallel()
	clients(t)
	dir := state(t)
	for _, era := range []string{"legacy", "modern", "auto"} {
		t.Run(era, func(t *testing.T) {
			c, _ := inspectorAt(t, environment(t, dir), glovebox(t), "stdio", "--toolset", "all", "--protocol-era", era)
			id := c.begin(t)
			c.figure(t, id)
			c.fail(t, id)
		})
	}
}
