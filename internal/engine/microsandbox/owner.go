//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// owner marks the guests of an engine: its name is part of theirs, and its file is locked
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

func ownerFile(dir, name string) string { return filepath.Join(dir, "owner-"+name) }

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

// sweep removes the guests of owners whose process has ended, found by label, and then
// what is left of the owners.
func (e *Engine) sweep() error {
	out, err := e.msb.brief("list", "--label", labelManaged, "--format", "json")
	if err != nil {
		return unavailable(err)
	}
	list, err := parseList(out)
	if err != nil {
		return err
	}
	kept := make(map[string]bool)
	for _, s := range list {
		owner, _ := parseName(s.Name)
		if owner == e.owner.name || !dead(e.dir, owner) {
			continue
		}
		e.log.Info("removing a guest whose process has ended", logkey.Guest, s.Name)
		if err := e.removeSandbox(s.Name); err != nil {
			kept[owner] = true // the next sweep tries again
			e.log.Warn("cannot remove a guest whose process has ended", logkey.Guest, s.Name, logkey.Error, err)
			continue
		}
		os.RemoveAll(guestDir(e.dir, s.Name))
	}
	e.sweepFiles(kept)
	return nil
}

// sweepFiles removes the files of dead owners, but not of those that are kept.
func (e *Engine) sweepFiles(kept map[string]bool) {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return // nothing to clean that could be seen
	}
	for _, entry := range entries {
		owner, isGuest := parseName(entry.Name())
		if !isGuest {
			var ok bool
			if owner, ok = parseOwnerFile(entry.Name()); !ok {
				continue
			}
		}
		if owner != e.owner.name && !kept[owner] && dead(e.dir, owner) {
			os.RemoveAll(filepath.Join(e.dir, entry.Name())) // the next sweep tries again
		}
	}
}

// parseOwnerFile returns the owner whose file has the name.
func parseOwnerFile(name string) (owner string, ok bool) {
	const prefix = "owner-"
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return "", false
	}
	return parseName("gb-" + name[len(prefix):] + "-0000000000000000")
}

func (e *Engine) sweepEvery(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := e.sweep(); err != nil {
			e.log.Warn("cannot look for guests whose process has ended", logkey.Error, err)
		}
	}
}
