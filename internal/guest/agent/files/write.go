package files

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Write writes a regular file from r: to a temporary file beside it, which then
// replaces it. After an error nothing has changed. An error of r is returned unchanged.
func (t *Tree) Write(x protocol.Write, r io.Reader) (protocol.FileInfo, error) {
	var none protocol.FileInfo
	p, err := t.locateWritable("write", x.Path)
	if err != nil {
		return none, err
	}
	if p.name == "." || x.Path[len(x.Path)-1] == '/' {
		return none, failf(protocol.CodeInvalid, "write %.200q: it is a directory", x.Path)
	}
	root, err := t.open(p, filepath.Dir(p.name))
	if err != nil {
		return none, err
	}
	defer root.Close()
	fi, sum, err := write(root, p, x, r)
	if err != nil {
		return none, t.explain("write", x.Path, err)
	}
	res := info(p.abs(), fi, "")
	res.SHA256 = hex.EncodeToString(sum)
	return res, nil
}

func write(root *os.Root, p place, x protocol.Write, r io.Reader) (fs.FileInfo, []byte, error) {
	parent, base := p.parent()
	if x.Parents {
		// OpenRoot reports better what exists in the place of a directory.
		if err := root.MkdirAll(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, nil, err
		}
	}
	// From here on, names are elements of one directory, which stays the same even if
	// its path changes.
	dir, err := root.OpenRoot(parent)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	mode := fs.FileMode(x.Mode).Perm()
	switch fi, err := dir.Lstat(base); {
	case err == nil && fi.IsDir():
		return nil, nil, failf(protocol.CodeInvalid, "write %.200q: it is a directory", x.Path)
	case err == nil && x.Exclusive:
		return nil, nil, failf(protocol.CodeExists, "write %.200q: it exists", x.Path)
	case err == nil && x.Mode == 0 && fi.Mode().IsRegular():
		mode = fi.Mode().Perm()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, nil, err
	}
	if mode == 0 {
		mode = 0o644
	}
	tmp, f, err := createTemp(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		f.Close()
		if tmp != "" {
			dir.Remove(tmp)
		}
	}()
	sum, err := fill(f, x, r)
	if err != nil {
		return nil, nil, err
	}
	if err := f.Chmod(mode); err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if err := f.Close(); err != nil {
		return nil, nil, err
	}
	if x.Exclusive {
		// A link, unlike a rename, does not replace a file; the temporary name is
		// removed afterwards.
		return fi, sum, dir.Link(tmp, base)
	}
	if err := dir.Rename(tmp, base); err != nil {
		return nil, nil, err
	}
	tmp = ""
	return fi, sum, nil
}

// fill copies r to f, up to the caller's limit.
func fill(f *os.File, x protocol.Write, r io.Reader) ([]byte, error) {
	h := sha256.New()
	buf := make([]byte, 128<<10)
	var total int64
	for {
		n, err := r.Read(buf)
		total += int64(n)
		if x.MaxBytes > 0 && total > x.MaxBytes {
			return nil, failf(protocol.CodeTooLarge, "write %.200q: more than %d bytes", x.Path, x.MaxBytes)
		}
		if n > 0 {
			h.Write(buf[:n])
			if _, err := f.Write(buf[:n]); err != nil {
				return nil, err
			}
		}
		if err == io.EOF {
			return h.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// createTemp creates a file with a unique name.
func createTemp(dir *os.Root) (string, *os.File, error) {
	for range 10 {
		name := ".glovebox-" + rand.Text()[:16] + ".tmp"
		f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			return name, f, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("make a temporary file: %w", fs.ErrExist)
}

// Mkdir creates a directory. With Parents an existing one is not an error.
func (t *Tree) Mkdir(x protocol.Mkdir) (protocol.FileInfo, error) {
	var none protocol.FileInfo
	p, err := t.locateWritable("make directory", x.Path)
	if err != nil {
		return none, err
	}
	root, err := t.open(p, filepath.Dir(p.name))
	if err != nil {
		return none, err
	}
	defer root.Close()
	mode := fs.FileMode(x.Mode).Perm()
	if mode == 0 {
		mode = 0o755
	}
	if x.Parents {
		err = root.MkdirAll(p.name, mode)
	} else {
		err = root.Mkdir(p.name, mode)
	}
	if err != nil {
		return none, t.explain("make directory", x.Path, err)
	}
	fi, err := stat(root, p.name, p.abs())
	return fi, t.explain("make directory", x.Path, err)
}

// Remove removes a file, symbolic link or directory, but never a root of the tree.
func (t *Tree) Remove(x protocol.Remove) error {
	p, err := t.locateWritable("remove", x.Path)
	if err != nil {
		return err
	}
	if p.name == "." {
		return failf(protocol.CodeNotAllowed, "remove %.200q: it is one of the box's own directories; remove what is in it", x.Path)
	}
	root, err := t.open(p, filepath.Dir(p.name))
	if err != nil {
		return err
	}
	defer root.Close()
	if x.Recursive {
		if _, err := root.Lstat(p.name); err != nil {
			return t.explain("remove", x.Path, err)
		}
		return t.explain("remove", x.Path, root.RemoveAll(p.name))
	}
	err = root.Remove(p.name)
	if errors.Is(err, unix.ENOTEMPTY) {
		return failf(protocol.CodeInvalid, "remove %.200q: the directory is not empty and recursive is not set", x.Path)
	}
	return t.explain("remove", x.Path, err)
}
