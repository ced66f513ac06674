package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// maxOwners bounds the directories below one parent: clients of an OpenID Connect issuer
// may be many, and directories of owners who left stay.
const maxOwners = 10_000

// dataName is the directory of an owner's directory that boxes see. They can set its mode
// and leave set-user-ID programs in it; other users cannot pass the directory above.
const dataName = "data"

// ErrUnsafe reports a directory that others can replace, or that leads elsewhere.
var ErrUnsafe = errors.New("the directory is not safe")

// UnusableError is the error of Of about one volume.
type UnusableError struct {
	Guest string // its path in boxes
	Err   error
}

// Error is for the operator: it has paths of the host.
func (e *UnusableError) Error() string { return fmt.Sprintf("volume %s: %v", e.Guest, e.Err) }

// Unwrap returns Err.
func (e *UnusableError) Unwrap() error { return e.Err }

// Public says why a volume cannot be used, as a clause without paths of the host, for clients.
func (e *UnusableError) Public() string {
	switch {
	case errors.Is(e.Err, ErrUnsafe):
		return "its directory on the server is not safe: others could change it or have"
	case errors.Is(e.Err, errVolumeLimit):
		return "it has directories of as many owners as there may be"
	case errors.Is(e.Err, fs.ErrNotExist):
		return "its directory on the server is not there"
	case hostdisk.IsFull(e.Err):
		return "the server's disk has no room for its directory"
	}
	return "its directory on the server cannot be made or opened"
}

// errCrowded means that a parent has no room for a further owner's directory.
var errVolumeLimit = errors.New("volume limit reached")

// Volume is one volume.
type Volume struct {
	Host     string // absolute, without symbolic links; the parent if PerOwner
	Guest    string // absolute and clean
	ReadOnly bool
	PerOwner bool // each owner has a directory of its own below Host
	// Quota, if positive, is the disk space in bytes of each owner's directory, beyond
	// which boxes may only read it. It needs PerOwner.
	Quota int64
}

// Set is the volumes of a server. Its methods may be called concurrently.
type Set struct {
	list   []Volume
	empty  string // the directory for machines without an owner
	owners int    // maxOwners, except in tests

	mu    sync.Mutex
	dirs  map[string]*directory // guarded by mu; those that Watch scans, by host path
	scans map[Outcome]uint64    // guarded by mu
}

// Open returns the set of a list. empty is a directory that belongs to this process's
// user; it is created if it is missing, and stays empty.
func Open(list []Volume, empty string) (*Set, error) {
	s := &Set{list: slices.Clone(list), empty: empty, owners: maxOwners, dirs: make(map[string]*directory), scans: make(map[Outcome]uint64)}
	if !s.PerOwner() {
		return s, nil
	}
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return nil, fmt.Errorf("make the empty volume: %w", err)
	}
	for _, v := range s.list {
		if v.PerOwner {
			if err := CheckParent(v.Host); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// PerOwner reports whether the volumes of a machine depend on its owner.
func (s *Set) PerOwner() bool {
	return slices.ContainsFunc(s.list, func(v Volume) bool { return v.PerOwner })
}

// HasQuotas reports whether a volume has a quota, so that Watch has something to do.
func (s *Set) HasQuotas() bool {
	return slices.ContainsFunc(s.list, func(v Volume) bool { return v.Quota > 0 })
}

// Ownerless returns the volumes of a machine without an owner: no owner's directory is
// among them.
func (s *Set) Ownerless() []engine.Mount {
	var list []engine.Mount
	for _, v := range s.list {
		m := engine.Mount{Host: v.Host, Guest: v.Guest, ReadOnly: v.ReadOnly}
		if v.PerOwner {
			m.Host, m.Frozen = s.empty, true
		}
		list = append(list, m)
	}
	return list
}

// Of returns the volumes of a machine of an owner's box, and creates the owner's
// directories. Watch measures those with quotas, also if the box lives for a moment only.
// The error is an *UnusableError, and ErrUnsafe if another user could have put a directory there or can enter it.
func (s *Set) Of(owner string) ([]engine.Mount, error) {
	for _, v := range s.list {
		if !v.PerOwner {
			continue
		}
		if err := ensure(v.Host, DirName(owner), s.owners); err != nil {
			return nil, &UnusableError{v.Guest, err}
		}
	}
	s.use(owner, time.Now())
	return s.Peek(owner), nil
}

// Peek returns what Of returns, but creates and checks nothing: the directories may be
// missing. Frozen follows from the latest scans alone, whatever boxes did to a directory.
func (s *Set) Peek(owner string) []engine.Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []engine.Mount
	for _, v := range s.list {
		m := engine.Mount{Host: v.Host, Guest: v.Guest, ReadOnly: v.ReadOnly}
		if v.PerOwner {
			m.Host = v.dir(owner)
			d := s.dirs[m.Host]
			m.Frozen = v.Quota > 0 && d != nil && d.over
		}
		list = append(list, m)
	}
	return list
}

// dir returns the directory of an owner that boxes see.
func (v *Volume) dir(owner string) string { return filepath.Join(v.Host, DirName(owner), dataName) }

// CheckParent returns an error, which is ErrUnsafe, if users other than root and this one can change what is in
// the parent of owners' directories: they could exchange one for a link.
func CheckParent(parent string) error {
	if err := owned.DirOutside(parent); err != nil {
		return fmt.Errorf("volume %s with a directory for each owner: %w: %w", parent, ErrUnsafe, err)
	}
	return nil
}

// ensure creates the directory name in parent, which may have most directories, and the
// one that boxes see in it, unless they exist.
func ensure(parent, name string, most int) error {
	if err := CheckParent(parent); err != nil {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return fmt.Errorf("open the parent of owners' directories: %w", err)
	}
	defer root.Close()
	if _, err := root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		if err := checkNumber(root, most); err != nil {
			return err
		}
	}
	path := filepath.Join(parent, name)
	info, err := mkdir(root, name, path)
	if err != nil {
		return err
	}
	if err := owned.DirOutside(path); err != nil {
		return fmt.Errorf("the directory of an owner: %w: %w", ErrUnsafe, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("the directory of an owner, %s, is open to other users; close it with chmod 700: %w", path, ErrUnsafe)
	}
	own, err := root.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("open the directory of an owner: %w", err)
	}
	defer own.Close()
	_, err = mkdir(own, dataName, filepath.Join(path, dataName))
	return err
}

// mkdir creates a directory for this user unless it exists. path is for errors.
func mkdir(root *os.Root, name, path string) (fs.FileInfo, error) {
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the directory of an owner: %w", err)
	}
	info, err := root.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("find the directory of an owner: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("the directory of an owner, %s, is a %s; remove it: %w", path, describe(info.Mode()), ErrUnsafe)
	}
	return info, nil
}

// checkNumber returns an error if a parent has no room for another directory.
func checkNumber(root *os.Root, most int) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	for n := 0; ; {
		names, err := d.Readdirnames(1000)
		if n += len(names); n >= most {
			return fmt.Errorf("%s has %d directories of owners, %w; remove those of owners who left", root.Name(), most, errVolumeLimit)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the directories of owners: %w", err)
		}
	}
}

// describe names a type of file.
func describe(m fs.FileMode) string {
	if m&fs.ModeSymlink != 0 {
		return "symbolic link"
	}
	return "file"
}
