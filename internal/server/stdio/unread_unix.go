//go:build unix

package stdio

import (
	"context"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unreadEvery is the interval of checks of the output after the end of the input.
const unreadEvery = 200 * time.Millisecond

// unread waits until the pipe or socket behind w has lost its reader, and then returns
// true. It returns false when ctx ends, or at once if w has no descriptor.
func unread(ctx context.Context, w io.Writer) bool {
	f, ok := w.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	for gone := false; !gone; {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(unreadEvery):
		}
		err := raw.Control(func(fd uintptr) {
			// Without events to wait for, only an error or a hang-up counts.
			fds := []unix.PollFd{{Fd: int32(fd)}}
			_, err := unix.Poll(fds, 0)
			gone = err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		})
		if err != nil {
			return false
		}
	}
	return true
}
