//go:build linux

package microsandbox

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSockets_OfAnotherProcess(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, other := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "other")
	defer socket.Close()
	defer other.Close()
	for _, c := range []struct {
		extra []*os.File
		want  int
	}{{nil, 0}, {[]*os.File{socket}, 1}, {[]*os.File{socket, other}, 2}} {
		cmd := exec.Command("cat")
		cmd.ExtraFiles = c.extra
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := sockets(cmd.Process.Pid)
		if err != nil || got != c.want {
			t.Errorf("with %d sockets: got %d, %v", len(c.extra), got, err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := sockets(cmd.Process.Pid); err == nil {
			t.Error("a process that has ended has descriptors")
		}
	}
}
