//go:build linux && (amd64 || arm64)

package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// maxSplit bounds the entries of a directory that needs a new mount point, because
// each entry becomes a mount.
const maxSplit = 512

// maxRoots bounds the trees of an engine: each consists of mounts.
const maxRoots = 128

// roots assembles the root file systems of guests.
//
// A tree consists of an in-memory directory with the mount points (of the guest
// kernel, the agent and volumes) and, bind-mounted read-only, everything else of
// the root's directory. Nothing is ever written to the root's directory, and a
// sentry sees a single file system.
//
// The first tree of each engine.Root is kept for the next guest; others, with
// another agent or with volumes, are removed with their last guest.
//
// A root that is a file needs no tree: see images.
type roots struct {
	state *stateDir

	mu    sync.Mutex
	trees map[string]*tree // guarded by mu; by key
}

// tree is an assembled root file system.
type tree struct {
	key     string
	path    string
	root    *os.File // the same tree, detached, with nothing above it; nil with images
	images  *images  // instead of a tree
	rootKey string
	stays   bool // kept when no guest uses it
	users   int  // guarded by roots.mu
}

func newRoots(state *stateDir) *roots {
	return &roots{state: state, trees: make(map[string]*tree)}
}

// get returns the tree for a plan. The caller releases it with put.
func (r *roots) get(p *plan) (*tree, error) {
	key, err := treeKey(p)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.trees[key]; ok {
		t.users++
		return t, nil
	}
	if err := r.evictLocked(); err != nil {
		return nil, err
	}
	t := &tree{key: key, path: filepath.Join(r.state.path("roots"), key), rootKey: p.Root.Key, stays: true, users: 1}
	for _, other := range r.trees {
		if other.stays && other.rootKey == t.rootKey {
			t.stays = false
		}
	}
	if p.tree.File != "" {
		t.images, err = openImages(r.state, p)
	} else {
		err = t.assemble(p)
	}
	if err != nil {
		return nil, fmt.Errorf("assemble root %q: %w", p.Root.Key, err)
	}
	r.trees[key] = t
	return t, nil
}

// assemble mounts the tree and opens it. After an error nothing is left.
func (t *tree) assemble(p *plan) (err error) {
	if err := assemble(t.path, p); err != nil {
		return err
	}
	if t.root, err = openTree(t.path); err != nil {
		return errors.Join(err, removeTree(t.path))
	}
	return nil
}

// put releases a tree.
func (r *roots) put(t *tree) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.users--
	if t.users > 0 || t.stays {
		return nil
	}
	delete(r.trees, t.key)
	return t.removeTree()
}

// evictLocked removes an unused tree if there are too many.
func (r *roots) evictLocked() error {
	if len(r.trees) < maxRoots {
		return nil
	}
	for key, t := range r.trees {
		if t.users == 0 {
			delete(r.trees, key)
			return t.removeTree()
		}
	}
	return fmt.Errorf("assemble root: %d are in use: %w", len(r.trees), engine.ErrExhausted)
}

// close removes all trees. No guest may be left.
func (r *roots) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for key, t := range r.trees {
		errs = append(errs, t.removeTree())
		delete(r.trees, key)
	}
	return errors.Join(errs...)
}

// treeKey identifies a tree by the root, the agent's executable and the mount
// points of volumes.
func treeKey(p *plan) (string, error) {
	info, err := os.Stat(p.Agent.Path)
	if err != nil {
		return "", fmt.Errorf("find agent: %w: %w", err, engine.ErrInvalid)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("agent %q is not an executable file: %w", p.Agent.Path, engine.ErrInvalid)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %d %d", p.Root.Key, p.tree.Dir, p.tree.File, p.Agent.Path, info.Size(), info.ModTime().UnixNano())
	for _, b := range p.tree.Binds {
		fmt.Fprintf(h, " %q:%q", b.Host, b.Guest)
	}
	for _, m := range p.Mounts {
		fi, err := os.Stat(m.Host)
		if err != nil {
			return "", fmt.Errorf("find volume: %w: %w", err, engine.ErrInvalid)
		}
		fmt.Fprintf(h, " %q,%t", m.Guest, fi.IsDir())
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// point is a directory of the in-memory part of a tree and the mount points
// below it.
type point struct {
	file bool // the mount point is a file
	sub  map[string]*point
}

func (p *point) add(guest string, file bool) {
	for _, name := range strings.Split(strings.TrimPrefix(guest, "/"), "/") {
		if p.sub == nil {
			p.sub = make(map[string]*point)
		}
		next := p.sub[name]
		if next == nil {
			next = &point{}
			p.sub[name] = next
		}
		p = next
	}
	p.file = file
}

// assemble mounts the tree at dir. After an error nothing is left.
func assemble(dir string, p *plan) (err error) {
	if info, err := os.Stat(p.tree.Dir); err != nil {
		return fmt.Errorf("find root: %w: %w", err, engine.ErrInvalid)
	} else if !info.IsDir() {
		return fmt.Errorf("%q is not a directory: %w", p.tree.Dir, engine.ErrInvalid)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeTree(dir))
		}
	}()
	if err := unix.Mount("glovebox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount tree: %w", err)
	}
	points := &point{}
	for _, own := range []string{"/proc", "/sys", "/dev", "/tmp"} {
		points.add(own, false)
	}
	points.add(agentPath, true)
	for _, m := range p.Mounts {
		info, err := os.Stat(m.Host)
		if err != nil {
			return fmt.Errorf("find volume: %w: %w", err, engine.ErrInvalid)
		}
		points.add(m.Guest, !info.IsDir())
	}
	if err := populate(dir, p.tree.Dir, points); err != nil {
		return err
	}
	// gVisor covers an empty /tmp with a file system in memory; with an entry in
	// it, /tmp stays on the guest's disk.
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("open up /tmp: %w", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "tmp", ".glovebox"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("mark /tmp: %w", err)
	}
	for _, b := range p.tree.Binds {
		if err := bind(b.Host, dir, b.Guest); err != nil {
			return err
		}
	}
	if err := bind(p.Agent.Path, dir, agentPath); err != nil {
		return err
	}
	return remountReadOnly(dir)
}

