//go:build linux && (amd64 || arm64)

package cli

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// maxScratch bounds the memory that copies of boxes may take, beside the memory of
	// the boxes: enough for a few forks at once. Larger copies are written to disk.
	maxScratch = 1 << 30
	// scratchShare is the part of the host's memory that copies may take, as a divisor.
	scratchShare = 16
)

// scratch holds the directories for short-lived copies of boxes, which other parts of
// the program try in order: in memory, then on disk.
type scratch struct {
	dirs []string
	disk string
	lock *os.File // of disk; marks it as used by a running process
}

// openScratch opens scratch directories below parent. The caller closes them.
func openScratch(parent string, log *slog.Logger) (*scratch, error) {
	memory := filepath.Join(parent, "memory")
	if err := os.MkdirAll(memory, 0o700); err != nil {
		return nil, err
	}
	sweepUnlocked(parent, "disk-*")
	disk, err := os.MkdirTemp(parent, "disk-")
	if err != nil {
		return nil, err
	}
	lock, err := lockScratch(disk)
	if err != nil {
		return nil, err
	}
	s := &scratch{disk: disk, lock: lock}
	if err := mountScratch(memory, scratchSize()); err != nil {
		log.Warn("no tmpfs: forks are written to disk", logkey.Error, err)
	} else {
		s.dirs = append(s.dirs, memory)
	}
	s.dirs = append(s.dirs, disk)
	return s, nil
}

// close removes the directory on disk. The one in memory ends with the process.
func (s *scratch) close() error {
	defer s.lock.Close()
	if err := os.RemoveAll(s.disk); err != nil {
		return fmt.Errorf("remove copies of boxes: %w", err)
	}
	return nil
}

// sweepUnlocked removes the directories of parent that match a constant pattern and that no
// process has locked by lockScratch.
func sweepUnlocked(parent, pattern string) {
	dirs, err := filepath.Glob(filepath.Join(parent, pattern))
	if err != nil {
		return // not possible: the pattern is constant
	}
	for _, dir := range dirs {
		lock, err := lockScratch(dir)
		if err != nil {
			continue // in use, or already removed
		}
		_ = os.RemoveAll(dir) // the next start tries again
		lock.Close()
	}
}

// lockScratch locks a directory until the returned file is closed or the process ends.
func lockScratch(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %q: %w", dir, err)
	}
	return f, nil
}

// scratchSize returns how many bytes of memory copies of boxes may take.
func scratchSize() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return maxScratch // not reached: it cannot fail
	}
	return min(int64(info.Totalram)*int64(info.Unit)/scratchShare, maxScratch)
}

// mountScratch mounts size bytes of memory at dir, in this process's own mount namespace,
// so that nothing of it outlives the process. Only files in it take memory.
func mountScratch(dir string, size int64) error {
	options := fmt.Sprintf("mode=0700,size=%d", size)
	if err := unix.Mount("glovebox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount memory at %q: %w", dir, err)
	}
	return nil
}
