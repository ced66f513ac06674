//go:build linux

package microsandbox_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
	"github.com/glovebox-dev/glovebox/internal/engine/microsandbox"
)

// host is a machine that boots microVMs, with a state directory for these tests.
type host struct {
	msb    string // path of the program
	helper string // path of a program that contains it
	state  string
	root   string // a directory with a small system
	wait   time.Duration
}

// onHost returns this machine, or skips the test unless GLOVEBOX_TEST_MSB names msb. The
// tests must not run by chance: each boots a virtual machine, which takes 10 s and more
// where the processor is emulated.
func onHost(t testing.TB) *host {
	t.Helper()
	h := &host{msb: os.Getenv("GLOVEBOX_TEST_MSB"), state: shortDir(t), root: t.TempDir(), wait: time.Minute}
	if h.msb == "" {
		t.Skip("GLOVEBOX_TEST_MSB does not name msb; for example: GLOVEBOX_TEST_MSB=$(command -v msb) go test ./internal/engine/microsandbox")
	}
	var err error
	if h.msb, err = filepath.EvalSymlinks(h.msb); err != nil {
		t.Fatal(err)
	}
	if s := os.Getenv("GLOVEBOX_TEST_WAIT"); s != "" {
		if h.wait, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	h.helper = enginetest.Agent(t).Path
	busybox(t, h.root)
	return h
}

// shortDir returns a directory whose path is short: it becomes part of the addresses of
// msb's sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// busybox fills a directory with a small system.
func busybox(t testing.TB, root string) {
	t.Helper()
	const static = "/bin/busybox"
	content, err := os.ReadFile(static)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "usr/bin", "etc", "tmp", "home", "root", "proc", "sys", "dev", "run", "var/tmp", "mnt"} {
		must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky))
	must(os.WriteFile(filepath.Join(root, "bin/busybox"), content, 0o755))
	must(os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"), 0o644))
	must(os.Symlink("/bin/busybox", filepath.Join(root, "usr/bin/env")))
	out, err := exec.Command(static, "--list").Output()
	must(err)
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			must(os.Symlink("busybox", filepath.Join(root, "bin", applet)))
		}
	}
}

// testLog writes to standard error if GLOVEBOX_TEST_LOG is set.
func testLog() *slog.Logger {
	if os.Getenv("GLOVEBOX_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (h *host) open(t testing.TB) *microsandbox.Engine {
	t.Helper()
	e, err := microsandbox.Open(t.Context(), microsandbox.Config{StateDir: h.state, Helper: h.helper, Program: h.msb, Log: testLog()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (h *host) spec() *engine.Spec {
	return &engine.Spec{
		Root:   engine.Root{Key: "enginetest", Tree: &engine.Tree{Dir: h.root}},
		Limits: engine.Limits{CPUs: 1, MemoryMB: 192, DiskMB: 64},
	}
}

// held lists the files and processes of guests, and the goroutines of the engine.
func (h *host) held(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.state, "microsandbox"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var held []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "gb-") || strings.HasPrefix(e.Name(), "layer-") {
			held = append(held, "file "+e.Name())
		}
	}
	sandboxes, _ := os.ReadDir(filepath.Join(h.state, "microsandbox", "home", "sandboxes"))
	for _, e := range sandboxes {
		held = append(held, "sandbox "+e.Name())
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if exe, err := os.Readlink(filepath.Join(p, "exe")); err == nil && exe == h.msb {
			held = append(held, "process "+filepath.Base(p))
		}
	}
	b := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		if strings.Contains(stack, "/internal/engine/microsandbox.") && !strings.Contains(stack, "/microsandbox_test.") {
			_, by, _ := strings.Cut(stack, "created by ")
			by, _, _ = strings.Cut(by, " in goroutine")
			held = append(held, fmt.Sprintf("goroutine of %s", cmp.Or(by, "main")))
		}
	}
	return held
}

func TestConformance(t *testing.T) {
	h := onHost(t)
	enginetest.Run(t, enginetest.Harness{
		Open:    func(t testing.TB) engine.Engine { return h.open(t) },
		Spec:    func(testing.TB) *engine.Spec { return h.spec() },
		Held:    h.held,
		Timeout: h.wait,
		Many:    2,
	})
}