// populate fills the in-memory directory dir with the entries of host and creates
// missing mount points.
func populate(dir, host string, p *point) error {
	entries, err := os.ReadDir(host)
	if err != nil {
		return fmt.Errorf("read root: %w", err)
	}
	if len(entries) > maxSplit {
		return fmt.Errorf("make mount point in %q: it has %d entries, at most %d are possible: %w",
			host, len(entries), maxSplit, engine.ErrInvalid)
	}
	seen := make(map[string]bool, len(entries))
	for _, entry := range entries {
		name := entry.Name()
		seen[name] = true
		to, from := filepath.Join(dir, name), filepath.Join(host, name)
		below := p.sub[name]
		switch {
		case entry.Type()&fs.ModeSymlink != 0:
			if below != nil {
				return fmt.Errorf("make mount point: %q is a symbolic link: %w", from, engine.ErrInvalid)
			}
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				return fmt.Errorf("copy link: %w", err)
			}
		case entry.IsDir():
			info, err := entry.Info()
			if err != nil {
				return fmt.Errorf("read root: %w", err)
			}
			if err := mkdir(to, info.Mode().Perm()|0o700); err != nil {
				return err
			}
			if below == nil {
				err = bind(from, dir, name)
			} else {
				err = populate(to, from, below)
			}
			if err != nil {
				return err
			}
		case entry.Type().IsRegular():
			if err := touch(to); err != nil {
				return err
			}
			if below == nil {
				if err := bind(from, dir, name); err != nil {
					return err
				}
			}
		}
	}
	return addPoints(dir, p, seen)
}

// addPoints creates the mount points of p in dir that are missing.
func addPoints(dir string, p *point, seen map[string]bool) error {
	names := make([]string, 0, len(p.sub))
	for name := range p.sub {
		if !seen[name] {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		to, below := filepath.Join(dir, name), p.sub[name]
		if below.file {
			if err := touch(to); err != nil {
				return err
			}
			continue
		}
		if err := mkdir(to, 0o755); err != nil {
			return err
		}
		if err := addPoints(to, below, nil); err != nil {
			return err
		}
	}
	return nil
}

// mkdir creates a directory with the given mode, regardless of the umask.
func mkdir(dir string, mode fs.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return nil
}

func touch(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return f.Close()
}

// bind mounts the host path at guest in dir. It does not follow symbolic links to
// the target, so that one in the tree cannot redirect a mount.
func bind(host, dir, guest string) error {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open tree: %w", err)
	}
	defer unix.Close(root)
	target, err := openBeneath(root, strings.TrimPrefix(path.Clean(guest), "/"))
	if err != nil {
		return fmt.Errorf("find mount point %q of %q: %w: %w", guest, host, err, engine.ErrInvalid)
	}
	defer unix.Close(target)
	if err := unix.Mount(host, fmt.Sprintf("/proc/self/fd/%d", target), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("bind %q at %q: %w: %w", host, guest, err, engine.ErrInvalid)
		}
		return fmt.Errorf("bind %q at %q: %w", host, guest, err)
	}
	return nil
}

// remountReadOnly remounts the whole tree read-only, nosuid and nodev.
func remountReadOnly(dir string) error {
	err := unix.MountSetattr(unix.AT_FDCWD, dir, unix.AT_RECURSIVE, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
	})
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("remount tree read-only: the kernel is older than 5.12: %w", engine.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("remount tree read-only: %w", err)
	}
	return nil
}

// removeTree removes the tree.
func (t *tree) removeTree() error {
	if t.images != nil {
		return t.images.close()
	}
	return errors.Join(t.root.Close(), removeTree(t.path))
}

// removeTree removes the tree at dir.
func removeTree(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount tree: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove tree: %w", err)
	}
	return nil
}
