//go:build unix

package template

import (
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
