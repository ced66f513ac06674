// Package untar unpacks archives whose author is not trusted.
package untar

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
)

// maxPath bounds the path of one file, in bytes, as Linux does.
const maxPath = 4096

// Extract creates the directories and regular files of an archive below root, at most
// maxFiles of them, parents included. It replaces existing files, never follows a link
// and creates none: skipped counts links and special files. It leaves what it created
// before an error. The caller bounds the bytes of the archive.
func Extract(root *os.Root, r io.Reader, maxFiles int) (skipped int, err error) {
	tr := tar.NewReader(r)
	e := extraction{root: root, max: maxFiles}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return e.skipped, nil
		}
		if err == nil {
			err = e.entry(h, tr)
		}
		if err != nil {
			return e.skipped, err
		}
	}
}

type extraction struct {
	root                  *os.Root
	skipped, created, max int
}

func (e *extraction) entry(h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	if len(name) > maxPath {
		return fmt.Errorf("the archive has a path of %d bytes, more than %d", len(name), maxPath)
	}
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has the path %q, which is outside of it", h.Name)
	}
	switch {
	case name == ".":
		return nil
	case h.Typeflag == tar.TypeDir:
		return e.directory(name)
	case h.Typeflag == tar.TypeReg:
		return e.file(name, h.FileInfo().Mode().Perm()&0o755|0o600, r)
	}
	e.skipped++
	return e.count(1)
}

// count adds n to what the archive has made so far.
func (e *extraction) count(n int) error {
	if e.created += n; e.created > e.max {
		return fmt.Errorf("more than %d files", e.max)
	}
	return nil
}

func (e *extraction) directory(name string) error {
	n := 1
	if _, err := e.root.Lstat(name); err != nil {
		n += strings.Count(name, "/") // its parents, at most
	}
	if err := e.count(n); err != nil {
		return err
	}
	return e.root.MkdirAll(name, 0o755)
}

func (e *extraction) file(name string, mode fs.FileMode, r io.Reader) error {
	if err := e.directory(path.Dir(name)); err != nil {
		return err
	}
	// Never write through an existing link, or into an open file.
	if err := e.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := e.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
