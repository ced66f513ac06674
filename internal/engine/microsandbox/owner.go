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

// owner marks the guests of an engine: they are held by its name, and its file is locked
// for as long as the engine's process lives.
type owner struct {
	name string
	path string
	lock *os.File
}

// newOwner returns an owner whose name no other engine has.
func newOwner(dir string) (*owner, error) {
	o := &owner{name: random()}
	o.path = ownerFile(dir, o.name)
	// It has its name once it is locked, or a sweep could take its owner for dead.
	unlocked := filepath.Join(dir, "new-"+o.name)
	var err error
	if o.lock, err = lockFile(unlocked, os.O_CREATE|os.O_EXCL); err != nil {
		return nil, fmt.Errorf("mark this engine's guests: %w", err)
	}
	if err := os.Rename(unlocked, o.path); err != nil {
		o.lock.Close()
		return nil, fmt.Errorf("mark this engine's guests: %w", err)
	}
	return o, nil
}

// ownerPrefix begins the names of owners' files.
const ownerPrefix = "owner-"

func ownerFile(dir, name string) string { return filepath.Join(dir, ownerPrefix+name) }

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

func (o *owner) close() {
	os.Remove(o.path) // what is left is removed by the next sweep
	o.lock.Close()
}

// dead reports whether the process of an owner has ended.
func dead(dir, name string) bool {
	f, err := lockFile(ownerFile(dir, name), 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	f.Close()
	return true
}
