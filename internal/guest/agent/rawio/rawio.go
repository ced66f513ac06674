// Package rawio reads and writes descriptors that do not block, and waits for a
// short time, without telling Go's scheduler about it.
//
// For a system call that may block the scheduler wakes a thread of its own to
// watch over it, which then sleeps and looks every 20 microseconds. Inside of a
// guest, where every system call is a trip through the sentry, that thread costs
// more than the work. A call that cannot block needs no watch.
package rawio

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads from a descriptor that does not block; the error is unix.EAGAIN if
// there is nothing to read. At the end it returns 0, nil.
func Read(fd int, p []byte) (int, error) { return call(unix.SYS_READ, fd, p) }

// Write writes to a descriptor that does not block; the error is unix.EAGAIN if
// there is no room for any of p.
func Write(fd int, p []byte) (int, error) { return call(unix.SYS_WRITE, fd, p) }

// Poll waits, for d at most, until one of at most eight descriptors has something
// to read or has come to its end, and returns a bit for each, the first one's the
// lowest. A negative descriptor never has. While Poll waits the scheduler takes
// the thread to be computing: d is to be short.
func Poll(d time.Duration, fds ...int) (ready uint) {
	var polls [8]unix.PollFd
	for i, fd := range fds {
		polls[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	timeout := unix.NsecToTimespec(int64(d))
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&polls[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	for i := range fds {
		if errno == 0 && polls[i].Revents != 0 {
			ready |= 1 << i
		}
	}
	return ready
}

func call(trap uintptr, fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// A Reader reads a descriptor, and waits in the runtime's poller while there is
// nothing. It is for one goroutine at a time.
type Reader struct {
	f    *os.File
	conn syscall.RawConn
}

// NewReader returns a Reader of fd, which it makes non-blocking and owns from
// then on.
func NewReader(fd int) (*Reader, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("set up descriptor %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "link")
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("set up descriptor %d: %w", fd, err)
	}
	return &Reader{f: f, conn: conn}, nil
}

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (n int, err error) {
	werr := r.conn.Read(func(fd uintptr) bool {
		n, err = Read(int(fd), p)
		return err != unix.EAGAIN
	})
	switch {
	case werr != nil:
		return 0, werr
	case err != nil:
		return 0, fmt.Errorf("read link: %w", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// A Writer writes to a descriptor that no poller watches: it would be woken up
// whenever the other side reads. For room, which is seldom missing, a Writer
// waits in a system call. Its methods may be called concurrently, but what two
// calls write mixes.
type Writer struct {
	f    *os.File
	conn syscall.RawConn
}

// NewWriter returns a Writer to fd, which it makes non-blocking and owns from
// then on.
func NewWriter(fd int) (*Writer, error) {
	// What blocks when it becomes a file is not given to the poller.
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, fmt.Errorf("set up descriptor %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "pipe")
	conn, err := f.SyscallConn()
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("set up descriptor %d: %w", fd, err)
	}
	return &Writer{f: f, conn: conn}, nil
}

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) { return w.WriteUntil(p, time.Time{}) }

// WriteUntil is Write with a deadline, unless that is zero, after which the error
// is os.ErrDeadlineExceeded.
func (w *Writer) WriteUntil(p []byte, deadline time.Time) (done int, err error) {
	cerr := w.conn.Control(func(fd uintptr) {
		for done < len(p) && err == nil {
			var n int
			if n, err = Write(int(fd), p[done:]); err == unix.EAGAIN {
				err = waitForRoom(int32(fd), deadline)
			}
			done += n
		}
	})
	if cerr != nil {
		err = cerr
	}
	return done, err
}

// Close closes the descriptor, once the calls under way have ended.
func (w *Writer) Close() error { return w.f.Close() }

func waitForRoom(fd int32, deadline time.Time) error {
	timeout := -1
	if !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		timeout = int(min(left+time.Millisecond-1, time.Hour) / time.Millisecond)
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLOUT}}, timeout)
	if err == unix.EINTR {
		return nil
	}
	return err
}
