//go:build linux

package microsandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// holder is an engine as the holder of guests: they are held by its name, and its file is
// locked for as long as the engine's process lives.
type holder struct {
	name string
	path string
	lock *os.File
}

// newHolder returns a holder whose name no other engine has.
func newHolder(dir string) (*holder, error) {
	h := &holder{name: random()}
	h.path = holderFile(dir, h.name)
	// It has its name once it is locked, or a sweep could take its holder for dead.
	unlocked := filepath.Join(dir, "new-"+h.name)
	var err error
	if h.lock, err = lockFile(unlocked, os.O_CREATE|os.O_EXCL); err != nil {
		return nil, fmt.Errorf("mark this engine's guests: %w", err)
	}
	if err := os.Rename(unlocked, h.path); err != nil {
		h.lock.Close()
		return nil, fmt.Errorf("mark this engine's guests: %w", err)
	}
	return h, nil
}

// holderPrefix begins the names of holders' files. Other versions of the program, which share
// the directory, look for it.
const holderPrefix = "owner-"

func holderFile(dir, name string) string { return filepath.Join(dir, holderPrefix+name) }

// lockFile opens and locks a file, without waiting.
func lockFile(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (h *holder) close() {
	os.Remove(h.path) // what is left is removed by the next sweep
	h.lock.Close()
}

// dead reports whether the process of a holder has ended.
func dead(dir, name string) bool {
	f, err := lockFile(holderFile(dir, name), 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	f.Close()
	return true
}
