// Package files implements the agent's file operations, confined to a few directories
// of the guest, whatever paths, symbolic links and races there are. It relies on
// os.Root for that, and opens no joined paths.
package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"fmt"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxPath bounds a path in bytes, like the kernel.
	maxPath = 4096
	// maxName bounds one element of a path.
	maxName = 255
)

// Tree is a set of directories with accessible files. Its methods act with the rights
// of the calling thread, may be called concurrently, and return errors for the host:
// *protocol.Error.
type Tree struct {
	home     string
	roots    []string // longest first
	readOnly []string // subset of roots
}

// New returns a Tree of the directories in roots, and of those in readOnly, in which
// nothing may be changed. All must be absolute and clean. Relative paths are below
// home.
func New(home string, roots, readOnly []string) *Tree {
	t := &Tree{home: home, roots: slices.Concat(roots, readOnly), readOnly: slices.Clone(readOnly)}
	slices.SortFunc(t.roots, func(a, b string) int { return len(b) - len(a) })
	t.roots = slices.Compact(t.roots)
	return t
}

// place is a lexically resolved path: a root and a name below it.
type place struct {
	root string // a root of the tree
	name string // relative to root; "." is the root itself
}

// abs returns the absolute path for messages.
func (p place) abs() string { return filepath.Join(p.root, p.name) }

// parent splits off the last element.
func (p place) parent() (dir, base string) {
	return filepath.Dir(p.name), filepath.Base(p.name)
}

// locate returns the root that contains a path. It resolves ".." lexically, before
// symbolic links, like a shell.
func (t *Tree) locate(path string) (place, error) {
	switch {
	case path == "":
		return place{}, failf(protocol.CodeInvalid, "the path is empty")
	case len(path) > maxPath:
		return place{}, failf(protocol.CodeInvalid, "path of %d bytes is longer than %d", len(path), maxPath)
	case strings.IndexByte(path, 0) >= 0:
		return place{}, failf(protocol.CodeInvalid, "path %.200q contains a zero byte", path)
	case !utf8.ValidString(path):
		return place{}, failf(protocol.CodeInvalid, "path %.200q is not UTF-8", path)
	}
	abs := path
	if !filepath.IsAbs(abs) {
		abs = filepath.Join(t.home, abs)
	}
	abs = filepath.Clean(abs)
	for _, e := range strings.Split(abs, "/") {
		if len(e) > maxName {
			return place{}, failf(protocol.CodeInvalid, "path element %.40q… is longer than %d bytes", e, maxName)
		}
	}
	for _, r := range t.roots {
		if abs == r {
			return place{root: r, name: "."}, nil
		}
		if rest, ok := strings.CutPrefix(abs, r+"/"); ok {
			return place{root: r, name: rest}, nil
		}
	}
	return place{}, t.outside(path)
}

// locateWritable is locate for an operation that changes files. verb is for its error.
func (t *Tree) locateWritable(verb, path string) (place, error) {
	p, err := t.locate(path)
	if err == nil && slices.Contains(t.readOnly, p.root) {
		return place{}, failf(protocol.CodeNotAllowed, "%s %.200q: the volume %s is read-only", verb, path, p.root)
	}
	return p, err
}

// outside returns the error for a path outside the tree.
func (t *Tree) outside(path string) error {
	return failf(protocol.CodeNotAllowed, "path %.200q is outside the accessible directories of the sandbox: %s",
		path, strings.Join(t.allowed(), ", "))
}

// escapes returns the error for a path that a symbolic link takes out of the tree.
func (t *Tree) escapes(verb, path string) error {
	return failf(protocol.CodeNotAllowed, "%s %.200q: a symbolic link leads out of the accessible directories of the sandbox: %s",
		verb, path, strings.Join(t.allowed(), ", "))
}

func (t *Tree) allowed() []string {
	a := slices.Clone(t.roots)
	slices.Sort(a)
	return a
}

// open opens the root of a place for an operation that follows symbolic links up to and
// including follow, which is the place's name or its directory.
//
// os.Root follows no link out of the tree as long as O_NOFOLLOW works for directories.
// In gVisor it does not together with O_DIRECTORY, so open checks the links first. Only
// the guest's user could change one in between, and the operation has no more rights
// than that user.
func (t *Tree) open(p place, follow string) (*os.Root, error) {
	r, err := os.OpenRoot(p.root)
	if err != nil {
		return nil, t.explain("open directory", p.root, err)
	}
	if err := within(p.root, follow); err != nil {
		r.Close()
		if errors.Is(err, errOut) {
			return nil, t.escapes("open", p.abs())
		}
		return nil, t.explain("open", p.abs(), err)
	}
	return r, nil
}

// errOut means that a symbolic link leads out of the tree.
var errOut = errors.New("a symbolic link leads out")

