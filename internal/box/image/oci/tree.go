package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/erofs"
)

const (
	// maxHops bounds the symbolic links on the way to one file, as in Linux.
	maxHops = 40
	// maxDepth bounds the depth of a tree.
	maxDepth = 64
	// maxPath bounds a path, in bytes.
	maxPath = 4096
)

// errNotDir reports a path that leads through a file.
var errNotDir = errors.New("not a directory")

// tree is a root file system in memory. The contents of files are elsewhere.
type tree struct{ root *erofs.Inode }

func newTree() *tree { return &tree{root: newDir(0o755)} }

func newDir(mode uint16) *erofs.Inode {
	return &erofs.Inode{Mode: erofs.TypeDir | mode, Entries: make(map[string]*erofs.Inode)}
}

// walk follows a path and returns the inodes that it passes, the root first, with the
// target of the last symbolic link at the end. Links stay within the tree, and ".."
// stops at its root, as for a process in it. If create is set, missing directories are
// created and passed to it.
func (t *tree) walk(parts []string, create func(dir *erofs.Inode, name string) (*erofs.Inode, error)) ([]*erofs.Inode, error) {
	stack := []*erofs.Inode{t.root}
	for hops := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		dir := stack[len(stack)-1]
		switch {
		case !dir.IsDir():
			return nil, errNotDir
		case part == "" || part == ".":
			continue
		case part == "..":
			stack = stack[:max(1, len(stack)-1)]
			continue
		case len(stack) > maxDepth:
			return nil, fmt.Errorf("deeper than %d directories", maxDepth)
		}
		next := dir.Entries[part]
		if next == nil && create == nil {
			return nil, fs.ErrNotExist
		}
		if next == nil {
			var err error
			if next, err = create(dir, part); err != nil {
				return nil, err
			}
		}
		if next.Type() != erofs.TypeSymlink {
			stack = append(stack, next)
			continue
		}
		if hops++; hops > maxHops {
			return nil, fmt.Errorf("more than %d symbolic links", maxHops)
		}
		if strings.HasPrefix(next.Target, "/") {
			stack = stack[:1]
		}
		parts = append(strings.Split(next.Target, "/"), parts...)
	}
	return stack, nil
}

// lookup returns what a path leads to, or nil.
func (t *tree) lookup(path string) *erofs.Inode {
	stack, err := t.walk(strings.Split(path, "/"), nil)
	if err != nil {
		return nil
	}
	return stack[len(stack)-1]
}

// isProgram reports whether a path leads to an executable file.
func (t *tree) isProgram(path string) bool {
	i := t.lookup(path)
	return i != nil && i.Type() == erofs.TypeRegular && i.Mode&0o111 != 0
}
