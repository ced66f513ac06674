package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxDataFiles bounds what is counted of one snapshot. Engines write a handful.
const maxDataFiles = 10_000

func dataName(gen uint64) string { return dataPrefix + strconv.FormatUint(gen, 10) }

// errForeign marks, besides ErrDamaged, what a program of another version or
// somebody else may have made: it cannot be used, and is not ours to remove.
var errForeign = fmt.Errorf("not of this program: %w", ErrDamaged)

// full returns err as an ErrFull if that is what it is about.
func full(err error) error {
	if isFull(err) && !errors.Is(err, ErrFull) {
		return fmt.Errorf("%w: %w", err, ErrFull)
	}
	return err
}

// checkDir returns why the directory that is called name is not as this package
// makes them. os.Root keeps links from leading out of the store; none leads to
// elsewhere inside either.
func checkDir(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	return checkDirInfo(info)
}

func checkDirInfo(info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%q is no directory: %w", info.Name(), errForeign)
	}
	return checkMade(info)
}

// checkMade returns why what info is of was not made by this package.
func checkMade(info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%q has mode %v: %w", info.Name(), info.Mode(), errForeign)
	}
	if err := checkOwner(info); err != nil {
		return fmt.Errorf("%w: %w", err, errForeign)
	}
	return nil
}

// checkFile returns what f is, or why it is not the regular file that is called
// name but, say, what a link of that name leads to.
func checkFile(root *os.Root, name string, f *os.File) (fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	there, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !there.Mode().IsRegular() || !os.SameFile(info, there) {
		return nil, fmt.Errorf("%q is no regular file: %w", name, errForeign)
	}
	return info, checkMade(info)
}

// readFile reads a file of entries. Its error is ErrDamaged only if that is certain:
// what cannot be read now may be fine later.
func readFile(dir *os.Root, name string) (entry, error) {
	// What is no file is not opened: it could wait, or act.
	info, err := dir.Lstat(name)
	if err != nil {
		return entry{}, err
	}
	if !info.Mode().IsRegular() {
		return entry{}, fmt.Errorf("%q is no regular file: %w", name, errForeign)
	}
	f, err := dir.Open(name)
	if err != nil {
		return entry{}, err
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		return entry{}, cmp.Or(err, fs.ErrNotExist) // it has been replaced since
	}
	if err := checkMade(info); err != nil {
		return entry{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return entry{}, err
	}
	e, err := decode(b)
	if err != nil {
		return entry{}, fmt.Errorf("decode %q: %w: %w", name, err, ErrDamaged)
	}
	return e, nil
}

// readEntry reads what a record is. Its error is fs.ErrNotExist if it is nothing
// yet. If the record changes meanwhile, the error may be any.
func readEntry(dir *os.Root) (entry, error) {
	saved, err := readFile(dir, savedName)
	if errors.Is(err, fs.ErrNotExist) {
		e, err := readFile(dir, metaName)
		if err == nil && e.Gen > 0 {
			err = fmt.Errorf("%q is missing: %w", savedName, ErrDamaged)
		}
		return e, err
	}
	if err != nil {
		return entry{}, err
	}
	e, err := readFile(dir, metaName)
	switch {
	case err == nil && e.Gen == saved.Gen:
		e.Saved, e.Bytes = saved.Saved, saved.Bytes
		return e, nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return saved, nil // there is none, or it is of the data before
	case errors.Is(err, ErrDamaged) && !errors.Is(err, errForeign):
		return saved, nil // a power cut has torn it
	}
	return entry{}, err
}

// putEntry writes an entry in the place of what is called name. After a crash there
// is the one or the other; with sync the new one is on the disk, and its name is
// once the directory is.
func putEntry(dir *os.Root, name string, e *entry, sync bool) error {
	if err := writeEntry(dir, name+newSuffix, e, sync); err != nil {
		return err
	}
	if err := dir.Rename(name+newSuffix, name); err != nil {
		return full(fmt.Errorf("replace %q: %w", name, err))
	}
	return nil
}

func writeEntry(dir *os.Root, name string, e *entry, sync bool) error {
	b, err := e.encode()
	if err == nil {
		err = writeNew(dir, name, b, sync)
	}
	if err != nil {
		return full(fmt.Errorf("write %q: %w", name, err))
	}
	return nil
}

// writeNew makes a file, in the place of what a crash may have left.
func writeNew(dir *os.Root, name string, b []byte, sync bool) (err error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL // which follows no link
	f, err := dir.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err := dir.RemoveAll(name); err != nil {
			return err
		}
		f, err = dir.OpenFile(name, flags, 0o600)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, dir.Remove(name))
		}
	}()
	if _, err := f.Write(b); err != nil || !sync {
		return err
	}
	return f.Sync()
}

// syncDir gives the names in a directory to the disk.
func syncDir(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// readNames returns what is in a directory, in no order.
func readNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// strays returns the data in a record that are not those of gen: what is being
// written, or what a write that came to no end has left.
func strays(dir *os.Root, gen uint64) ([]string, error) {
	names, err := readNames(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, dataPrefix) || gen > 0 && name == dataName(gen)
	}), err
}

// sizeOf returns how many bytes the files in a directory have.
func sizeOf(dir *os.Root, name string) (size int64, err error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return 0, err
	}
	defer sub.Close()
	files := 0
	err = fs.WalkDir(sub.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is being written by somebody else
		}
		if err != nil {
			return err
		}
		if files++; files > maxDataFiles {
			return fmt.Errorf("%q has more than %d files", name, maxDataFiles)
		}
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return size, err
}
