// Package e2e drives the shipped binary with stock clients over stdio and over
// HTTP, in both eras of the protocol: the official TypeScript SDK in both its
// generations, the MCP Inspector's and mcporter's command lines, pages in a
// browser, and Python's standard library; the MCP clients of agent frameworks in a
// matrix of clients and servers. The client kit in the binary drives the
// official reference servers. Where many calls are made at once and
// servers are killed, bare POSTs do. It holds tests only.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// lacking skips a test that lacks a prerequisite. With GLOVEBOX_TEST_COMPLETE set, after
// scripts/setup test, it fails the test instead.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// glovebox returns the path of the binary under test, by default the one of make build.
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
		lacking(t, "no binary to test: %v; run make build first", err)
	}
	return path
}

// clients skips the test unless the clients are installed.
func clients(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("node_modules/playwright-core"); err != nil {
		lacking(t, "no stock clients: run npm ci in e2e first")
	}
	out, err := exec.Command("node", "--version").Output()
	if err != nil {
		lacking(t, "no node on PATH: %v", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		lacking(t, "node %s: the clients need version 20 or newer", out)
	}
}

// environment returns the environment of a stdio server, or of a client that starts one:
// with a state directory and a new home directory.
func environment(t *testing.T, dir string) []string {
	home := t.TempDir()
	return append(os.Environ(), "GLOVEBOX_STATE_DIR="+dir, "GLOVEBOX_POOL_SIZE=1", "HOME="+home)
}

// node runs a client and returns its output. It fails the test if the client fails.
func node(t *testing.T, env []string, args ...string) []byte {
	t.Helper()
	out, err := tryNode(t, env, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// clientLimit bounds the run of a client that hangs. Clients have shorter time-outs of
// their own.
const clientLimit = 5 * time.Minute

// tryNode is node for a client that may fail. The error contains its output.
func tryNode(t *testing.T, env []string, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Env = env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("node %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.Bytes(), nil
}
