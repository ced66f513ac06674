package files

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// maxExamples bounds the omitted files that a backup names.
const maxExamples = 5

// Backup writes a tar archive of the home directory to w: regular files, directories
// and symbolic links. Unlike Archive it does not fail because of single files: those
// that cannot be read or do not fit are omitted and counted.
//
// It walks the directory twice, first to determine whether anything has changed since
// the backup x.Unless: if not, no file is read. The error is the cause of ctx if that ends.
func (t *Tree) Backup(ctx context.Context, x protocol.Backup, w io.Writer) (protocol.BackupResult, error) {
	res, err := t.backup(ctx, x, w)
	return res, t.explain("back up", t.home, err)
}

func (t *Tree) backup(ctx context.Context, x protocol.Backup, w io.Writer) (res protocol.BackupResult, err error) {
	root, err := os.OpenRoot(t.home)
	if err != nil {
		return res, err
	}
	defer root.Close()
	m := marker{h: sha256.New()}
	first := walk{exclude: x.Exclude, visit: m.visit}
	if err := first.dir(ctx, root, t.home, 0); err != nil {
		return res, err
	}
	res.Mark = hex.EncodeToString(m.h.Sum(nil)[:16])
	if x.Unless == res.Mark {
		res.Unchanged = true
		return res, nil
	}
	b := backupWriter{home: t.home, w: tar.NewWriter(w), left: x.MaxBytes, res: &res}
	second := walk{exclude: x.Exclude, visit: b.visit}
	if err := second.dir(ctx, root, t.home, 0); err != nil {
		return res, err
	}
	for range first.cut {
		b.omit("…")
	}
	return res, b.w.Close()
}

// walk visits the entries below a directory, sorted by name.
type walk struct {
	exclude []string
	visit   func(dir *os.Root, name, abs string, fi fs.FileInfo) error
	entries int
	cut     int // directories not walked: too deep, too large or unreadable
}

// dir visits the entries of a directory with the absolute path abs. Each directory is
// opened once: with paths from the top, every lookup would pass through all directories
// above.
func (w *walk) dir(ctx context.Context, dir *os.Root, abs string, depth int) error {
	names, all, err := readNames(dir, ".")
	if err != nil || depth > maxArchiveDepth {
		w.cut++
		return nil
	}
	if !all {
		w.cut++
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at := path.Join(abs, name)
		if slices.Contains(w.exclude, at) {
			continue
		}
		fi, err := dir.Lstat(name)
		if err != nil {
			continue // removed in between
		}
		if w.entries++; w.entries > maxArchived {
			w.cut++
			return nil
		}
		if err := w.visit(dir, name, at, fi); err != nil {
			return err
		}
		if !fi.IsDir() {
			continue
		}
		sub, err := dir.OpenRoot(name)
		if err != nil {
			w.cut++
			continue
		}
		err = w.dir(ctx, sub, at, depth+1)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// marker hashes the metadata that change with the files.
type marker struct{ h hash.Hash }

func (m *marker) visit(_ *os.Root, _, abs string, fi fs.FileInfo) error {
	var changed syscall.Timespec
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		changed = st.Ctim
	}
	if fi.IsDir() { // its entries are visited
		fmt.Fprintf(m.h, "%q %v\n", abs, fi.Mode())
		return nil
	}
	fmt.Fprintf(m.h, "%q %v %d %d %d.%d\n", abs, fi.Mode(), fi.Size(), fi.ModTime().UnixNano(), changed.Sec, changed.Nsec)
	return nil
}

// backupWriter archives the entries that a walk visits.
type backupWriter struct {
	home string
	w    *tar.Writer
	left int64
	res  *protocol.BackupResult
}

func (b *backupWriter) omit(name string) {
	b.res.Omitted++
	if len(b.res.Examples) < maxExamples && name != "" {
		b.res.Examples = append(b.res.Examples, name)
	}
}

func (b *backupWriter) visit(dir *os.Root, name, abs string, fi fs.FileInfo) error {
	h := &tar.Header{
		Name: abs[len(b.home)+1:], Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX,
	}
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := dir.Readlink(name)
		if err != nil {
			return nil // replaced in between
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case fi.Mode().IsRegular():
		return b.file(dir, name, h)
	default: // pipes and sockets are of use only to processes
		return nil
	}
	return b.w.WriteHeader(h)
}

// file writes a regular file with its size when opened; see archiver.file.
func (b *backupWriter) file(dir *os.Root, name string, h *tar.Header) error {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		b.omit(h.Name)
		return nil
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > b.left {
		b.omit(h.Name)
		return nil
	}
	h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	if err := b.w.WriteHeader(h); err != nil {
		return err
	}
	b.left -= fi.Size()
	b.res.Files++
	b.res.Bytes += fi.Size()
	n, _ := io.Copy(b.w, io.LimitReader(f, fi.Size())) // an error of b.w recurs below or with the next header
	zeros := make([]byte, 32<<10)
	for n < fi.Size() { // it shrank, or cannot be read
		k, err := b.w.Write(zeros[:min(int64(len(zeros)), fi.Size()-n)])
		if err != nil {
			return err
		}
		n += int64(k)
	}
	return nil
}
