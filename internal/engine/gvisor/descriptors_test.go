//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptors_OfGuest: the processes of a guest hold no descriptor that this process
// was started with, and no socket of another guest.
func TestDescriptors_OfGuest(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	// As it is with descriptors that a parent has passed on.
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	inherited, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	e := open(t)
	b := create(t, e, "descriptors", withVolume(t, newSpec(t)))
	g := b.Guest.(*guest)
	gofer, sentry := descriptors(t, g.gofers[0].Process.Pid), descriptors(t, g.sentry.Process.Pid)
	for name, fds := range map[string]map[string]bool{"gofer": gofer, "sentry": sentry} {
		if fds[inherited] {
			t.Errorf("the %s holds %s, which this process was started with", name, inherited)
		}
	}
	for fd := range gofer {
		if strings.HasPrefix(fd, "socket:") && sentry[fd] {
			t.Errorf("gofer and sentry both hold %s", fd)
		}
	}
}

// descriptors is the set of what a process has open, by what the kernel calls it.
func descriptors(t *testing.T, pid int) map[string]bool {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	if len(links) == 0 {
		t.Fatalf("process %d has no descriptors that this process may see", pid)
	}
	set := make(map[string]bool)
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			set[target] = true
		}
	}
	return set
}
