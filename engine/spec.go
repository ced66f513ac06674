package engine

import (
	"context"
	"fmt"
)

// Spec describes a guest, independently of the engine.
type Spec struct {
	Root     Root    // the guest's file system
	Agent    Program // the guest's first process, run as the guest's root
	Hostname string  // in the guest; empty: the id
	Limits   Limits  // zero fields: no limit
	Mounts   []Mount // volumes: storage that outlives the guest
}

// Root is the read-only file system of a guest: either a Tree of the host or an
// Image; exactly one is set. The guest's writes go to a layer of its own, which
// ends with the guest.
//
// An engine that needs a tree of the host supports both kinds with Unpack.
// An engine whose guests run elsewhere, such as pods of a cluster, uses
// Image.Name and Image.Digest and returns ErrUnsupported for a Tree.
type Root struct {
	// Key identifies the content: equal keys mean equal content, so that an engine
	// may prepare it once. 1 to 64 characters of [a-z0-9-].
	Key   string
	Tree  *Tree
	Image *Image
}

// Tree is a file system prepared on this host: either a directory tree (Dir) and,
// mounted over it, further paths of the host, or a file that contains it (File).
// Exactly one of Dir and File is set. An engine returns ErrUnsupported for the kind
// that it lacks.
type Tree struct {
	// Dir is the absolute directory that becomes "/".
	Dir string
	// Binds are host paths mounted read-only. Their mount points exist in Dir or
	// in an earlier bind.
	Binds []Mount
	// File is the absolute path of an EROFS image that becomes "/", uncompressed and
	// with blocks of 4 KiB. Its owners and modes apply in the guest. It has the
	// directories /proc, /sys, /dev, /tmp and /.glovebox, and does not change while a
	// guest uses it. Binds is empty.
	File string
}

// Image is a container image, identified by the digest of its manifest.
type Image struct {
	// Name is the repository without tag and digest, such as
	// "registry.example/team/python"; empty if no registry has the image.
	Name string
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string
	// Unpack returns the image as a tree of this host. The first call may download
	// and extract it; later calls are cheap. It may be called concurrently. The
	// tree stays valid while guests use it. nil: the image cannot be unpacked here.
	Unpack func(ctx context.Context) (*Tree, error)
}

// Unpack returns the root as a tree of this host. It returns ErrUnsupported for
// an image that cannot be unpacked here. The root is valid.
func (r *Root) Unpack(ctx context.Context) (*Tree, error) {
	if r.Tree != nil {
		return r.Tree, nil
	}
	if r.Image.Unpack == nil {
		return nil, fmt.Errorf("unpack image %s on this host: %w", r.Image.Digest, ErrUnsupported)
	}
	tree, err := r.Image.Unpack(ctx)
	if err == nil {
		err = tree.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("unpack image %s: %w", r.Image.Digest, err)
	}
	return tree, nil
}

// Program is a static executable for guests: a file of this host or, with Image,
// a file of an image. An engine may support one of the two.
type Program struct {
	Path  string   // absolute, on the host or in Image
	Image *Image   // nil: the host
	Args  []string // argv, with the name first
}

// UserID is the user and group id of user code in the guest. The agent runs as
// the guest's root and drops its privileges for user code.
const UserID = 1000

// Mount makes storage visible in the guest: a file or directory of this host
// (Host) or a volume of the engine's platform (Volume), such as a volume claim
// of a cluster. Exactly one is set. An engine returns ErrUnsupported for the
// kind that it lacks.
//
// In a volume (of Spec.Mounts) that is not ReadOnly, UserID can write, where the
// engine can arrange it: files of Host's owner belong to UserID in the guest, and
// files created by UserID belong to Host's owner on the host. Otherwise files
// have the same owners on both sides, and the engine logs what to change if user
// code cannot write. Ownership of other files, including those created by the
// guest's root, is up to the engine.
//
// The host refuses all writes to a Frozen volume, but the guest takes it for a writable
// one: a snapshot fits the spec whether its volumes are frozen or not, as a snapshot of a
// ReadOnly one does not. An engine that cannot freeze a volume returns ErrUnsupported.
type Mount struct {
	Host     string // absolute, without symbolic links
	Volume   string // 1 to 64 characters of [a-z0-9-]
	Guest    string // absolute and clean
	ReadOnly bool
	Frozen   bool // only in Spec.Mounts; without effect if ReadOnly
}

// Limits bounds the resources of a guest. Zero means no limit.
type Limits struct {
	CPUs     float64 // cores
	MemoryMB int     // MiB, of the guest's own memory
	DiskMB   int     // MiB, of the guest's writable layer
	PIDs     int     // processes and threads
}
