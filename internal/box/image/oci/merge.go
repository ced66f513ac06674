package oci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/erofs"
)

const (
	// whiteout is the prefix of the name of a file that removes another from the lower
	// layers, and opaque the name of one that removes all in its directory.
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	// auxiliary is the prefix of names that union file systems used for themselves.
	auxiliary = ".wh..wh."
)

// limits bound an image. They are far above real images.
type limits struct {
	entries int   // files of all kinds, in all layers
	names   int64 // bytes of names and of targets of symbolic links, which stay in memory
	data    int64 // bytes of all regular files, in all layers
}

var defaultLimits = limits{entries: 1_000_000, names: 128 << 20, data: 10 << 30}

// ErrHostile reports an image that is malformed or larger than any real one.
var ErrHostile = errors.New("malformed image")

func hostile(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrHostile)...)
}

// slot is an entry of a directory.
type slot struct {
	dir  *erofs.Inode
	name string
}

// merger merges the layers of an image, the lowest first.
type merger struct {
	*tree
	data   io.Writer // receives the contents of files
	limits limits

	entries int
	names   int64
	written int64
	dropped int // devices and sockets, which boxes do not have

	// Of the current layer: its entries, which its whiteouts do not remove, and the
	// directories whose lower entries are removed already.
	fresh  map[slot]bool
	opaque map[*erofs.Inode]bool
}

func newMerger(data io.Writer, l limits) *merger {
	return &merger{tree: newTree(), data: data, limits: l}
}

// add merges a layer, an uncompressed tar archive. After an error the tree is of no use.
func (m *merger) add(ctx context.Context, layer io.Reader) error {
	m.fresh, m.opaque = make(map[slot]bool), make(map[*erofs.Inode]bool)
	r := tar.NewReader(layer)
	for {
		hdr, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked below
			return fmt.Errorf("read layer: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.entry(hdr, r); err != nil {
			return fmt.Errorf("%.200q: %w", hdr.Name, err)
		}
	}
}

