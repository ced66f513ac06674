//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

func TestMain(m *testing.M) {
	Main()
	if os.Getenv(filterEnv) != "" {
		if err := printFilter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if what := os.Getenv(denyEnv); what != "" {
		if err := deny(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := Enter(false); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if agentDir != "" {
		os.RemoveAll(agentDir)
	}
	os.Exit(code)
}

var agentDir string

// agent returns the path of the test agent. GLOVEBOX_TEST_AGENT names a built
// one where there is no Go to build it with.
var agent = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("GLOVEBOX_TEST_AGENT"); path != "" {
		return path, nil
	}
	var err error
	if agentDir, err = os.MkdirTemp("", "gbagent"); err != nil {
		return "", err
	}
	path := filepath.Join(agentDir, "agent")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "./testdata/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build agent: %w: %s", err, out)
	}
	return path, nil
})

func open(t testing.TB) *Engine {
	t.Helper()
	return openIn(t, t.TempDir())
}

func openIn(t testing.TB, dir string) *Engine {
	t.Helper()
	cfg := Config{StateDir: dir}
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	cfg.DebugDir = os.Getenv("GLOVEBOX_TEST_DEBUG")
	e, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

// hostRoot returns a root with the host's programs.
func hostRoot(t testing.TB) engine.Root {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"usr", "etc", "home/user", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tree := &engine.Tree{Dir: dir, Binds: []engine.Mount{{Host: "/usr", Guest: "/usr"}}}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + name); err == nil {
			os.Symlink(to, filepath.Join(dir, name))
		} else if _, err := os.Stat("/" + name); err == nil {
			os.Mkdir(filepath.Join(dir, name), 0o755)
			tree.Binds = append(tree.Binds, engine.Mount{Host: "/" + name, Guest: "/" + name})
		}
	}
	return engine.Root{Key: "host", Tree: tree}
}

func newSpec(t testing.TB) *engine.Spec {
	t.Helper()
	path, err := agent()
	if err != nil {
		t.Fatal(err)
	}
	return &engine.Spec{Root: hostRoot(t), Agent: engine.Program{Path: path, Args: []string{"agent"}}}
}

// withVolume adds a volume to a spec, and with it a gofer to its guests.
func withVolume(t testing.TB, spec *engine.Spec) *engine.Spec {
	spec.Mounts = append(spec.Mounts, engine.Mount{Host: t.TempDir(), Guest: "/volume"})
	return spec
}

// box is a guest with a connection to its agent.
type box struct {
	engine.Guest
	conn io.ReadWriteCloser
	in   *bufio.Reader
}

func create(t testing.TB, e *Engine, id string, spec *engine.Spec) *box {
	t.Helper()
	g, err := e.Create(t.Context(), id, spec)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := g.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &box{g, conn, bufio.NewReader(conn)}
}

func (b *box) send(t testing.TB, line string) {
	t.Helper()
	if _, err := io.WriteString(b.conn, line+"\n"); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}

func (b *box) try(line string) (string, error) {
	if _, err := io.WriteString(b.conn, line+"\n"); err != nil {
		return "", err
	}
	answer, err := b.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	return strconv.Unquote(strings.TrimSpace(answer))
}

func (b *box) ask(t testing.TB, line string) string {
	t.Helper()
	answer, err := b.try(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return answer
}

func wait(t testing.TB, g engine.Guest) engine.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	exit, err := g.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

func TestGuest_Lifecycle(t *testing.T) {
	e := open(t)
	start := time.Now()
	b := create(t, e, "one", newSpec(t))
	if got := b.ask(t, "echo hello"); got != "hello" {
		t.Errorf("echo: %q", got)
	}
	t.Logf("boot to answer: %v", time.Since(start))
	if err := b.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, b); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit %+v", exit)
	}
}

