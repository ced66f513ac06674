package e2e

import (
	"context"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// registry returns the URL of the registry that npm is configured for on this machine. It
// skips the test if that cannot be reached.
func registry(t *testing.T) *url.URL {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err != nil {
		t.Skipf("no npm on this machine: %v", err)
	}
	at, err := url.Parse(strings.TrimSpace(string(out)))
	if err != nil || at.Scheme != "https" {
		t.Skipf("the registry of npm is not at an https URL: %q, %v", out, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, at.JoinPath("is-number").String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Skipf("the registry of npm cannot be reached: %v", err)
	}
	res.Body.Close()
	return at
}

// TestNetwork has a stock client install a package from the real registry in a box. The
// package is there when another server has woken the box. Other hosts are refused with a
// text that the model reads.
func TestNetwork(t *testing.T) {
	t.Parallel()
	clients(t)
	at := registry(t)
	dir := state(t)
	// The Inspector passes no variables on.
	c, _ := inspectorAt(t, environment(t, dir), glovebox(t), "stdio", "--state-dir="+dir, "--finish-templates=false", "--pool-size=1", "--network=npm,"+at.Host, "--protocol-era", "modern")
	run := func(command string) *answer {
		t.Helper()
		return c.call(t, "execute_command", map[string]any{"session_id": "n", "command": command, "language": "javascript"})
	}
	if got := run("npm install --registry " + at.String() + " is-number"); got.IsError {
		t.Fatalf("npm install: got %q", got.text())
	}
	if got := run(`node -p 'require("is-number")("42")'`); !strings.HasPrefix(got.text(), "true\n") {
		t.Errorf("the package in the box, which has hibernated: got %q", got.text())
	}
	got := run("curl -s http://refused.example.org/")
	refused, _ := got.StructuredContent["network"].(map[string]any)
	if !strings.Contains(got.text(), "Glovebox refused refused.example.org:80: no rule allows it (allowed: npm") || refused == nil {
		t.Errorf("a refused host: got %q, %v", got.text(), got.StructuredContent)
	}
}
