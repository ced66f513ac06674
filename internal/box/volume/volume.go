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

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// maxOwners bounds the directories below one parent: clients of an OpenID Connect issuer
// may be many, and nobody removes the directories of those who left.
const maxOwners = 10_000

// ErrUnsafe reports a directory that others can replace, or that leads elsewhere.
var ErrUnsafe = errors.New("the directory is not safe")

// Volume is one volume.
type Volume struct {
	Host     string // absolute, without symbolic links; the parent if PerOwner
	Guest    string // absolute and clean
	ReadOnly bool
	PerOwner bool // each owner has a directory of its own below Host
	// Quota, if positive, is the disk space in bytes of Host or, if PerOwner, of each
	// owner's directory, beyond which boxes may only read it.
	Quota int64
}

// Set is the volumes of a server. Its methods may be called concurrently.
type Set struct {
	list   []Volume
	empty  string // the directory for machines without an owner
	owners int    // maxOwners, except in tests

	mu    sync.Mutex
	dirs  map[string]*directory // guarded by mu; with quotas, by host path
	scans map[Outcome]uint64    // guarded by mu
}

// Open returns the set of a list. empty is a directory that belongs to this process's
// user; it is created if it is missing, and stays empty.
func Open(list []Volume, empty string) (*Set, error) {
	s := &Set{list: slices.Clone(list), empty: empty, owners: maxOwners, dirs: make(map[string]*directory), scans: make(map[Outcome]uint64)}
	if !s.Dynamic() {
		return s, nil
	}
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return nil, fmt.Errorf("make the empty volume: %w", err)
	}
	for _, v := range s.list {
		if v.PerOwner {
			if err := checkParent(v.Host); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// Dynamic reports whether the volumes of a machine depend on its owner or the time.
func (s *Set) Dynamic() bool {
	return slices.ContainsFunc(s.list, func(v Volume) bool { return v.PerOwner || v.Quota > 0 })
}

// HasQuotas reports whether a volume has a quota, so that Watch has something to do.
func (s *Set) HasQuotas() bool {
	return slices.ContainsFunc(s.list, func(v Volume) bool { return v.Quota > 0 })
}

// Ownerless returns the volumes of a machine that belongs to nobody: no owner's directory
// is among them, and it can write to no volume with a quota.
func (s *Set) Ownerless() []engine.Mount {
	var list []engine.Mount
	for _, v := range s.list {
		m := engine.Mount{Host: v.Host, Guest: v.Guest, ReadOnly: v.ReadOnly, Frozen: v.Quota > 0}
		if v.PerOwner {
			m.Host, m.Frozen = s.empty, true
		}
		list = append(list, m)
	}
	return list
}

// Of returns the volumes of the boxes of an owner, and creates the owner's directories.
// The error is ErrUnsafe if somebody else could have put them there.
func (s *Set) Of(owner string) ([]engine.Mount, error) {
	var list []engine.Mount
	for _, v := range s.list {
		m := engine.Mount{Host: v.Host, Guest: v.Guest, ReadOnly: v.ReadOnly}
		if v.PerOwner {
			name := DirName(owner)
			if err := ensure(v.Host, name, s.owners); err != nil {
				return nil, err
			}
			m.Host = filepath.Join(v.Host, name)
		}
		m.Frozen = s.quotaOf(m.Host, v.Quota)
		list = append(list, m)
	}
	return list, nil
}

// checkParent returns an error if users other than root and this one can change what is in
// the parent of owners' directories: they could exchange one for a link.
func checkParent(parent string) error {
	if err := owned.Dir(parent); err != nil {
		return fmt.Errorf("volume %s with a directory for each owner: %w: %w", parent, ErrUnsafe, err)
	}
	return nil
}

// ensure creates the directory name in parent, which may have most directories, unless it
// exists.
func ensure(parent, name string, most int) error {
	if err := checkParent(parent); err != nil {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return fmt.Errorf("open the parent of owners' directories: %w", err)
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := checkNumber(root, most); err != nil {
			return err
		}
		if err = root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the directory of an owner: %w", err)
		}
		info, err = root.Lstat(name)
	}
	path := filepath.Join(parent, name)
	switch {
	case err != nil:
		return fmt.Errorf("find the directory of an owner: %w", err)
	case !info.IsDir():
		return fmt.Errorf("the directory of an owner, %s, is a %s; remove it: %w", path, describe(info.Mode()), ErrUnsafe)
	}
	if err := owned.Dir(path); err != nil {
		return fmt.Errorf("the directory of an owner: %w: %w", ErrUnsafe, err)
	}
	return nil
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
			return fmt.Errorf("%s has %d directories of owners, the most there may be; remove those that nobody needs", root.Name(), most)
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
