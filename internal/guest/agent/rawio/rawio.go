// Package rawio reads, writes and polls non-blocking descriptors without informing Go's
// scheduler.
//
// For a system call that may block, the scheduler wakes its monitor thread, which then
// polls every 20 microseconds. In a guest, where every system call passes through the
// sentry, that thread costs more than the work. A call that cannot block needs no
// monitoring.
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

// Read reads from a non-blocking descriptor; the error is unix.EAGAIN if there is
// nothing to read. At the end it returns 0, nil.
func Read(fd int, p []byte) (int, error) { return call(unix.SYS_READ, fd, p) }

// Write writes to a non-blocking descriptor; the error is unix.EAGAIN if nothing can be
// written.
func Write(fd int, p []byte) (int, error) { return call(unix.SYS_WRITE, fd, p) }

// Poll waits, at most d, until one of at most eight descriptors is readable or at its
// end, and returns a bit for each, lowest first. Negative descriptors are ignored. The
// scheduler considers the thread busy meanwhile: d must be short.
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

// Reader reads a descriptor and waits for data in the runtime's poller. It is for one
// goroutine at a time.
type Reader struct {
	f    *os.File
	conn syscall.RawConn
}

// NewReader returns a Reader of fd, which it makes non-blocking and owns.
func NewReader(fd int) (*Reader, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("set up descriptor %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "connection")
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
		return 0, fmt.Errorf("read connection: %w", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Writer writes to a descriptor that no poller watches: the poller would wake up
// whenever the peer reads. If there is no room, which is rare, it waits in a system
// call. Its methods may be called concurrently, but concurrent writes may interleave.
type Writer struct {
	f    *os.File
	conn syscall.RawConn
}

// NewWriter returns a Writer to fd, which it makes non-blocking and owns.
func NewWriter(fd int) (*Writer, error) {
	// os.NewFile adds only non-blocking descriptors to the poller.
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

// WriteUntil is Write with a deadline, after which it returns os.ErrDeadlineExceeded; a
// zero deadline means none.
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

// Close closes the descriptor after the calls in progress.
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
