// Package partlog writes logs in parts of bounded size: to x.log and, each time that
// it is full, on in a new x.log, while the old one becomes x.segment-0001.log,
// x.segment-0002.log and so on. Of too many parts the oldest goes.
//
// Where a log is, a stranger's configuration may have said, and what is in the
// directory another stranger may write: a log never leads out of its root, nor over a
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

// A Log is open for writing. Its methods may be called concurrently.
type Log struct {
	root     *os.Root
	name     string // below root, with slashes
	maxBytes int64
	maxParts int

	mu   sync.Mutex
	f    *os.File // guarded by mu
	size int64    // guarded by mu
	err  error    // guarded by mu: why nothing is written any more
}

// Open opens the log at name, a path below the directory root or an absolute one;
// its directories are made if need be, and both for the user alone. A part has at
// most maxBytes, unless a single Write has more; of the parts, the one that is
// written to among them, at most maxParts stay, or all if that is 0. Several logs of
// one name may be open, also in several processes: their writes come one after another
// in the same parts, of which those that are full may be larger by what the others
// still write to them. The caller closes it.
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
		err = errors.Join(l.plain(dir), r.MkdirAll(dir, 0o700))
	}
	if err == nil {
		err = l.begin()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return l, nil
}

// plain refuses symbolic links on the way.
func (l *Log) plain(name string) error {
	var way string
	for part := range strings.SplitSeq(name, "/") {
		way = path.Join(way, part)
		info, err := l.root.Lstat(way)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link", way)
		}
	}
	return nil
}

// begin opens the part that is written to.
func (l *Log) begin() error {
	if err := l.plain(l.name); err != nil {
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

// Write writes to the log. After the first error it writes nothing any more.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.size > 0 && l.size+int64(len(p)) > l.maxBytes {
		l.err = l.nextLocked()
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

// nextLocked makes an old part of the one that is written to, and begins another.
// Other logs of the same name may just do so: a part is moved to a name that is this
// log's own, and what is not there any more has been moved or removed by another.
func (l *Log) nextLocked() error {
	ours, err := l.f.Stat()
	if err := errors.Join(err, l.f.Close()); err != nil {
		return err
	}
	now, err := l.root.Lstat(l.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || !os.SameFile(ours, now) {
		return l.begin()
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
	return l.begin()
}

// remove removes an old part, if it is there.
func (l *Log) remove(n int) error {
	if err := l.root.Remove(l.part(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// part is the name of an old part.
func (l *Log) part(n int) string {
	ext := path.Ext(l.name)
	return fmt.Sprintf("%s.segment-%04d%s", strings.TrimSuffix(l.name, ext), n, ext)
}

// parts are the numbers of the old parts that there are, rising.
func (l *Log) parts() (all []int, err error) {
	dir, err := l.root.Open(path.Dir(l.name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	ext := path.Ext(l.name)
	before := strings.TrimSuffix(path.Base(l.name), ext) + ".segment-"
	for {
		names, err := dir.Readdirnames(namesAtOnce)
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

// namesAtOnce bounds what is held of a directory, which may have many files of others.
const namesAtOnce = 256

// maxPart is more parts than a disk takes; names with more are not ours.
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
