//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// serverEnv makes this test be a server that is killed, and says at what.
const serverEnv = "GLOVEBOX_TEST_SERVER"

// The stages at which servers are killed.
const (
	atRest     = "rest"
	atSnapshot = "snapshot"
	atRestore  = "restore"
)

// TestServerHelper is the server of the other tests. It works in the current
// directory.
func TestServerHelper(t *testing.T) {
	stage := os.Getenv(serverEnv)
	if stage == "" {
		t.Skip("run by another test")
	}
	e := openIn(t, "state")
	spec := newSpec(t)
	b := create(t, e, "orphan", spec)
	image := func(i int) string {
		dir := fmt.Sprintf("image-%d", i)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	first := image(0)
	snapshot := func(dir string) {
		if _, err := e.Snapshot(t.Context(), b.ID(), dir); err != nil {
			t.Fatal(err)
		}
	}
	snapshot(first)
	fmt.Println("server", os.Getpid(), "guests", strings.Trim(fmt.Sprint(descendants(os.Getpid())), "[]"))
	for i := 1; i < 1000; i++ {
		switch stage {
		case atSnapshot:
			snapshot(image(i))
		case atRestore:
			restore(t, e, fmt.Sprintf("restored-%d", i), spec, first).Destroy(t.Context())
		}
		time.Sleep(time.Minute / 1000)
	}
}

// victim is a process that runs TestServerHelper.
type victim struct {
	cmd  *exec.Cmd
	dir  string // its working directory
	pids []int  // the innermost process and those of its guests
}

// startServer returns when the server is at its stage.
func startServer(t *testing.T, stage, dir string) *victim {
	t.Helper()
	path, err := agent()
	if err != nil {
		t.Fatal(err)
	}
	s := &victim{cmd: exec.Command(selfExe, "-test.run=^TestServerHelper$", "-test.v"), dir: dir}
	// It removes none of its directories when it is killed.
	s.cmd.Env = append(os.Environ(), serverEnv+"="+stage, "GLOVEBOX_TEST_AGENT="+path, "TMPDIR="+t.TempDir())
	s.cmd.Dir = dir
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); s.pids == nil && lines.Scan(); {
		if _, rest, ok := strings.Cut(lines.Text(), "server "); ok {
			for _, f := range strings.Fields(rest) {
				if pid, err := strconv.Atoi(f); err == nil {
					s.pids = append(s.pids, pid)
				}
			}
		}
	}
	if len(s.pids) < 3 {
		s.cmd.Process.Kill()
		t.Fatalf("server and guests have the processes %v", s.pids)
	}
	return s
}

// kill kills the innermost process, or the outer one, which is ours.
func (v *victim) kill(outer bool) {
	if outer {
		v.cmd.Process.Kill()
	} else {
		unix.Kill(v.pids[0], unix.SIGKILL)
	}
	v.cmd.Wait()
}

// left returns the processes that have outlived the server: those that were there
// when it had reached its stage, and those that it started for guests since.
func (v *victim) left() []int {
	var left []int
	for _, pid := range v.pids {
		// The process that adopts orphans here reaps the zombie.
		if alive(strconv.Itoa(pid)) {
			left = append(left, pid)
		}
	}
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	own := fmt.Sprintf("--bundle=%s/gvisor/%d-", filepath.Join(v.dir, "state"), v.pids[0])
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), own) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
				left = append(left, pid)
			}
		}
	}
	return left
}

// checkGone fails the test if anything outlives the server and the next start.
func (v *victim) checkGone(t *testing.T) {
	t.Helper()
	if !polltest.Soon(5*time.Second, func() bool { return len(v.left()) == 0 }) {
		t.Errorf("leak: processes %v outlive the server", v.left())
	}
	// The last threads of a process may hold its lock a little longer than it is
	// seen to live, so that it can take more than one start.
	traces := func() []string {
		openIn(t, filepath.Join(v.dir, "state")).Close()
		groups, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/%s%d-*", groupPrefix, v.pids[0]))
		dirs, _ := filepath.Glob(filepath.Join(v.dir, "state", "gvisor", fmt.Sprintf("%d-*", v.pids[0])))
		return append(groups, dirs...)
	}
	if !polltest.Soon(5*time.Second, func() bool { return len(traces()) == 0 }) {
		t.Errorf("leak: %v outlive the server and the next start", traces())
	}
}

func TestServer_GuestsDieWithIt(t *testing.T) {
	for _, which := range []string{"inner", "outer"} {
		t.Run(which, func(t *testing.T) {
			s := startServer(t, atRest, resolved(t, t.TempDir()))
			s.kill(which == "outer")
			s.checkGone(t)
		})
	}
}

// resolved returns a path without symbolic links, as the engine uses it.
func resolved(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestServer_KilledDuringSnapshots kills a server while it writes and restores snapshots,
// beside another one on the same state directory.
func TestServer_KilledDuringSnapshots(t *testing.T) {
	for _, stage := range []string{atSnapshot, atRestore} {
		t.Run(stage, func(t *testing.T) {
			dir := resolved(t, t.TempDir())
			e := openIn(t, filepath.Join(dir, "state"))
			spec := newSpec(t)
			bystander := create(t, e, "bystander", spec)
			bystander.ask(t, "echo up") // it has all its processes then
			before := settled(t, nil)
			for i, after := range []time.Duration{0, 20 * time.Millisecond, 45 * time.Millisecond, 80 * time.Millisecond} {
				s := startServer(t, stage, dir)
				time.Sleep(after)
				s.kill(i%2 == 1)
				s.checkGone(t)
				if got := bystander.ask(t, "echo alive"); got != "alive" {
					t.Errorf("after %v: the other server's guest: got %q", after, got)
				}
				if after := settled(t, before); !maps.Equal(after, before) {
					t.Errorf("held %v before, %v after", before, after)
				}
				s.checkImages(t, e, spec)
			}
			create(t, e, "another", spec)
		})
	}
}

// checkImages fails the test unless what the server has left is whole or refused.
func (v *victim) checkImages(t *testing.T, e *Engine, spec *engine.Spec) {
	t.Helper()
	images, err := filepath.Glob(filepath.Join(v.dir, "image-*"))
	if err != nil || len(images) == 0 {
		t.Fatalf("snapshots of the server: %v, %v", images, err)
	}
	for i, dir := range images {
		m, files, err := openImage(dir)
		if err == nil {
			err = m.check(t.Context(), files, newChecks(time.Now))
			closeAll(files)
		}
		if err != nil && (i == 0 || !errors.Is(err, engine.ErrInvalid)) {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
		// One of each kind is enough.
		if last := i == len(images)-1; i == 0 || last {
			g, restored := e.Restore(t.Context(), "left-behind", spec, engine.Snapshot{Dir: dir})
			if restored == nil {
				g.Destroy(t.Context())
			}
			if (restored == nil) != (err == nil) || err != nil && !errors.Is(restored, engine.ErrInvalid) {
				t.Errorf("%s: check: %v, restore: %v", filepath.Base(dir), err, restored)
			}
		}
		os.RemoveAll(dir)
	}
}
