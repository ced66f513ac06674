package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// maxDataFiles bounds the files of one snapshot. Engines write a handful.
const maxDataFiles = 10_000

func dataName(gen uint64) string { return dataPrefix + strconv.FormatUint(gen, 10) }

// errForeign marks, besides ErrDamaged, files of another version or user: unusable, but
// not ours to remove.
var errForeign = fmt.Errorf("not of this program: %w", ErrDamaged)

// full converts an error about a full disk to ErrFull.
func full(err error) error {
	if hostdisk.IsFull(err) && !errors.Is(err, ErrFull) {
		return fmt.Errorf("%w: %w", err, ErrFull)
	}
	return err
}

// checkDir returns an error unless name is a directory made by this package. os.Root
// keeps symbolic links from leaving the store; this also rejects links within it.
func checkDir(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	return checkDirInfo(info)
}

func checkDirInfo(info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%q is not a directory: %w", info.Name(), errForeign)
	}
	return checkMade(info)
}

// checkMade returns an error unless the file has the owner and mode of this package's.
func checkMade(info fs.FileInfo) error {
	// A container platform may add permissions for the group of a volume.
	if info.Mode().Perm()&0o077 != 0 && !owned.OnlyUser() {
		return fmt.Errorf("%q has mode %v: %w", info.Name(), info.Mode(), errForeign)
	}
	if err := checkOwner(info); err != nil {
		return fmt.Errorf("%w: %w", err, errForeign)
	}
	return nil
}

// checkFile returns the file information of f, or an error unless f is the regular file
// called name (and not, say, the target of a link).
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
		return nil, fmt.Errorf("%q is not a regular file: %w", name, errForeign)
	}
	return info, checkMade(info)
}

// readAttempts is how often a file is read before it is considered damaged: its
// record's lease owner may be writing it.
const readAttempts = 50

// readFile reads a file of an entry. It returns ErrDamaged only if that is certain:
// what cannot be read now may be readable later.
func readFile(dir *os.Root, name string) (e entry, err error) {
	for range readAttempts {
		e, err = readFileOnce(dir, name)
		if err == nil || !errors.Is(err, ErrDamaged) {
			break
		}
	}
	return e, err
}

func readFileOnce(dir *os.Root, name string) (entry, error) {
	// Only regular files are opened: opening others may block or have effects.
	info, err := dir.Lstat(name)
	if err != nil {
		return entry{}, err
	}
	if !info.Mode().IsRegular() {
		return entry{}, fmt.Errorf("%q is not a regular file: %w", name, errForeign)
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
		return e, fmt.Errorf("decode %q: %w", name, err)
	}
	return e, nil
}

// readEntry reads the entry of a record; of a damaged one, at most the Meta, for reports. Its error
// is fs.ErrNotExist if the record has none yet. If the record changes meanwhile, any error is
// possible.
func readEntry(dir *os.Root) (entry, error) {
	// meta.json first: if new data are committed in between, it describes the earlier
	// data, and not vice versa.
	e, err := readFile(dir, metaName)
	saved, savedErr := readFile(dir, savedName)
	torn := errors.Is(err, ErrDamaged) && !errors.Is(err, errForeign)
	switch {
	case errors.Is(savedErr, fs.ErrNotExist):
		if err == nil && e.Gen > 0 {
			err = fmt.Errorf("%q is missing: %w", savedName, ErrDamaged)
		}
		return e, err
	case savedErr != nil && err != nil:
		return entry{Meta: saved.Meta}, savedErr
	case savedErr != nil:
		return entry{Meta: e.Meta}, savedErr // for a report
	case err == nil && e.Gen == saved.Gen:
		// After a power failure meta.json may be an older one.
		e.Written, e.Bytes, e.Stale = saved.Written, saved.Bytes, saved.Stale
		return e, nil
	case err == nil, torn, errors.Is(err, fs.ErrNotExist):
		return saved, nil
	}
	return entry{Meta: saved.Meta}, err
}

// putMeta replaces the entry in meta.json. After a crash the file has the old or the
// new one, after a power failure maybe an older one, or none.
//
// This is frequent. The replaced file stays and is overwritten next time: creating and
// removing a file each time would take longest.
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

// writeEntry writes an entry to a new file.
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

// writeOver overwrites a file, or creates it.
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

// writeNew creates a file, after removing one that a crash left.
func writeNew(dir *os.Root, name string, b []byte, sync bool) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL // does not follow links
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

// finish replaces the content of f, which had size bytes, with b and closes f.
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

// syncDir syncs a directory's entries to the disk.
func syncDir(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// readNames returns the names in a directory, unsorted.
func readNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// linkFiles gives the empty directory to the files of from, which stay, by hard links, and syncs
// the names below it.
func linkFiles(dir *os.Root, from, to string) error {
	sub, err := dir.OpenRoot(from)
	if err != nil {
		return err
	}
	defer sub.Close()
	var made []string
	err = fs.WalkDir(sub.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Type().IsRegular():
			return dir.Link(path.Join(from, name), path.Join(to, name))
		case !d.IsDir():
			return fmt.Errorf("%q is neither a file nor a directory: %w", name, errForeign)
		case name == ".":
			return nil
		}
		made = append(made, path.Join(to, name))
		return dir.Mkdir(path.Join(to, name), 0o700)
	})
	for _, name := range made {
		if err == nil {
			err = syncDir(dir, name)
		}
	}
	return err
}

// strays returns the data directories of a record other than gen's: being written, or
// left by an interrupted write.
func strays(dir *os.Root, gen uint64) ([]string, error) {
	names, err := readNames(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, dataPrefix) || gen > 0 && name == dataName(gen)
	}), err
}

// sizeOf returns the total size of the files in a directory.
func sizeOf(dir *os.Root, name string) (size int64, err error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return 0, err
	}
	defer sub.Close()
	files := 0
	err = fs.WalkDir(sub.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process is writing it
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
