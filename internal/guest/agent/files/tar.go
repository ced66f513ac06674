package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxArchived bounds the entries of an archive, read or written.
	maxArchived = 100_000
	// maxArchiveDepth bounds the depth of directories.
	maxArchiveDepth = 256
	// maxExtracted bounds the unpacked size of an archive; the box's disk limit is
	// usually lower.
	maxExtracted = 16 << 30
)

// Archive writes a tar archive of a file or directory to w: regular files, directories
// and symbolic links, which are not followed; other files are skipped. Names are
// relative to the directory, or the file's own.
func (t *Tree) Archive(x protocol.Path, w io.Writer) error {
	p, err := t.locate(x.Path)
	if err != nil {
		return err
	}
	root, err := t.open(p, p.name)
	if err != nil {
		return err
	}
	defer root.Close()
	a := archiver{w: tar.NewWriter(w)}
	fi, err := root.Stat(p.name)
	switch {
	case err != nil:
	case fi.IsDir():
		a.root, err = root.OpenRoot(p.name)
		if err == nil {
			defer a.root.Close()
			err = a.dir(".", 0)
		}
	default:
		if err = regular(fi); err == nil {
			a.root = root
			err = a.file(p.name, filepath.Base(p.name))
		}
	}
	if err == nil {
		err = a.w.Close()
	}
	return t.explain("archive", x.Path, err)
}

type archiver struct {
	root    *os.Root
	w       *tar.Writer
	entries int
}

// dir adds the entries of a directory.
func (a *archiver) dir(name string, depth int) error {
	if depth > maxArchiveDepth {
		return failf(protocol.CodeTooLarge, "directories are nested deeper than %d", maxArchiveDepth)
	}
	names, all, err := readNames(a.root, name)
	if err != nil {
		return err
	}
	if !all {
		return failf(protocol.CodeTooLarge, "more than %d entries", maxArchived)
	}
	for _, n := range names {
		if err := a.add(path.Join(name, n), depth); err != nil {
			return err
		}
	}
	return nil
}

func (a *archiver) add(name string, depth int) error {
	fi, err := a.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed in between
	}
	if err != nil {
		return err
	}
	switch {
	case fi.IsDir():
		if err := a.header(fi, name+"/", ""); err != nil {
			return err
		}
		return a.dir(name, depth+1)
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := a.root.Readlink(name)
		if err != nil {
			return err
		}
		return a.header(fi, name, target)
	case fi.Mode().IsRegular():
		return a.file(name, name)
	}
	return nil
}

// file adds a regular file with its size when opened: it cuts off growth, and fills up
// with zeros if the file shrinks.
func (a *archiver) file(name, as string) error {
	f, fi, err := openRegular(a.root, name, 0)
	if errors.Is(err, fs.ErrNotExist) && name == as {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := a.header(fi, as, ""); err != nil {
		return err
	}
	c := &countingWriter{w: a.w}
	if err := copyRange(c, f, 0, fi.Size()); err != nil {
		return err
	}
	zeros := make([]byte, 32<<10)
	for c.n < fi.Size() {
		if _, err := c.Write(zeros[:min(int64(len(zeros)), fi.Size()-c.n)]); err != nil {
			return err
		}
	}
	return nil
}

func (a *archiver) header(fi fs.FileInfo, name, target string) error {
	if a.entries++; a.entries > maxArchived {
		return failf(protocol.CodeTooLarge, "more than %d entries", maxArchived)
	}
	h := &tar.Header{
		Name: name, Linkname: target, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX,
	}
	switch {
	case fi.IsDir():
		h.Typeflag = tar.TypeDir
	case target != "":
		h.Typeflag = tar.TypeSymlink
	default:
		h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	}
	return a.w.WriteHeader(h)
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Extract unpacks a tar archive into a directory, which is created if missing. Existing
// files are replaced, directories only by directories. The first unsafe entry ends the
// operation with an error; earlier entries stay. Symbolic links of a backup may lead
// anywhere: the user made them in a box with the same image, and nothing is written
// through them.
func (t *Tree) Extract(x protocol.Extract, r io.Reader) error {
	p, err := t.locateWritable("unpack into", x.Path)
	if err != nil {
		return err
	}
	root, err := t.open(p, p.name)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(p.name, 0o755); err != nil {
		return t.explain("extract to", x.Path, err)
	}
	dir, err := root.OpenRoot(p.name)
	if err != nil {
		return t.explain("extract to", x.Path, err)
	}
	defer dir.Close()
	e := extractor{root: dir, path: p.abs(), backup: x.Backup}
	if err := e.all(tar.NewReader(r)); err != nil {
		return t.explain("extract to", x.Path, err)
	}
	// Consume the padding after the archive's end, which the sender still sends.
	_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
	return err
}

type extractor struct {
	root    *os.Root
	path    string // path of root
	backup  bool   // symbolic links may lead anywhere
	entries int
	bytes   int64
}

func (e *extractor) all(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
			return failf(protocol.CodeInvalid, "the archive is not a tar archive or is cut off: %v", err)
		}
		if err != nil {
			return err
		}
		if e.entries++; e.entries > maxArchived {
			return failf(protocol.CodeTooLarge, "the archive has more than %d entries", maxArchived)
		}
		if e.bytes += max(h.Size, 0); e.bytes > maxExtracted {
			return failf(protocol.CodeTooLarge, "the archive unpacks to more than %d bytes", int64(maxExtracted))
		}
		if err := e.entry(h, r); err != nil {
			var we *protocol.Error
			if errors.As(err, &we) {
				return err
			}
			return fmt.Errorf("entry %.200q: %w", h.Name, err)
		}
	}
}