// within returns nil if the longest existing part of name is below root with all
// symbolic links followed, and errOut otherwise. A path that cannot be checked, because
// of its length or number of links, is an error too: the operation, which walks
// directory by directory, might get further.
func within(root, name string) error {
	base, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	for ; name != "."; name = filepath.Dir(name) {
		target, err := filepath.EvalSymlinks(filepath.Join(base, name))
		switch {
		case err == nil && (target == base || strings.HasPrefix(target, base+"/")):
			return nil
		case err == nil:
			return errOut
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOTDIR):
			continue // no operation gets further; it reports the error
		}
		if _, ok := errors.AsType[*fs.PathError](err); !ok {
			err = unix.ELOOP // too many links: the only error without an errno
		}
		return err
	}
	return nil
}

// explain converts a file system error to one for the host, which starts with the
// attempted action.
func (t *Tree) explain(verb, path string, err error) error {
	var we *protocol.Error
	if err == nil || errors.As(err, &we) {
		return err
	}
	// os.Root has no sentinel for this; a test pins the text.
	if strings.Contains(err.Error(), "path escapes from parent") {
		return t.escapes(verb, path)
	}
	code := protocol.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = protocol.CodeNotFound
	case errors.Is(err, unix.ENOTEMPTY):
		code = protocol.CodeInvalid
	case errors.Is(err, fs.ErrExist):
		code = protocol.CodeExists
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS), errors.Is(err, unix.ETXTBSY):
		code = protocol.CodeNotAllowed
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = protocol.CodeNoSpace
	case errors.Is(err, unix.EFBIG):
		code = protocol.CodeTooLarge
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOTSUP),
		strings.HasSuffix(err.Error(), "not a directory"): // os.Root has no errno for this; a test pins the text
		code = protocol.CodeInvalid
	}
	return failf(code, "%s %.200q: %s", verb, path, plain(cause(err)))
}

// plainCauses says in plain words what an errno means for a path.
var plainCauses = []struct {
	errno unix.Errno
	text  string
}{
	{unix.ENOENT, "there is no such file or directory"},
	{unix.EISDIR, "it is a directory, not a file"},
	{unix.ENOTDIR, "a part of the path is a file, and not a directory"},
	{unix.ENOTEMPTY, "the directory is not empty"},
	{unix.EEXIST, "it exists already"},
	{unix.EACCES, "permission denied: its permissions do not allow that to the user of the sandbox"},
	{unix.EPERM, "permission denied: only its owner or root may do that"},
	{unix.EROFS, "permission denied: it is on a read-only file system"},
	{unix.ETXTBSY, "it is a program that is running"},
	{unix.ENOSPC, "the disk of the sandbox is full"},
	{unix.EDQUOT, "the disk of the sandbox is full"},
	{unix.EFBIG, "it would be larger than a file may be"},
	{unix.ELOOP, "too many symbolic links lead to one another"},
	{unix.ENAMETOOLONG, "the name is too long"},
	{unix.ENXIO, "it is not a regular file"},
	{unix.EMFILE, "too many files are open"},
	{unix.ENFILE, "too many files are open"},
	{unix.EIO, "the disk failed"},
}

// plain returns the text of an error without the jargon of errno.
func plain(err error) string {
	for _, c := range plainCauses {
		if errors.Is(err, c.errno) {
			return c.text
		}
	}
	if err.Error() == "not a directory" { // of os.Root
		return "a part of the path is a file, and not a directory"
	}
	return err.Error()
}

// cause removes the paths that package os adds to an errno: they are internal and would
// confuse.
func cause(err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	}
	return err
}

func failf(code protocol.Code, format string, args ...any) *protocol.Error {
	return &protocol.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// info converts a file's information.
func info(path string, fi fs.FileInfo, target string) protocol.FileInfo {
	w := protocol.FileInfo{
		Path: path, Name: filepath.Base(path), Size: fi.Size(),
		Mode: uint32(fi.Mode().Perm()), Modified: fi.ModTime().UnixNano(), Target: target,
	}
	switch {
	case fi.Mode().IsRegular():
		w.Type = "file"
	case fi.IsDir():
		w.Type, w.Size = "directory", 0
	case fi.Mode()&fs.ModeSymlink != 0:
		w.Type = "symlink"
	default:
		w.Type, w.Size = "other", 0
	}
	return w
}

// stat describes the file name below root, without following a link at its end.
func stat(root *os.Root, name, path string) (protocol.FileInfo, error) {
	fi, err := root.Lstat(name)
	if err != nil {
		return protocol.FileInfo{}, err
	}
	target := ""
	if fi.Mode()&fs.ModeSymlink != 0 {
		target, _ = root.Readlink(name) // if it has just been removed, the target is empty
	}
	return info(path, fi, target), nil
}
