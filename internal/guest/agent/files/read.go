package files

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	maxDepth   = 16
	maxEntries = 1000
	// maxListing bounds the text of a listing, which must fit a frame.
	maxListing = 200 << 10
	// maxScan bounds the entries read of one directory.
	maxScan = 100_000
)

// Stat describes a file, without following a symbolic link at the end of the path.
func (t *Tree) Stat(x protocol.Path) (protocol.FileInfo, error) {
	p, err := t.locate(x.Path)
	if err != nil {
		return protocol.FileInfo{}, err
	}
	root, err := t.open(p, filepath.Dir(p.name))
	if err != nil {
		return protocol.FileInfo{}, err
	}
	defer root.Close()
	fi, err := stat(root, p.name, p.abs())
	return fi, t.explain("stat", x.Path, err)
}

// openRegular opens a regular file for reading without blocking. It rejects pipes and
// devices, also one that replaces the file meanwhile.
func openRegular(root *os.Root, name string, flag int) (*os.File, fs.FileInfo, error) {
	if fi, err := root.Stat(name); err != nil {
		return nil, nil, err
	} else if err := regular(fi); err != nil {
		return nil, nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flag, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err == nil {
		err = regular(fi)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

func regular(fi fs.FileInfo) error {
	switch {
	case fi.Mode().IsRegular():
		return nil
	case fi.IsDir():
		return failf(protocol.CodeInvalid, "%.200q is a directory", fi.Name())
	default:
		return failf(protocol.CodeInvalid, "%.200q is not a regular file (%s)", fi.Name(), fi.Mode().Type())
	}
}

// Read writes the content of a regular file to w, up to its size at the start. An error
// of w is returned unchanged.
func (t *Tree) Read(x protocol.Read, w io.Writer) (protocol.FileInfo, error) {
	var none protocol.FileInfo
	if x.Offset < 0 || x.Limit < 0 {
		return none, failf(protocol.CodeInvalid, "offset %d and limit %d must not be negative", x.Offset, x.Limit)
	}
	p, err := t.locate(x.Path)
	if err != nil {
		return none, err
	}
	root, err := t.open(p, p.name)
	if err != nil {
		return none, err
	}
	defer root.Close()
	f, fi, err := openRegular(root, p.name, 0)
	if err != nil {
		return none, t.explain("read", x.Path, err)
	}
	defer f.Close()
	n := max(0, fi.Size()-x.Offset)
	if x.Limit > 0 {
		n = min(n, x.Limit)
	}
	if err := copyRange(w, f, x.Offset, n); err != nil {
		return none, t.explain("read", x.Path, err)
	}
	return info(p.abs(), fi, ""), nil
}

// copyRange copies n bytes, or up to the end of a file that has shrunk.
func copyRange(w io.Writer, f *os.File, off, n int64) error {
	buf := make([]byte, min(n, protocol.MaxPayload))
	for n > 0 {
		m, err := f.ReadAt(buf[:min(n, int64(len(buf)))], off)
		if m > 0 {
			if _, err := w.Write(buf[:m]); err != nil {
				return err
			}
			off += int64(m)
			n -= int64(m)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// List lists a directory, without following symbolic links below it.
func (t *Tree) List(x protocol.List) (protocol.ListResult, error) {
	res := protocol.ListResult{Entries: []protocol.FileInfo{}}
	if x.Path == "" {
		x.Path = t.home
	}
	p, err := t.locate(x.Path)
	if err != nil {
		return res, err
	}
	root, err := t.open(p, p.name)
	if err != nil {
		return res, err
	}
	defer root.Close()
	dir, err := root.OpenRoot(p.name)
	if err != nil {
		return res, t.explain("list", x.Path, err)
	}
	defer dir.Close()
	l := lister{
		base: p.abs(), room: maxListing,
		depth: min(max(x.Depth, 1), maxDepth), max: maxEntries,
	}
	if x.Max > 0 {
		l.max = min(x.Max, maxEntries)
	}
	if err := l.walk(dir, ".", 1); err != nil {
		return res, t.explain("list", x.Path, err)
	}
	res.Entries, res.Truncated = append(res.Entries, l.entries...), l.truncated
	return res, nil
}

type lister struct {
	base       string
	depth, max int
	room       int
	entries    []protocol.FileInfo
	truncated  bool
}

// walk lists a directory and its subdirectories. Entries that vanish or cannot be read
// are skipped, except the first directory.
func (l *lister) walk(dir *os.Root, name string, depth int) error {
	names, all, err := readNames(dir, name)
	if err != nil {
		return err
	}
	if !all {
		l.truncated = true
	}
	for _, n := range names {
		if l.truncated && len(l.entries) >= l.max {
			return nil
		}
		rel := path.Join(name, n)
		fi, err := stat(dir, rel, filepath.Join(l.base, rel))
		if err != nil {
			continue
		}
		b, err := json.Marshal(fi)
		if err != nil {
			continue
		}
		size := len(b) + 1
		if len(l.entries) >= l.max || size > l.room {
			l.truncated = true
			l.max = len(l.entries)
			return nil
		}
		l.room -= size
		l.entries = append(l.entries, fi)
		if fi.Type == "directory" && depth < l.depth {
			l.walk(dir, rel, depth+1) // on error, its entry is already listed
		}
	}
	return nil
}

// readNames returns the sorted names in a directory, and whether they are complete.
func readNames(root *os.Root, name string) (names []string, all bool, err error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	names, err = f.Readdirnames(maxScan)
	if err == io.EOF {
		err = nil
	}
	slices.SortFunc(names, strings.Compare)
	return names, len(names) < maxScan, err
}
