//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCgroup_HasAllProcesses fails if a process of a guest is outside the guest's cgroup,
// where no limit applies to it.
func TestCgroup_HasAllProcesses(t *testing.T) {
	e := open(t)
	if e.groups == nil {
		t.Skip("no cgroups can be made here")
	}
	b := create(t, e, "guest", newSpec(t))
	b.ask(t, "sh sleep 1000 > /dev/null 2>&1 &")
	sentry := b.Guest.(*guest).sentry.Process.Pid
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	members := 0
	for _, dir := range pids {
		if !sameNamespace(dir, fmt.Sprintf("/proc/%d", sentry)) {
			continue
		}
		members++
		got, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue // it has ended
		}
		want := len(e.groups.distinct())
		if n := bytes.Count(got, []byte("/guest\n")); n < want {
			t.Errorf("process %s is in %d of the guest's %d cgroups:\n%s", dir, n, want, got)
		}
	}
	if members < 2 {
		t.Errorf("found %d processes of the guest: the sentry and its stubs are at least two", members)
	}
}

// TestCgroup_Weight: the boxes of an instance weigh more than one thread of the server,
// so that many busy boxes are not starved by it.
func TestCgroup_Weight(t *testing.T) {
	e := open(t)
	if e.groups == nil || e.groups.v2 {
		t.Skip("no cgroups of version 1 can be made here")
	}
	got, err := os.ReadFile(filepath.Join(e.groups.dirs["cpu"], "cpu.shares"))
	if want := fmt.Sprintln(threadWeight * runtime.NumCPU()); err != nil || string(got) != want {
		t.Errorf("the weight is %q, %v, want %q", got, err, want)
	}
}

func sameNamespace(a, b string) bool {
	x, errX := os.Readlink(a + "/ns/pid")
	y, errY := os.Readlink(b + "/ns/pid")
	return errX == nil && errY == nil && x == y
}

// TestStart_WaitsForCgroup: a sentry or gofer does nothing before the server has put it
// into its cgroup.
func TestStart_WaitsForCgroup(t *testing.T) {
	gate, open, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	defer gate.Close()
	// A command that gVisor does not have: it says so and ends.
	cmd := &exec.Cmd{Path: selfExe, Args: []string{goferName, "nothing"}, Stdin: gate}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	open.Close()
	if err := <-ended; err == nil {
		t.Error("gVisor has a command of this name")
	}
}

// TestCgroupsLeft: a cgroup that cannot be removed when its guest ends is removed later, at
// the latest when the engine is closed.
func TestCgroupsLeft(t *testing.T) {
	e := openIn(t, t.TempDir())
	if e.groups == nil {
		t.Skip("no cgroups can be made here")
	}
	b := create(t, e, "guest", newSpec(t))
	dirs := e.groups.distinct()
	for _, dir := range dirs {
		for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
			if err := unix.Mount(dir, dir, "", flags, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	for _, dir := range dirs {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "guest")); err != nil {
			t.Errorf("while it could not be removed: %v", err)
		}
	}
	if err := e.Close(); err != nil {
		t.Errorf("close the engine: %v", err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}
