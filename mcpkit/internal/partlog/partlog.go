// Package partlog writes logs in parts of bounded size. When x.log is full, it is
// renamed to x.segment-0001.log, x.segment-0002.log and so on, and a new x.log is
// started. If there are too many parts, the oldest is deleted.
//
// The path of a log may come from an untrusted configuration, and the directory may be
// writable by others. A log therefore never leaves its root and never follows a
// symbolic link.
package partlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Log is an open log. Its methods may be called concurrently.
type Log struct {
	root     *os.Root
	name     string // below root, with slashes
	maxBytes int64
	maxParts int

	mu   sync.Mutex
	f    *os.File // guarded by mu
	size int64    // guarded by mu
	err  error    // guarded by mu: the first error, after which nothing is written
}

// Open opens the log at name, which is an absolute path or relative to root. It creates
// missing directories and the file, readable by the user only. A part has at most
// maxBytes, unless a single Write is larger. At most maxParts parts are kept, including
// the current one; 0 keeps all. Several logs with the same name may be open, also in
// other processes: they write to the same parts, and a full part may grow by what the
// others still write to it. The caller closes the Log.
func Open(root, name string, maxBytes int64, maxParts int) (*Log, error) {
	l, err := open(root, name, maxBytes, maxParts)
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", name, err)
	}
	return l, nil
}

func open(root, name string, maxBytes int64, maxParts int) (*Log, error) {
	if filepath.IsAbs(name) {
		root, name = filepath.Split(name)
	}
	if name = filepath.ToSlash(filepath.Clean(name)); !filepath.IsLocal(name) || name == "." {
		return nil, errors.New("it is not the name of a file below its root")
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	l := &Log{root: r, name: name, maxBytes: maxBytes, maxParts: maxParts}
	if dir := path.Dir(name); dir != "." {
		err = errors.Join(l.refuseLinks(dir), r.MkdirAll(dir, 0o700))
	}
	if err == nil {
		err = l.openPart()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return l, nil
}

// refuseLinks returns an error if a part of the path is a symbolic link.
func (l *Log) refuseLinks(name string) error {
	var prefix string
	for part := range strings.SplitSeq(name, "/") {
		prefix = path.Join(prefix, part)
		info, err := l.root.Lstat(prefix)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link", prefix)
		}
	}
	return nil
}

// openPart opens the current part.
func (l *Log) openPart() error {
	if err := l.refuseLinks(l.name); err != nil {
		return err
	}
	if info, err := l.root.Lstat(l.name); err == nil && !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	f, err := l.root.OpenFile(l.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write appends to the log. After the first error it writes nothing.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.size > 0 && l.size+int64(len(p)) > l.maxBytes {
		l.err = l.rotateLocked()
	}
	if l.err != nil {
		return 0, fmt.Errorf("write log %s: %w", l.name, l.err)
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	if err != nil {
		l.err = err
	}
	return n, err
}

// rotateLocked renames the current part and opens a new one. Other logs with the same
// name may do this at the same time: each renames to a name that it has reserved, and a
// part that is missing was renamed or deleted by another.
func (l *Log) rotateLocked() error {
	ours, err := l.f.Stat()
	if err := errors.Join(err, l.f.Close()); err != nil {
		return err
	}
	now, err := l.root.Lstat(l.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || !os.SameFile(ours, now) {
		return l.openPart()
	}
	old, err := l.parts()
	if err != nil {
		return err
	}
	next := 1
	if len(old) > 0 {
		next = old[len(old)-1] + 1
	}
	for ; ; next++ {
		f, err := l.root.OpenFile(l.part(next), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			err = f.Close()
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	err = l.root.Rename(l.name, l.part(next))
	if errors.Is(err, fs.ErrNotExist) {
		err = l.remove(next)
	} else {
		old = append(old, next)
	}
	for ; err == nil && l.maxParts > 0 && len(old) >= l.maxParts; old = old[1:] {
		err = l.remove(old[0])
	}
	if err != nil {
		return err
	}
	return l.openPart()
}

// remove deletes an old part, if it exists.
func (l *Log) remove(n int) error {
	if err := l.root.Remove(l.part(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// part returns the name of an old part.
func (l *Log) part(n int) string {
	ext := path.Ext(l.name)
	return fmt.Sprintf("%s.segment-%04d%s", strings.TrimSuffix(l.name, ext), n, ext)
}

// parts returns the numbers of the old parts in ascending order.
func (l *Log) parts() (all []int, err error) {
	dir, err := l.root.Open(path.Dir(l.name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	ext := path.Ext(l.name)
	before := strings.TrimSuffix(path.Base(l.name), ext) + ".segment-"
	for {
		names, err := dir.Readdirnames(readdirBatch)
		for _, name := range names {
			digits := strings.TrimSuffix(strings.TrimPrefix(name, before), ext)
			if n, err := strconv.Atoi(digits); err == nil && n > 0 && n < maxPart && path.Base(l.part(n)) == name {
				all = append(all, n)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(all)
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// readdirBatch bounds the names read at once from a directory, which may contain many
// other files.
const readdirBatch = 256

// maxPart bounds the numbers of parts. Larger ones in file names are ignored.
const maxPart = 1 << 30

// Close closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.err == nil {
		err = l.f.Close()
		l.err = fs.ErrClosed
	}
	return errors.Join(err, l.root.Close())
}
