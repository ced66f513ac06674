package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// isFull reports whether an error is about a disk or a quota that is full.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// fullDisk is the hint of an error about a disk or a quota that is full.
func fullDisk(err error) string {
	on := "the disk"
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		on = "the disk of " + printable(filepath.Dir(path.Path))
	case errors.As(err, &link):
		on = "the disk of " + printable(filepath.Dir(link.New))
	}
	return "make room on " + on + "; if it is the state directory's, choose another one with --state-dir or GLOVEBOX_STATE_DIR, or let boxes and snapshots take less with --snapshot-disk-mb"
}

// prepareState makes the state directory and proves that it can be written, so
// that what is wrong with it is said at the start and plainly.
//
// Several processes may share the directory: what one process needs for itself
// lies in a directory of its own with a lock (the engine's), and what they
// share is addressed by its content and renamed into place.
func prepareState(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".probe-"); err == nil {
			// Enough to notice a full disk.
			_, err = f.Write(make([]byte, 64<<10))
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("use the state directory %s: %w", dir, err)
	switch {
	case isFull(err):
		return withHint(err, "%s", fullDisk(err))
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return withHint(err, "choose a directory that you may write to with --state-dir or GLOVEBOX_STATE_DIR")
	}
	return withHint(err, "choose another directory with --state-dir or GLOVEBOX_STATE_DIR")
}
