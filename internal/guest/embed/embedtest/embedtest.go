// Package embedtest builds the agent for tests from source: the embedded one may be
// out of date, or missing in a fresh clone.
package embedtest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
)

var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("GLOVEBOX_TEST_GUEST"); path != "" {
		return path, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, "glovebox-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	source, err := moduleDir()
	if err != nil {
		return "", err
	}
	// Each process writes a file of its own, because a file that runs cannot be
	// written to. The build cache makes this quick.
	tmp := filepath.Join(dir, fmt.Sprintf("build-%d", os.Getpid()))
	defer os.Remove(tmp)
	args := append([]string{"build", "-o", tmp}, buildFlags...)
	cmd := exec.Command("go", append(args, "./cmd/glovebox-guest")...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build agent: %w\n%s", err, out)
	}
	return keep(tmp)
})

// maxAge is the age from which an agent that no test has asked for is removed.
const maxAge = 24 * time.Hour

// keep moves the agent in the file tmp to a file beside it that is named by its content
// and returns its path. A file of that name stays as it is: guests of other test
// processes run it, and a guest can be restored only while the files that it had open
// are the same.
func keep(tmp string) (string, error) {
	b, err := os.ReadFile(tmp)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(tmp)
	path := filepath.Join(dir, fmt.Sprintf("guest-%.16x", sha256.Sum256(b)))
	now := time.Now()
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return path, os.Chtimes(path, now, now)
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > maxAge {
			_ = os.Remove(filepath.Join(dir, e.Name())) // another process may have removed it
		}
	}
	return path, nil
}

// moduleDir returns the directory of Glovebox's module, which is not the main
// module when another module's tests run.
func moduleDir() (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/glovebox-dev/glovebox")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		return "", fmt.Errorf("find the source of the agent: directory %q: %w: %s", dir, err, strings.TrimSpace(stderr.String()))
	}
	return dir, nil
}

// Program returns the agent, built once for the process from the source that the
// test is built from. GLOVEBOX_TEST_GUEST names a built one, for users without Go.
func Program(tb testing.TB) engine.Program {
	tb.Helper()
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return engine.Program{Path: path, Args: []string{embed.Name}}
}
