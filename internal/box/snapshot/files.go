package snapshot

import (
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

// looks is how often a file is read before it is believed to be bad: who holds the
// record may be writing it, as fast as it can be read.
const looks = 50

// readFile reads a file of entries. Its error is ErrDamaged only if that is certain:
// what cannot be read now may be fine later.
func readFile(dir *os.Root, name string) (e entry, err error) {
	for range looks {
		e, err = readFileOnce(dir, name)
		if err == nil || !errors.Is(err, ErrDamaged) {
			break
		}
	}
	return e, err
}

func readFileOnce(dir *os.Root, name string) (entry, error) {
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
	opened, err := f.Stat()
	if err != nil {
		return entry{}, err
	}
	if !os.SameFile(info, opened) {
		return entry{}, fmt.Errorf("%q was replaced: %w", name, errForeign)
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
		return entry{}, fmt.Errorf("decode %q: %w", name, err)
	}
	return e, nil
}

// readEntry reads what a record is. Its error is fs.ErrNotExist if it is nothing
// yet. If the record changes meanwhile, the error may be any.
func readEntry(dir *os.Root) (entry, error) {
	// The latest first: if new data are committed before the other is read, it is
	// of the data before, and not the other way round.
	e, err := readFile(dir, metaName)
	saved, savedErr := readFile(dir, savedName)
	torn := errors.Is(err, ErrDamaged) && !errors.Is(err, errForeign)
	switch {
	case errors.Is(savedErr, fs.ErrNotExist):
		if err == nil && e.Gen > 0 {
			err = fmt.Errorf("%q is missing: %w", savedName, ErrDamaged)
		}
		return e, err
	case savedErr != nil:
		return entry{}, savedErr
	case err == nil && e.Gen == saved.Gen:
		// After a power cut the latest may be an older one.
		e.Saved, e.Bytes, e.Live = saved.Saved, saved.Bytes, saved.Live
		return e, nil
	case err == nil, torn, errors.Is(err, fs.ErrNotExist):
		return saved, nil
	}
	return entry{}, err
}

// putMeta replaces the latest entry of a record. After a crash there is the one or
// the other, after a power cut maybe an older one, or none.
//
// It is done often. The file that was there before stays as the one to write to next
// time: to make and remove one each time is what would take longest.
func putMeta(dir *os.Root, e *entry) error {
	b, err := e.encode()
	if err == nil {
		err = writeOver(dir, metaName+newSuffix, b)
	}
	if err == nil {
		err = exchange(dir, metaName+newSuffix, metaName)
	}
	if err != nil {
		return full(fmt.Errorf("replace %q: %w", metaName, err))
	}
	return nil
}

// writeEntry makes a file of an entry.
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

// writeOver makes a file or writes over the one that is there.
func writeOver(dir *os.Root, name string, b []byte) error {
	f, err := dir.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		info, err := checkFile(dir, name, f)
		if err == nil {
			return finish(f, b, info.Size(), false)
		}
		f.Close()
	}
	return writeNew(dir, name, b, false)
}

// writeNew makes a file, in the place of what a crash may have left.
func writeNew(dir *os.Root, name string, b []byte, sync bool) error {
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
	return finish(f, b, 0, sync)
}

// finish makes b what is in f, which had size bytes, and closes it.
func finish(f *os.File, b []byte, size int64, sync bool) error {
	_, err := f.Write(b)
	if err == nil && size > int64(len(b)) {
		err = f.Truncate(int64(len(b)))
	}
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
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
