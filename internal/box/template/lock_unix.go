//go:build unix

package template

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

type lockKind int

const (
	shared    lockKind = unix.LOCK_SH
	exclusive lockKind = unix.LOCK_EX
)

// tryLock takes or changes the lock of an open file; ok is false if others have
// it.
func tryLock(f *os.File, kind lockKind) (ok bool, err error) {
	for {
		switch err := unix.Flock(int(f.Fd()), int(kind)|unix.LOCK_NB); err {
		case nil:
			return true, nil
		case unix.EWOULDBLOCK:
			return false, nil
		case unix.EINTR:
		default:
			return false, err
		}
	}
}

// openPlain opens a regular file and nothing that could make the call block.
func openPlain(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid})
	}
	return f, nil
}
