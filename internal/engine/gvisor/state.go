//go:build linux && (amd64 || arm64)

package gvisor

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

// stateDir is the directory of one running engine below the configured one. It
// holds nothing worth keeping: control sockets, mount points of root file
// systems and, without a name, the files that back what guests write.
type stateDir struct {
	name string // of this instance: process id, hyphen, random
	root string // its absolute path
	dir  *os.File
	lock *os.File
}

// openStateDir makes a directory for this instance and removes what instances
// that are gone have left.
func openStateDir(parent string) (*stateDir, error) {
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("find state directory %q: %w", parent, err)
	}
	s, err := newStateDir(filepath.Join(parent, "gvisor"))
	if err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	return s, nil
}

func newStateDir(parent string) (_ *stateDir, err error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, err
	}
	if err := owned.Dir(parent); err != nil {
		return nil, err
	}
	// Mount sources must not contain symbolic links.
	if parent, err = filepath.EvalSymlinks(parent); err != nil {
		return nil, err
	}
	removeStale(parent)

	var random [4]byte
	rand.Read(random[:])
	s := &stateDir{name: fmt.Sprintf("%d-%s", os.Getpid(), hex.EncodeToString(random[:]))}
	s.root = filepath.Join(parent, s.name)
	if err := os.Mkdir(s.root, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.lock.Close()
			os.RemoveAll(s.root)
		}
	}()
	if s.lock, err = lockDir(s.root); err != nil {
		return nil, err
	}
	for _, sub := range []string{"ctl", "roots"} {
		if err := os.Mkdir(s.path(sub), 0o700); err != nil {
			return nil, err
		}
	}
	s.dir, err = os.Open(s.path("ctl"))
	return s, err
}

// lockDir takes the lock that marks dir as in use by a living process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// removeStale removes the directories of instances whose process is gone. An
// instance that is just being made has no lock file yet and is left alone.
func removeStale(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // nothing to clean that could be seen
	}
	for _, entry := range entries {
		dir := filepath.Join(parent, entry.Name())
		if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
			continue
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue // in use
		}
		os.RemoveAll(dir)
		lock.Close()
	}
}

// path returns the absolute path of name in the directory.
func (s *stateDir) path(name string) string { return filepath.Join(s.root, name) }

// socket returns a path of the control socket of guest id that is short enough
// for a socket address, however long the path of the directory is.
func (s *stateDir) socket(id string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", s.dir.Fd(), id)
}

// scratch returns a new file without a name: what it holds is freed with its
// last descriptor.
func (s *stateDir) scratch() (*os.File, error) {
	fd, err := unix.Open(s.root, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "scratch"), nil
	}
	// Not every file system has O_TMPFILE.
	f, err := os.CreateTemp(s.root, "scratch-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (s *stateDir) close() error {
	return errors.Join(s.dir.Close(), os.RemoveAll(s.root), s.lock.Close())
}
