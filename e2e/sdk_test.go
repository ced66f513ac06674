package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os/exec"
	"testing"
)

// The generations of the TypeScript SDK, with the revisions that they speak.
var generations = []struct{ sdk, era, version string }{
	{"v1", "legacy", "2025-11-25"},
	{"v2", "legacy", "2025-11-25"},
	{"v2", "modern", "2026-07-28"},
}

// TestTypeScriptSDK_OverHTTP runs each generation of the SDK against one server, and
// restarts the server once for each.
func TestTypeScriptSDK_OverHTTP(t *testing.T) {
	t.Parallel()
	clients(t)
	p := launchSteady(t, state(t))
	for _, g := range generations {
		t.Run(g.sdk+"/"+g.era, func(t *testing.T) {
			out := converse(t, environment(t, p.dir), p.restart, "client.mjs", g.sdk, g.era, "http", p.front.url)
			checkReport(t, out, g.version)
		})
		if t.Failed() {
			t.FailNow() // the server may be gone
		}
	}
	p.stop(t)
}

// TestTypeScriptSDK_OverStdio runs each with its own servers on one state directory.
func TestTypeScriptSDK_OverStdio(t *testing.T) {
	t.Parallel()
	clients(t)
	dir := state(t)
	for _, g := range generations {
		t.Run(g.sdk+"/"+g.era, func(t *testing.T) {
			out := converse(t, environment(t, dir), nil, "client.mjs", g.sdk, g.era, "stdio", glovebox(t), "stdio")
			checkReport(t, out, g.version)
		})
	}
	if left := instances(t, dir); len(left) > 0 {
		t.Errorf("left after the clients have ended: %q", left)
	}
}

// checkReport parses the last line of client.mjs.
func checkReport(t *testing.T, out []byte, version string) {
	t.Helper()
	var report struct {
		Version string
		Tools   int
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("report %q: %v", out, err)
	}
	if report.Version != "" && report.Version != version {
		t.Errorf("version %q, want %q", report.Version, version)
	}
	if report.Tools < 12 {
		t.Errorf("%d tools, want 12 or more", report.Tools)
	}
}

// converse runs a client and returns its last line of output. When the client prints
// "restart", converse restarts the server and then writes a line to the client.
func converse(t *testing.T, env []string, restart func(), args ...string) (last []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if last = bytes.Clone(lines.Bytes()); string(last) == "restart" {
			restart()
			if _, err := io.WriteString(stdin, "done\n"); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("node %q: %v\n%s", args, err, stderr.String())
	}
	return last
}
