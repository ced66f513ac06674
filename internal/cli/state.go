package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// fullDisk returns the remedy of a full disk, for an error that hostdisk.IsFull recognizes.
func fullDisk(err error) string {
	return fullDiskIn(err) + " with --state-dir or GLOVEBOX_STATE_DIR, or let boxes and snapshots take less with --snapshot-disk-mb"
}

// fullDiskIn is the part of the remedy that is the same for all commands.
func fullDiskIn(err error) string {
	disk := "the disk"
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		disk = "the disk of " + printable(filepath.Dir(path.Path))
	case errors.As(err, &link):
		disk = "the disk of " + printable(filepath.Dir(link.New))
	}
	return "make room on " + disk + "; if it is the state directory's, choose another one"
}

// prepareState creates the state directory and checks that it is writable and that
// no other user can change its content, to report a problem at the start: a user who can
// write there controls boxes, and the files that they see.
//
// Processes may share the directory: each has its own working directory with a lock
// (the engine's), and shared files are addressed by content and renamed into place.
func prepareState(dir string) error {
	err := owned.Dir(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = checkState(dir)
	}
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".probe-"); err == nil {
			// enough to detect a full disk
			_, err = f.Write(make([]byte, 64<<10))
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("use the state directory %s: %w", dir, err)
	switch {
	case errors.Is(err, owned.ErrUnsafe):
		return withHint(err, "glovebox keeps boxes and programs there, so nobody else may write to it; use a directory of your own with --state-dir or GLOVEBOX_STATE_DIR")
	case hostdisk.IsFull(err):
		return withHint(err, "%s", fullDisk(err))
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return withHint(err, "choose a writable directory with --state-dir or GLOVEBOX_STATE_DIR")
	}
	return withHint(err, "choose another directory with --state-dir or GLOVEBOX_STATE_DIR")
}

// checkState returns an error if another user can change the state directory or what is
// directly in it. Each file below is checked when it is read.
func checkState(dir string) error {
	if err := owned.Dir(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := checkEntry(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // not one that another process has removed
		}
	}
	return nil
}

// checkEntry checks a file or directory, to which a symbolic link may lead.
func checkEntry(path string) error {
	if err := owned.AboveState(path); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Lstat(real)
	if err != nil {
		return err
	}
	if err := owned.AboveState(real); err != nil {
		return err
	}
	return owned.Info(real, info)
}