func TestGuest_Isolation(t *testing.T) {
	e := open(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host only"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GLOVEBOX_SECRET", "host only")
	spec := newSpec(t)
	spec.Hostname = "glove"
	b := create(t, e, "isolated", spec)
	for _, path := range []string{secret, "/etc/shadow", "/etc/hostname", "/root/.bashrc", "/var/run/docker.sock", "/proc/1/root/etc/shadow"} {
		if got := b.ask(t, "read "+path); !strings.Contains(got, "error:") {
			t.Errorf("read %s: %.60q", path, got)
		}
	}
	if got := b.ask(t, "env"); strings.Contains(got, "SECRET") {
		t.Errorf("environment of the host is visible: %s", got)
	}
	if got := b.ask(t, "id"); !strings.Contains(got, "uid=0 host=glove") || !strings.HasSuffix(got, "pid=1") {
		t.Errorf("id: %s", got)
	}
	for _, addr := range []string{"1.1.1.1:443", "169.254.169.254:80", "192.168.0.1:22"} {
		if got := b.ask(t, "dial "+addr); !strings.Contains(got, "unreachable") {
			t.Errorf("dial %s: %s", addr, got)
		}
	}
	if got := b.ask(t, "loop"); got != "" {
		t.Errorf("loopback: %s", got)
	}
	for _, path := range []string{"/usr/bin/x", "/etc/x", "/home/user/x", "/tmp/a", "/new"} {
		if got := b.ask(t, "write "+path+" inside"); got != "" {
			t.Errorf("write %s: %s", path, got)
		}
	}
	if _, err := os.Stat("/usr/bin/x"); err == nil {
		t.Error("a guest has written to the host")
	}
	if got := b.ask(t, "chown /home/user 1000"); got != "" {
		t.Errorf("chown: %s", got)
	}
	if got := b.ask(t, "shu id -u; touch /home/user/y /tmp/y; ls /home/user; touch /usr/bin/y"); !strings.Contains(got, "1000\nx\ny\n") || !strings.Contains(got, "ermission denied") {
		t.Errorf("as user: %s", got)
	}
	other := create(t, e, "other", spec)
	if got := other.ask(t, "ls /home/user"); got != "" {
		t.Errorf("a guest sees files of another guest: %s", got)
	}
}

func TestGuest_Exit(t *testing.T) {
	e := open(t)
	b := create(t, e, "exits", newSpec(t))
	b.send(t, "exit 3")
	exit := wait(t, b)
	if exit.Reason != engine.ExitExited || exit.Code != 3 || exit.Detail != "going away" {
		t.Errorf("exit %+v", exit)
	}
	if _, err := b.Dial(t.Context()); !errors.Is(err, engine.ErrGone) {
		t.Errorf("dial: %v", err)
	}
	if err := b.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	create(t, e, "exits", newSpec(t)) // the id is free

	b = create(t, e, "crashes", newSpec(t))
	b.Guest.(*guest).sentry.Process.Kill()
	if exit := wait(t, b); exit.Reason != engine.ExitCrashed {
		t.Errorf("exit %+v", exit)
	}
	b = create(t, e, "loses-its-files", withVolume(t, newSpec(t)))
	b.Guest.(*guest).gofers[0].Process.Kill()
	if exit := wait(t, b); exit.Reason != engine.ExitCrashed {
		t.Errorf("exit %+v", exit)
	}
}

func TestGuest_Pause(t *testing.T) {
	e := open(t)
	b := create(t, e, "paused", newSpec(t))
	for range 2 {
		if err := e.Pause(t.Context(), b.ID()); err != nil {
			t.Fatal(err)
		}
	}
	b.send(t, "echo later")
	got := make(chan string, 1)
	go func() { s, _ := b.in.ReadString('\n'); got <- s }()
	select {
	case s := <-got:
		t.Errorf("a paused guest answered %q", s)
	case <-time.After(300 * time.Millisecond):
	}
	for range 2 {
		if err := e.Resume(t.Context(), b.ID()); err != nil {
			t.Fatal(err)
		}
	}
	if s := <-got; s != "\"later\"\n" {
		t.Errorf("answer %q", s)
	}
	if err := e.Pause(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	if err := b.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Resume(t.Context(), b.ID()); !errors.Is(err, engine.ErrGone) {
		t.Errorf("resume: %v", err)
	}
}

func TestGuest_Limits(t *testing.T) {
	e := open(t)
	t.Logf("%+v", e.Info().Limits)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 0.5, MemoryMB: 128, DiskMB: 20, PIDs: 64}
	b := create(t, e, "limited", spec)
	if got := b.ask(t, "read /proc/meminfo"); !strings.HasPrefix(got, "MemTotal:         131072 kB") {
		t.Errorf("meminfo: %.40s", got)
	}
	for _, path := range []string{"/tmp/big", "/home/user/big"} {
		if got := b.ask(t, "fill "+path+" 40"); !strings.Contains(got, "no space left") {
			t.Errorf("fill %s: %s", path, got)
		}
	}
	b.ask(t, "sh rm -f /tmp/big /home/user/big")
	if got := b.ask(t, "fill /tmp/big 10"); got != "10" {
		t.Errorf("fill after removal: %s", got)
	}
	got := b.ask(t, "sh i=0; while [ $i -lt 200 ]; do sleep 1000 > /dev/null 2>&1 & i=$((i+1)); done; echo all")
	if !strings.Contains(got, "annot fork") {
		t.Errorf("started 200 processes with a limit of 64: %s", got)
	}
	if got := b.ask(t, "sh echo max > /sys/fs/cgroup/pids.max"); !strings.Contains(got, "error") {
		t.Errorf("the guest's root has lifted its limit: %s", got)
	}
	start := time.Now()
	if got, err := b.try("eat 2000"); err == nil {
		t.Errorf("ate %s MiB", got)
	}
	exit := wait(t, b)
	t.Logf("%v after %v", exit, time.Since(start))
	if exit.Reason != engine.ExitOOM {
		t.Errorf("exit %+v", exit)
	}
}