// split checks the name of an entry and splits it. The root has no parts, and may be called
// "/": builders that write entries with the permissions of the root do so.
func split(name string) ([]string, error) {
	switch {
	case len(name) > maxPath:
		return nil, hostile("the name has %d bytes, at most %d are possible", len(name), maxPath)
	case strings.Contains(name, "\x00"):
		return nil, hostile("the name contains NUL")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, hostile("the name contains ..")
		case len(part) > erofs.MaxName:
			return nil, hostile("a part of the name has %d bytes, at most %d are possible", len(part), erofs.MaxName)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > 0 && strings.HasPrefix(name, "/") {
		return nil, hostile("the name is absolute")
	}
	if len(parts) > maxDepth {
		return nil, hostile("it is deeper than %d directories", maxDepth)
	}
	return parts, nil
}

// entry merges an entry of a layer, whose content is read from content.
func (m *merger) entry(hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, err := split(hdr.Name)
	if err != nil {
		return err
	}
	if m.entries++; m.entries > m.limits.entries {
		return hostile("the image has more than %d files", m.limits.entries)
	}
	if len(parts) == 0 {
		if hdr.Typeflag != tar.TypeDir {
			return hostile("the root is no directory")
		}
		return setAttributes(m.root, hdr)
	}
	base := parts[len(parts)-1]
	if strings.HasPrefix(base, whiteout) {
		return m.whiteout(parts[:len(parts)-1], base)
	}
	parent, err := m.dir(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	inode, err := m.inode(hdr, content, parent.Entries[base])
	if err != nil {
		return err
	}
	if inode == nil { // it still takes the place of what was there
		delete(parent.Entries, base)
		return nil
	}
	if m.names += int64(len(base) + len(inode.Target)); m.names > m.limits.names {
		return hostile("the names in the image have more than %d MiB", m.limits.names>>20)
	}
	parent.Entries[base] = inode
	m.fresh[slot{parent, base}] = true
	return nil
}

// inode returns the inode of an entry, nil for kinds that are left out. there is what
// lower entries have in its place.
func (m *merger) inode(hdr *tar.Header, content io.Reader, there *erofs.Inode) (*erofs.Inode, error) {
	inode := &erofs.Inode{}
	switch hdr.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		inode.Mode = erofs.TypeRegular
		var err error
		if inode.Offset, inode.Size, err = m.store(content); err != nil {
			return nil, err
		}
	case tar.TypeDir:
		if there == nil || !there.IsDir() {
			there = newDir(0)
		}
		inode = there
	case tar.TypeSymlink:
		if hdr.Linkname == "" || len(hdr.Linkname) > erofs.MaxTarget || strings.Contains(hdr.Linkname, "\x00") {
			return nil, hostile("a symbolic link with a target of %d bytes", len(hdr.Linkname))
		}
		inode.Mode, inode.Target = erofs.TypeSymlink, hdr.Linkname
	case tar.TypeFifo:
		inode.Mode = erofs.TypeFIFO
	case tar.TypeLink:
		return m.linked(hdr.Linkname)
	case tar.TypeChar, tar.TypeBlock:
		m.dropped++
		return nil, nil
	default:
		return nil, hostile("an entry of type %q", hdr.Typeflag)
	}
	return inode, setAttributes(inode, hdr)
}

// linked returns the file that a hard link leads to. The link has its attributes.
func (m *merger) linked(target string) (*erofs.Inode, error) {
	parts, err := split(target)
	if err != nil {
		return nil, fmt.Errorf("hard link to %.200q: %w", target, err)
	}
	if len(parts) == 0 {
		return nil, hostile("hard link to the root")
	}
	parent, err := m.dir(parts[:len(parts)-1], false)
	if err != nil {
		return nil, fmt.Errorf("hard link to %.200q: %w", target, err)
	}
	inode := parent.Entries[parts[len(parts)-1]]
	if inode == nil || inode.IsDir() {
		return nil, hostile("hard link to %.200q, which is no file", target)
	}
	return inode, nil
}

// store appends the content of a file to the data.
func (m *merger) store(content io.Reader) (offset, size int64, err error) {
	offset = m.written
	left := m.limits.data - m.written
	size, err = io.Copy(m.data, io.LimitReader(content, left+1))
	m.written += size
	if err == nil && size > left {
		err = hostile("the files of the image have more than %d MiB", m.limits.data>>20)
	}
	return offset, size, err
}

// dir returns the directory that a path leads to. Symbolic links in the tree apply, as
// when a container runtime unpacks the layer; missing directories are made if create is
// set.
func (m *merger) dir(parts []string, create bool) (*erofs.Inode, error) {
	var make func(*erofs.Inode, string) (*erofs.Inode, error)
	if create {
		make = m.makeDir
	}
	stack, err := m.walk(parts, make)
	if err == nil && !stack[len(stack)-1].IsDir() {
		err = errNotDir
	}
	if err != nil {
		return nil, hostile("find its directory: %v", err)
	}
	return stack[len(stack)-1], nil
}

func (m *merger) makeDir(parent *erofs.Inode, name string) (*erofs.Inode, error) {
	if err := erofs.CheckName(name); err != nil {
		return nil, err
	}
	if m.entries++; m.entries > m.limits.entries {
		return nil, fmt.Errorf("the image has more than %d files", m.limits.entries)
	}
	if m.names += int64(len(name)); m.names > m.limits.names {
		return nil, fmt.Errorf("the names in the image have more than %d MiB", m.limits.names>>20)
	}
	d := newDir(0o755)
	parent.Entries[name] = d
	m.fresh[slot{parent, name}] = true
	return d, nil
}

// whiteout removes what lower layers have: one entry of a directory, or all.
func (m *merger) whiteout(dir []string, base string) error {
	name := strings.TrimPrefix(base, whiteout)
	switch {
	case base == opaque:
	case strings.HasPrefix(base, auxiliary):
		return nil
	case erofs.CheckName(name) != nil:
		return hostile("a whiteout of %.200q", name)
	}
	stack, err := m.walk(dir, nil)
	if err != nil || !stack[len(stack)-1].IsDir() {
		return nil // there is nothing to remove
	}
	parent := stack[len(stack)-1]
	if base == opaque {
		m.removeLower(parent)
		return nil
	}
	// Entries of this layer stay, wherever they stand in it, also those in a directory that
	// goes.
	there := parent.Entries[name]
	if left := there != nil && there.IsDir() && m.removeLower(there); !left && !m.fresh[slot{parent, name}] {
		delete(parent.Entries, name)
	}
	return nil
}

// removeLower removes the entries of lower layers from a directory and those below it. It
// reports whether any are left.
func (m *merger) removeLower(dir *erofs.Inode) bool {
	if m.opaque[dir] {
		return len(dir.Entries) > 0
	}
	m.opaque[dir] = true
	for name, i := range dir.Entries {
		if left := i.IsDir() && m.removeLower(i); !left && !m.fresh[slot{dir, name}] {
			delete(dir.Entries, name)
		}
	}
	return len(dir.Entries) > 0
}

// setAttributes sets owner, permissions and time. Extended attributes are left out.
func setAttributes(i *erofs.Inode, hdr *tar.Header) error {
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) > math.MaxUint32 || int64(hdr.Gid) > math.MaxUint32 {
		return hostile("owner %d:%d", hdr.Uid, hdr.Gid)
	}
	i.UID, i.GID = uint32(hdr.Uid), uint32(hdr.Gid)
	i.Mode = i.Type() | uint16(hdr.Mode&0o7777)
	if i.Type() == erofs.TypeSymlink {
		i.Mode = erofs.TypeSymlink | 0o777
	}
	if i.MTime = 0; hdr.ModTime.Unix() > 0 {
		i.MTime = uint64(hdr.ModTime.Unix())
	}
	return nil
}
