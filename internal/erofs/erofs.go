// Package erofs writes EROFS images: read-only file systems in one file, which gVisor
// and Linux mount. The output depends on the input alone, so that equal trees give
// equal images.
//
// Images are uncompressed, have blocks of 4 KiB and no extended attributes. The content
// of each regular file begins at a block of its own, because gVisor can map only such
// files into memory.
package erofs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Types of files in Inode.Mode, as in stat(2).
const (
	TypeMask    = 0o170000
	TypeRegular = 0o100000
	TypeDir     = 0o040000
	TypeSymlink = 0o120000
	TypeFIFO    = 0o010000
)

const (
	// MaxName is the largest length of a name in a directory, in bytes.
	MaxName = 255
	// MaxTarget is the largest length of the target of a symbolic link, in bytes.
	MaxTarget = 4095
)

// Inode is a file of any kind. An Inode with several names is a hard link; a directory
// has one name.
type Inode struct {
	Mode     uint16 // one of the types above, and the permissions in the low 12 bits
	UID, GID uint32
	MTime    uint64 // seconds since 1970

	Size   int64 // of a regular file, in bytes
	Offset int64 // of its content in the data passed to Write

	Target string // of a symbolic link

	Entries map[string]*Inode // of a directory
}

// Type returns the type bits of the mode.
func (i *Inode) Type() uint16 { return i.Mode & TypeMask }

// IsDir reports whether the inode is a directory.
func (i *Inode) IsDir() bool { return i.Type() == TypeDir }

// ErrInvalid reports a tree that no EROFS image can hold.
var ErrInvalid = errors.New("invalid tree")

func (i *Inode) validate() error {
	switch i.Type() {
	case TypeRegular:
		if i.Size < 0 || i.Offset < 0 {
			return fmt.Errorf("%w: a file of %d bytes at offset %d", ErrInvalid, i.Size, i.Offset)
		}
	case TypeSymlink:
		if i.Target == "" || len(i.Target) > MaxTarget {
			return fmt.Errorf("%w: the target of a symbolic link has %d bytes, want 1 to %d", ErrInvalid, len(i.Target), MaxTarget)
		}
	case TypeDir, TypeFIFO:
	default:
		return fmt.Errorf("%w: mode %#o is of no supported type", ErrInvalid, i.Mode)
	}
	return nil
}

// CheckName returns ErrInvalid, wrapped, unless name can be an entry of a directory.
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > MaxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%w: %.300q is no name of a file", ErrInvalid, name)
	}
	return nil
}

// names returns the sorted names of a directory.
func (i *Inode) names() ([]string, error) {
	names := make([]string, 0, len(i.Entries))
	for name := range i.Entries {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}