func TestGuest_Stats(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	spec.Limits.CPUs = 0.5
	b := create(t, e, "measured", spec)
	b.ask(t, "eat 50")
	s, err := e.Stats(t.Context(), b.ID())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", s)
	if s.MemoryBytes < 60<<20 || s.MemoryBytes > 300<<20 || s.Processes < 2 || s.CPU == 0 {
		t.Errorf("stats %+v", s)
	}
	b.ask(t, "spin")
	before, _ := e.Stats(t.Context(), b.ID())
	start, used := time.Now(), time.Duration(0)
	for used < 200*time.Millisecond && time.Since(start) < 20*time.Second || time.Since(start) < time.Second {
		time.Sleep(50 * time.Millisecond)
		after, _ := e.Stats(t.Context(), b.ID())
		used = after.CPU - before.CPU
	}
	passed := time.Since(start)
	t.Logf("used %v of CPU in %v", used, passed)
	if e.groups != nil && (used < 200*time.Millisecond || used > passed*7/10) {
		t.Errorf("used %v of CPU in %v, limit 0.5", used, passed)
	}
}

func TestGuest_Volumes(t *testing.T) {
	e := open(t)
	rw, ro := t.TempDir(), t.TempDir()
	os.WriteFile(filepath.Join(ro, "file"), []byte("from host"), 0o644)
	os.WriteFile(filepath.Join(rw, "file"), []byte("from host"), 0o644)
	spec := newSpec(t)
	spec.Mounts = []engine.Mount{
		{Host: rw, Guest: "/home/user/work"},
		{Host: ro, Guest: "/mnt/deep/data", ReadOnly: true},
		{Host: filepath.Join(ro, "file"), Guest: "/etc/one.conf", ReadOnly: true},
	}
	b := create(t, e, "volumes", spec)
	for _, path := range []string{"/home/user/work/file", "/mnt/deep/data/file", "/etc/one.conf"} {
		if got := b.ask(t, "read "+path); got != "from host" {
			t.Errorf("read %s: %q", path, got)
		}
	}
	if got := b.ask(t, "shu printf inside >/home/user/work/new"); got != "" {
		t.Errorf("write: %s", got)
	}
	if got, err := os.ReadFile(filepath.Join(rw, "new")); string(got) != "inside" {
		t.Errorf("volume: %q, %v", got, err)
	}
	for _, path := range []string{"/mnt/deep/data/new", "/mnt/deep/data/file", "/etc/one.conf"} {
		if got := b.ask(t, "write "+path+" inside"); !strings.Contains(got, "read-only") {
			t.Errorf("write %s: %q", path, got)
		}
	}
}

func TestCreate_Errors(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	first := create(t, e, "taken", spec)
	if _, err := e.Create(t.Context(), "taken", spec); !errors.Is(err, engine.ErrExists) {
		t.Errorf("taken id: %v", err)
	}
	if got := first.ask(t, "echo alive"); got != "alive" {
		t.Errorf("first: %q", got)
	}
	for name, change := range map[string]func(*engine.Spec){
		"no agent":    func(s *engine.Spec) { s.Agent.Path = "/nonexistent" },
		"agent a dir": func(s *engine.Spec) { s.Agent.Path = "/usr" },
		"relative":    func(s *engine.Spec) { s.Root.Tree = &engine.Tree{Dir: "usr"} },
		"no root":     func(s *engine.Spec) { s.Root = engine.Root{Key: "x", Tree: &engine.Tree{Dir: "/nonexistent"}} },
		"bad key":     func(s *engine.Spec) { s.Root.Key = "../x" },
		"bad bind": func(s *engine.Spec) {
			s.Root = engine.Root{Key: "y", Tree: &engine.Tree{
				Dir: s.Root.Tree.Dir, Binds: []engine.Mount{{Host: "/nonexistent", Guest: "/usr"}},
			}}
		},
		"no volume":     func(s *engine.Spec) { s.Mounts = []engine.Mount{{Host: "/nonexistent", Guest: "/mnt"}} },
		"volume in sys": func(s *engine.Spec) { s.Mounts = []engine.Mount{{Host: "/usr", Guest: "/proc/x"}} },
		"negative":      func(s *engine.Spec) { s.Limits.PIDs = -1 },
	} {
		bad := *spec
		change(&bad)
		if _, err := e.Create(t.Context(), "bad", &bad); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := *spec
	bad.Agent.Path = "/etc/passwd" // not a program
	if _, err := e.Create(t.Context(), "bad", &bad); err == nil {
		t.Error("an agent that is no program was started")
	} else {
		t.Log(err)
	}
}
