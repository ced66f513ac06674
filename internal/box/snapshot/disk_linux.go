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

// tryLock locks the byte of f at an offset, for this open file, and reports
// whether it could: not if another one has locked it in a way that excludes this.
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

// unlock undoes tryLock, also for a child that is between fork and exec. A length
// of 0 means everything from there on.
func unlock(f *os.File, at, length int64) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart, Start: at, Len: length})
	if err != nil {
		return fmt.Errorf("unlock %q: %w", f.Name(), err)
	}
	return nil
}

// locked reports whether another open file has locked the byte.
func locked(f *os.File, at int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("look at lock of %q: %w", f.Name(), err)
	}
	return l.Type != unix.F_UNLCK, nil
}

// stamp changes whenever something is made, renamed or removed in a directory,
// once its time of change is not the present.
type stamp struct {
	dev, ino     uint64
	mtime, ctime unix.Timespec
}

// stampOf returns the stamp of what info is of, and its time of change.
func stampOf(info fs.FileInfo) stamp {
	st := info.Sys().(*syscall.Stat_t)
	return stamp{
		dev: uint64(st.Dev), ino: st.Ino, // Dev has another type on other processors
		mtime: unix.Timespec(st.Mtim), ctime: unix.Timespec(st.Ctim),
	}
}

// checkOwner returns why what info is of was not made by this package.
func checkOwner(info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return fmt.Errorf("%q belongs to user %d, not %d", info.Name(), st.Uid, uid)
	}
	if info.Mode().IsRegular() && st.Nlink != 1 {
		return fmt.Errorf("%q has %d names", info.Name(), st.Nlink)
	}
	return nil
}

// exchange has two files change their names, or gives the one its new name if there
// is no other. File systems take a rename that removes a file for the end of a save,
// and have what is in it written out before they go on.
func exchange(dir *os.Root, from, to string) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Renameat2(int(f.Fd()), from, int(f.Fd()), to, unix.RENAME_EXCHANGE) == nil {
		return nil
	}
	return dir.Rename(from, to) // also where the file system cannot
}

// freeBytes returns how much room the disk has, for this user.
func freeBytes(dir *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at the disk of %q: %w", dir.Name(), err)
	}
	return int64(min(st.Bavail*uint64(st.Bsize), 1<<62)), nil
}

// isFull reports whether an error says that a disk or a quota is full.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
