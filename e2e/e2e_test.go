// Package e2e drives the shipped binary with stock clients: the official
// TypeScript SDK in both its generations and the MCP Inspector's command line,
// over stdio and over HTTP, in both eras of the protocol. Where many calls are made
// at once and servers are killed, bare POSTs do. It holds tests only.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// glovebox returns the path of the binary under test, which make build leaves.
func glovebox(t *testing.T) string {
	t.Helper()
	path := os.Getenv("GLOVEBOX_BINARY")
	if path == "" {
		path = "../bin/glovebox"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no binary to test: %v; run make build first", err)
	}
	return path
}

// clients skips the test unless the clients are installed.
func clients(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("node_modules/@modelcontextprotocol/client"); err != nil {
		t.Skip("no stock clients: run npm ci in e2e first")
	}
	out, err := exec.Command("node", "--version").Output()
	if err != nil {
		t.Skipf("no node on PATH: %v", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		t.Skipf("node %s: the clients need version 20 or newer", out)
	}
}

// environment is what the binary runs in: a state directory of the test's own.
func environment(t *testing.T) []string {
	return append(os.Environ(), "GLOVEBOX_STATE_DIR="+state(t), "GLOVEBOX_POOL_SIZE=1")
}

var endpoint = regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`)

// serve starts the server on a free port and returns its endpoint. When the
// test ends the server is asked to stop and must do so cleanly.
func serve(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(glovebox(t), "serve", "--port", "0")
	cmd.Env = environment(t)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found, done := make(chan string, 1), make(chan struct{})
	var log bytes.Buffer
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			log.WriteString(lines.Text() + "\n")
			if url := endpoint.FindString(lines.Text()); url != "" {
				select {
				case found <- url:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("stop the server: %v\n%s", err, log.String())
		}
		timer.Stop()
		if t.Failed() {
			t.Logf("server:\n%s", log.String())
		}
	})
	select {
	case url := <-found:
		return url
	case <-done:
		t.Fatalf("the server ended before it told its endpoint:\n%s", log.String())
	case <-time.After(60 * time.Second):
		t.Fatal("the server did not tell its endpoint within a minute")
	}
	return ""
}

func node(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Env = append(environment(t), "MCP_CATALOG_PATH="+filepath.Join(t.TempDir(), "catalog.json"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("node %s: %v\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.Bytes()
}

func TestTypeScriptSDKCallsEveryTool(t *testing.T) {
	clients(t)
	binary := glovebox(t)
	for _, c := range []struct{ sdk, era, version string }{
		{"v1", "legacy", ""},
		{"v2", "legacy", "2025-11-25"},
		{"v2", "modern", "2026-07-28"},
	} {
		for _, transport := range []string{"stdio", "http"} {
			t.Run(c.sdk+"/"+c.era+"/"+transport, func(t *testing.T) {
				args := []string{"client.mjs", c.sdk, c.era, transport}
				if transport == "http" {
					args = append(args, serve(t))
				} else {
					args = append(args, binary, "stdio")
				}
				var got struct {
					Version string
					Tools   int
					Calls   map[string]int
				}
				out := node(t, args...)
				if err := json.Unmarshal(out, &got); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if c.version != "" && got.Version != c.version {
					t.Errorf("version %q, want %q", got.Version, c.version)
				}
				if got.Tools < 12 {
					t.Errorf("%d tools, want 12 or more", got.Tools)
				}
			})
		}
	}
}

func TestInspector(t *testing.T) {
	clients(t)
	binary := glovebox(t)
	inspector := "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
	if link, err := filepath.EvalSymlinks("node_modules/.bin/mcp-inspector"); err == nil {
		inspector = link
	}
	url := serve(t)
	for _, target := range []struct {
		name string
		args []string
	}{
		{"http/legacy", []string{url, "--transport", "http", "--protocol-era", "legacy"}},
		{"http/modern", []string{url, "--transport", "http", "--protocol-era", "modern"}},
		{"http/auto", []string{url, "--transport", "http", "--protocol-era", "auto"}},
		{"stdio/legacy", []string{binary, "stdio"}},
	} {
		t.Run(target.name, func(t *testing.T) {
			call := func(rest ...string) []byte {
				args := append([]string{inspector, "--cli"}, target.args...)
				return node(t, append(append(args, rest...), "-q")...)
			}
			if out := call("--method", "tools/list"); !bytes.Contains(out, []byte(`"execute_code"`)) {
				t.Errorf("tools/list: %s", out)
			}
			out := call("--method", "tools/call", "--tool-name", "execute_code",
				"--tool-args-json", `{"code":"print(6*7)"}`)
			if !bytes.Contains(out, []byte("42")) {
				t.Errorf("tools/call: %s", out)
			}
		})
	}
	t.Run("portable schemas", func(t *testing.T) {
		node(t, inspector, "--cli", url, "--transport", "http", "--protocol-era", "modern",
			"--method", "tools/list", "--strict", "-q")
	})
}
