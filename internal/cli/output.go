package cli

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"syscall"
)

// output is the standard output of a command. It keeps the first error of a write, so
// that a command whose output was lost fails, whoever wrote it. Its methods may be
// called concurrently.
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

// Fd returns the descriptor, by which a terminal is recognised; one that is never open
// if there is none.
func (o *output) Fd() uintptr {
	if f, ok := o.Writer.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

// SyscallConn returns the descriptor, by which a server over standard input and
// output notices that its reader has gone.
func (o *output) SyscallConn() (syscall.RawConn, error) {
	if f, ok := o.Writer.(syscall.Conn); ok {
		return f.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// lost returns the error of output that was not written and that err, the command's
// error, does not report yet. A reader that has gone, as head does, loses nothing that
// it wants.
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
