package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"
)

// maxLinked bounds the files with several names that a scan remembers, so that it counts
// them once; more are counted once for each name.
const maxLinked = 100_000

// scan adds up the disk space of a tree that others change meanwhile.
type scan struct {
	ctx    context.Context
	limits limits
	most   int64 // the scan ends when there is more
	device uint64

	bytes  int64
	names  int
	held   int             // bytes of the names in memory
	linked map[uint64]bool // inodes
}

// errOver ends a scan that has seen enough.
var errOver = errors.New("over the quota")

// measure returns the disk space of what is below dir, or a part of it that is more than
// most. It follows no links and enters no other file system. It visits directories in
// random order and leaves no trace in their access times: code that moves files out of its
// way cannot know where it is, and evades one scan but not all. The error is errUnfinished,
// with the limit that was reached.
func measure(ctx context.Context, dir string, most int64, l limits) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.time, fmt.Errorf("it takes longer than %v", l.time))
	defer cancel()
	s := &scan{ctx: ctx, limits: l, most: most, linked: make(map[uint64]bool)}
	root, err := s.open(unix.AT_FDCWD, dir)
	if err != nil {
		return 0, fmt.Errorf("%w: open %s: %w", errUnfinished, dir, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		root.Close()
		return 0, fmt.Errorf("%w: %w", errUnfinished, err)
	}
	s.device = uint64(st.Dev)
	if err := s.directory(root, 1); err != nil && !errors.Is(err, errOver) {
		return s.bytes, fmt.Errorf("%w: %w", errUnfinished, err)
	}
	return s.bytes, nil
}

// open opens a directory below another one.
func (s *scan) open(at int, name string) (*os.File, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(at, name, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) { // it belongs to another user
		fd, err = unix.Openat(at, name, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// directory adds what is in a directory, which it closes.
func (s *scan) directory(d *os.File, depth int) error {
	defer d.Close()
	if depth > s.limits.depth {
		return fmt.Errorf("directories are more than %d levels deep", s.limits.depth)
	}
	before := s.held
	names, err := s.list(d)
	if err != nil {
		return err
	}
	defer func() { s.held = before }()
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	fd := int(d.Fd())
	for i, name := range names {
		if i%256 == 0 && s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if err := s.entry(fd, name, depth); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a directory.
func (s *scan) list(d *os.File) ([]string, error) {
	var names []string
	for {
		more, err := d.Readdirnames(4096)
		names = append(names, more...)
		if s.names += len(more); s.names > s.limits.names {
			return nil, fmt.Errorf("there are more than %d files", s.limits.names)
		}
		for _, name := range more {
			s.held += len(name)
		}
		if s.held > s.limits.held {
			return nil, fmt.Errorf("the names of files in a directory and those above it take more than %d bytes", s.limits.held)
		}
		switch {
		case errors.Is(err, io.EOF), gone(err):
			return names, nil
		case err != nil:
			return nil, err
		case s.ctx.Err() != nil:
			return nil, context.Cause(s.ctx)
		}
	}
}

// entry adds a file, or a directory with everything in it.
func (s *scan) entry(at int, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); gone(err) {
		return nil
	} else if err != nil {
		return err
	}
	if uint64(st.Dev) != s.device {
		return nil
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDir && st.Nlink > 1 {
		if s.linked[st.Ino] {
			return nil
		}
		if len(s.linked) < maxLinked {
			s.linked[st.Ino] = true
		}
	}
	if s.bytes += int64(st.Blocks) * 512; s.bytes > s.most {
		return errOver
	}
	if !isDir {
		return nil
	}
	d, err := s.open(at, name)
	if gone(err) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // something else took its place
		return nil
	}
	if err != nil {
		return err
	}
	return s.directory(d, depth+1)
}

// gone reports whether a file was removed meanwhile.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) }
