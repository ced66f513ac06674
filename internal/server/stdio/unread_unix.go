//go:build unix

package stdio

import (
	"context"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unreadEvery is how often the output is looked at once the input has ended.
const unreadEvery = 200 * time.Millisecond

// unread returns true when the pipe or socket behind w has lost its reader, and false
// when ctx ends or w has no descriptor to tell.
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
