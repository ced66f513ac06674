package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// tryLock locks the byte of f at an offset for this open file description. It returns
// false if another one has a conflicting lock.
func tryLock(f *os.File, at int64, shared bool) (bool, error) {
	typ := int16(unix.F_WRLCK)
	if shared {
		typ = unix.F_RDLCK
	}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: typ, Whence: io.SeekStart, Start: at, Len: 1})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %q: %w", f.Name(), err)
	}
	return true, nil
}

// unlock undoes tryLock, also for a child process between fork and exec. A length of 0
// means up to the end.
func unlock(f *os.File, at, length int64) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart, Start: at, Len: length})
	if err != nil {
		return fmt.Errorf("unlock %q: %w", f.Name(), err)
	}
	return nil
}

// locked reports whether another open file description has locked the byte.
func locked(f *os.File, at int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("query lock of %q: %w", f.Name(), err)
	}
	return l.Type != unix.F_UNLCK, nil
}

// stamp identifies the state of a directory: it changes whenever an entry is made,
// renamed or removed, unless within one tick of the clock.
type stamp struct {
	dev, ino     uint64
	mtime, ctime unix.Timespec
}

// stampOf returns the stamp of a directory.
func stampOf(info fs.FileInfo) stamp {
	st := info.Sys().(*syscall.Stat_t)
	return stamp{
		dev: uint64(st.Dev), ino: st.Ino, // Dev has another type on other processors
		mtime: unix.Timespec(st.Mtim), ctime: unix.Timespec(st.Ctim),
	}
}

// checkOwner returns an error unless the file belongs to this user and has one name.
func checkOwner(info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return fmt.Errorf("%q belongs to user %d, not %d", info.Name(), st.Uid, uid)
	}
	if info.Mode().IsRegular() && st.Nlink != 1 {
		return fmt.Errorf("%q has %d hard links", info.Name(), st.Nlink)
	}
	return nil
}

// exchange swaps the names of two files, or renames the first if the second does not
// exist. File systems treat a rename that replaces a file as the end of a save and
// write its content out first; a swap avoids that wait.
func exchange(dir *os.Root, from, to string) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Renameat2(int(f.Fd()), from, int(f.Fd()), to, unix.RENAME_EXCHANGE) == nil {
		return nil
	}
	return dir.Rename(from, to) // also if the file system cannot swap
}
