//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Sentries do not inherit the descriptors of connections to other sentries.
func TestDescriptors_ControlIsNotInherited(t *testing.T) {
	e := open(t)
	b := create(t, e, "guest", newSpec(t))
	before := inheritable(t)
	c, err := dialControl(b.Guest.(*guest).socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for fd, name := range inheritable(t) {
		if _, was := before[fd]; !was {
			t.Errorf("descriptor %d (%s) is not closed on exec", fd, name)
		}
	}
}

// inheritable returns the descriptors of this process that a process which it
// starts would have.
func inheritable(t *testing.T) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			found[fd], _ = os.Readlink("/proc/self/fd/" + entry.Name())
		}
	}
	return found
}
