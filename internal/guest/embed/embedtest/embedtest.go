// Package embedtest gives tests an agent program: the embedded one would be out
// of date, or not there in a fresh clone, so it is built from the source.
package embedtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

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
	// A file for each process: another one may be running its own, which cannot
	// be written to. The build cache makes this quick.
	path := filepath.Join(dir, "guest-"+cgo)
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(tmp)
	args := append([]string{"build", "-o", tmp}, buildFlags...)
	cmd := exec.Command("go", append(args, "github.com/glovebox-dev/glovebox/cmd/glovebox-guest")...)
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build agent: %w\n%s", err, out)
	}
	return path, os.Rename(tmp, path)
})

// Program returns the agent, built once for the process from the source that
// the test is built from. GLOVEBOX_TEST_GUEST names a built one, for a user
// without Go.
func Program(tb testing.TB) engine.Program {
	tb.Helper()
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return engine.Program{Path: path, Args: []string{embed.Name}}
}
