// Package owned verifies that files and directories are controlled by the user that
// runs this program: nobody else but root can have written them, and nobody else can
// replace them.
//
// In a user namespace that maps only some users, the kernel shows the files of all
// others, real root included, as those of one user. A directory above a checked one may
// belong to that user; a program checks once before it enters such a namespace, and calls
// [Settle] when it has started there.
package owned

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ErrUnsafe means that another user can change or replace a file or directory. The error
// text names the path, the reason and the remedy.
var ErrUnsafe = errors.New("unsafe path")

// unsafeError is an ErrUnsafe.
type unsafeError struct {
	path, why, fix string
}

func (e *unsafeError) Error() string {
	if e.fix == "" {
		return fmt.Sprintf("%s %s", e.path, e.why)
	}
	return fmt.Sprintf("%s %s; %s", e.path, e.why, e.fix)
}

// Is reports whether target is ErrUnsafe.
func (e *unsafeError) Is(target error) bool { return target == ErrUnsafe }

// Dir returns an error unless the directory at path, which is the state directory or in
// it, belongs to this user, nobody else can write to it, and nobody else but root can
// replace it or a directory or symbolic link that leads to it. [SetOnlyUser] sets an
// exception. A directory such as /tmp, to which everybody can write but in which only the
// owner of an entry can replace it, may be above it. If nothing is at path, Dir checks the
// directories above, and returns nil: the caller makes the directory and calls Dir again.
// Errors: ErrUnsafe, those of the file system.
func Dir(path string) error { return check(path, directory, volume) }

// DirOutside is Dir for a directory outside of the state directory: without the exception.
func DirOutside(path string) error { return check(path, directory, strict) }

// AboveState is Dir for the directories and symbolic links that lead to a path in the state
// directory, but not for the file or directory there.
func AboveState(path string) error { return check(path, nothing, volume) }

// Above is AboveState for any other path, such as that of a file with tokens: without the
// exception.
func Above(path string) error { return check(path, nothing, strict) }

// File returns an error unless the file at path, such as a program, belongs to this user
// or root, nobody else can write to it, and nobody else but root can replace it. It follows
// a symbolic link at the end of path. There is no exception.
func File(path string) error { return check(path, file, strict) }

// target is what check expects at the end of a path.
type target int

const (
	nothing target = iota // nothing in particular
	directory
	file
)

// place says where a path is.
type place int

const (
	strict place = iota // anywhere
	volume              // in the state directory, which may be a volume: see SetOnlyUser
)

// excepts reports whether the exception of SetOnlyUser applies.
func (p place) excepts() bool { return p == volume && OnlyUser() }

// onlyUser is the function of SetOnlyUser.
var onlyUser func() bool

// SetOnlyUser sets a function that reports whether this container has no user but root
// and the one that runs this program. Then nobody else can use the permissions of groups
// and others, and the state directory and its content may be writable for them or belong
// to root: container platforms create volumes that way. The function is called only where
// a check would fail otherwise, each time, and possibly concurrently. Call SetOnlyUser
// before any check.
func SetOnlyUser(f func() bool) { onlyUser = f }

// OnlyUser reports whether the function of [SetOnlyUser] returns true.
func OnlyUser() bool { return onlyUser != nil && onlyUser() }

// Info returns an error unless the file or directory, which is in the state directory,
// belongs to this user or root and nobody else can write to it. [SetOnlyUser] sets an
// exception. path is for the error, which is ErrUnsafe.
func Info(path string, info fs.FileInfo) error { return checkInfo(path, info, volume) }

// Open opens a regular file for which Info returns nil. It neither follows a symbolic
// link at the end of path nor waits for a named pipe. Errors: ErrUnsafe, those of the
// file system.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err == nil {
		err = Info(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile returns the content of a file that Open opens, which has at most max bytes.
func ReadFile(path string, max int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(b)) > max {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", max)}
	}
	return b, err
}
