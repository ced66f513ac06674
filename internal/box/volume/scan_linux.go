package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxLinked bounds the files with several names that a scan remembers, so that it counts
// them once; more are counted once for each name.
const maxLinked = 100_000

// checkEvery is how many steps of a scan lie between two looks at the clock: a step takes
// a microsecond from memory, and a slow disk some milliseconds.
const checkEvery = 64

// scan adds up the disk space of a tree that others change meanwhile, a slice of time after
// another. It follows no links and enters no other file system. It visits directories in
// random order and leaves no trace in their access times: code that moves files out of its
// way cannot know where it is, and evades one scan but not all.
//
// Between two slices it holds a descriptor of the directory where it is and of each above
// it, and the names in them: see weight. A large directory on a slow disk thus takes many
// slices, and no more of the server than a small one.
type scan struct {
	limits limits
	most   int64 // the scan ends when there is more
	device uint64

	bytes  int64
	names  int
	held   int             // bytes of the names in memory
	linked map[uint64]bool // inodes
	stack  []*level        // the directory where it is, and those above it
	took   time.Duration   // of its slices
}

// level is a directory that a scan is in.
type level struct {
	dir    *os.File
	listed bool     // names are complete
	names  []string // that the scan has not visited
	held   int      // bytes of all its names
}

// errOver ends a scan that has seen enough.
var errOver = errors.New("over the quota")

// newScan begins to measure the disk space of what is below dir. The caller runs the scan
// to its end, or closes it. The error is errUnfinished.
func newScan(dir string, most int64, l limits) (*scan, error) {
	s := &scan{limits: l, most: most, linked: make(map[uint64]bool)}
	root, err := s.open(unix.AT_FDCWD, dir)
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", errUnfinished, dir, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		root.Close()
		return nil, fmt.Errorf("%w: %w", errUnfinished, err)
	}
	s.device = uint64(st.Dev)
	s.stack = []*level{{dir: root}}
	return s, nil
}

// run goes on for a slice of time. Once done, s.bytes is the disk space, or a part of it that
// is more than most, and the scan is closed. The error is errUnfinished, with the limit that
// was reached; then it is done, too.
func (s *scan) run(ctx context.Context, slice time.Duration) (done bool, err error) {
	begun := time.Now()
	defer func() {
		s.took += time.Since(begun)
		if done {
			s.close()
		}
	}()
	for n := 0; len(s.stack) > 0; n++ {
		err := s.step()
		if errors.Is(err, errOver) {
			return true, nil
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return true, fmt.Errorf("%w: %w", errUnfinished, err)
		}
		if n%checkEvery == checkEvery-1 && time.Since(begun) >= slice && len(s.stack) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// close ends the scan.
func (s *scan) close() {
	for _, l := range s.stack {
		l.dir.Close()
	}
	s.stack, s.linked = nil, nil
}

// weight is roughly the memory that the scan holds. A descriptor counts for much more than
// it takes, since a process has few of them.
func (s *scan) weight() int {
	n := s.held + len(s.linked)*linkedWeight
	for _, l := range s.stack {
		n += descriptorWeight + len(l.names)*nameWeight
	}
	return n
}

const (
	descriptorWeight = 256 << 10
	nameWeight       = 16
	linkedWeight     = 16
)

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

// step lists a part of a directory, leaves one that is done, or adds one entry.
func (s *scan) step() error {
	top := s.stack[len(s.stack)-1]
	switch {
	case !top.listed:
		return s.list(top)
	case len(top.names) == 0:
		s.stack = s.stack[:len(s.stack)-1]
		s.held -= top.held
		return top.dir.Close()
	}
	name := top.names[len(top.names)-1]
	top.names = top.names[:len(top.names)-1]
	return s.entry(int(top.dir.Fd()), name)
}

// list reads the next names in a directory.
func (s *scan) list(l *level) error {
	more, err := l.dir.Readdirnames(4096)
	l.names = append(l.names, more...)
	if s.names += len(more); s.names > s.limits.names {
		return fmt.Errorf("there are more than %d files", s.limits.names)
	}
	for _, name := range more {
		l.held += len(name)
		s.held += len(name)
	}
	if s.held > s.limits.held {
		return fmt.Errorf("the names of files in a directory and those above it take more than %d bytes", s.limits.held)
	}
	if errors.Is(err, io.EOF) || gone(err) {
		l.listed, err = true, nil
		rand.Shuffle(len(l.names), func(i, j int) { l.names[i], l.names[j] = l.names[j], l.names[i] })
	}
	return err
}

// entry adds a file, or a directory, which it enters.
func (s *scan) entry(at int, name string) error {
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
	if len(s.stack) == s.limits.depth {
		d.Close()
		return fmt.Errorf("directories are more than %d levels deep", s.limits.depth)
	}
	s.stack = append(s.stack, &level{dir: d})
	return nil
}

// gone reports whether a file was removed meanwhile.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) }
