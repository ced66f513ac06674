//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
)

// A call to a sentry that never answers, as one that was stopped, ends with its context.
func TestSentryControl_EndsWithContext(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := &guest{socket: filepath.Join(dir, "s")}
	silent, err := net.Listen("unix", g.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	want := errors.New("the start was cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		done <- g.control(ctx, func(c *urpc.Client) error { return c.Call("Anything", nil, nil) })
	}()
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the call waits for its answer
		t.Fatal(err)
	}
	cancel(want)
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			t.Errorf("got %v, want the cause of the context", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call goes on after its context has ended")
	}
}

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