// entryName validates the name of an entry.
func entryName(h *tar.Header) (string, error) {
	name := strings.TrimSuffix(h.Name, "/")
	bad := name == "" || len(name) > maxPath || strings.ContainsAny(name, "\x00\\") || path.IsAbs(name)
	for _, el := range strings.Split(name, "/") {
		bad = bad || el == ".." || len(el) > maxName
	}
	if bad {
		return "", failf(protocol.CodeNotAllowed, "archive entry %.200q has a name that is not below the directory", h.Name)
	}
	return path.Clean(name), nil
}

func (e *extractor) entry(h *tar.Header, r io.Reader) error {
	name, err := entryName(h)
	if err != nil {
		return err
	}
	if err := e.beneath(h, name); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm() // without setuid, setgid and sticky
	if name == "." {
		return nil
	}
	if h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeXGlobalHeader {
		if err := e.clear(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir:
		if fi, err := e.root.Lstat(name); err == nil && !fi.IsDir() {
			return failf(protocol.CodeExists, "archive entry %.200q is a directory, but something else is there", h.Name)
		}
		return e.root.MkdirAll(name, mode|0o700)
	case tar.TypeReg:
		return e.file(name, mode, h, r)
	case tar.TypeSymlink:
		target := path.Join(path.Dir(name), h.Linkname)
		if e.backup && strings.IndexByte(h.Linkname, 0) < 0 {
			return e.root.Symlink(h.Linkname, name)
		}
		if path.IsAbs(h.Linkname) || target == ".." || strings.HasPrefix(target, "../") || strings.IndexByte(h.Linkname, 0) >= 0 {
			return failf(protocol.CodeNotAllowed, "archive entry %.200q is a symbolic link that leads outside: %.200q", h.Name, h.Linkname)
		}
		return e.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		target, err := entryName(&tar.Header{Name: h.Linkname})
		if err != nil {
			return err
		}
		if err := e.beneath(h, target); err != nil {
			return err
		}
		if fi, err := e.root.Lstat(target); err != nil {
			return err
		} else if !fi.Mode().IsRegular() {
			return failf(protocol.CodeNotAllowed, "archive entry %.200q is a link to something that is no file", h.Name)
		}
		return e.root.Link(target, name)
	}
	return failf(protocol.CodeNotAllowed, "archive entry %.200q is a device, pipe or of unknown type %q", h.Name, h.Typeflag)
}

// beneath returns an error if an entry's name is below a symbolic link that leads out:
// see Tree.open.
func (e *extractor) beneath(h *tar.Header, name string) error {
	err := within(e.path, path.Dir(name))
	if errors.Is(err, errOut) {
		return failf(protocol.CodeNotAllowed, "archive entry %.200q is below a symbolic link that leads outside", h.Name)
	}
	return err
}

// clear removes what exists in the place of an entry that is not a directory.
func (e *extractor) clear(name string) error {
	if dir := path.Dir(name); dir != "." {
		if err := e.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	fi, err := e.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return failf(protocol.CodeExists, "archive entry %.200q would replace a directory", name)
	}
	return e.root.Remove(name)
}

func (e *extractor) file(name string, mode fs.FileMode, h *tar.Header, r io.Reader) (err error) {
	f, err := e.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			e.root.Remove(name)
		}
	}()
	n, err := io.Copy(f, r)
	if err != nil {
		return err
	}
	if n != h.Size {
		return io.ErrUnexpectedEOF
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if !h.ModTime.IsZero() {
		return e.root.Chtimes(name, h.ModTime, h.ModTime)
	}
	return nil
}
