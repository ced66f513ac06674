package cli

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"syscall"
)

// output is the standard output of a command. It keeps the first write error, so that a
// command fails if its output is lost. Its methods may be called concurrently.
type output struct {
	io.Writer

	mu  sync.Mutex
	err error // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err == nil {
		return n, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = &outputError{err}
	}
	return n, o.err
}

// outputError reports a failed write to standard output.
type outputError struct{ err error }

func (e *outputError) Error() string { return "write to standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// Fd returns the descriptor, to detect a terminal; an invalid one if there is none.
func (o *output) Fd() uintptr {
	if f, ok := o.Writer.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

// SyscallConn returns the descriptor, with which a server over standard input and
// output detects that its reader is gone.
func (o *output) SyscallConn() (syscall.RawConn, error) {
	if f, ok := o.Writer.(syscall.Conn); ok {
		return f.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// lost returns the write error that err, the command's error, does not include. A
// reader that closed the pipe, such as head, is not an error.
func (o *output) lost(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, known := range []error{syscall.EPIPE, io.ErrClosedPipe, fs.ErrClosed} {
		if errors.Is(o.err, known) {
			return nil
		}
	}
	if o.err == nil || errors.Is(err, o.err) {
		return nil
	}
	return o.err
}
