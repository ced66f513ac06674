// Package hostdisk limits the disk space of guests that write to a file system of this host:
// how the free space is divided, and the error when the disk is full. It is what such an engine
// adds to the contract.
package hostdisk

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrFull: the disk has no room for what another guest may write. Engines wrap it together
// with engine.ErrExhausted, preferably as a *FullError.
var ErrFull = errors.New("no disk space for another guest")

// IsFull reports whether the cause of an error of the operating system is a full disk or an
// exceeded quota.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// FullError is an ErrFull with numbers, in bytes.
type FullError struct {
	Free    int64 // available to this user
	Need    int64 // reserved for the new guest if there were room
	Missing int64 // room that the new guest lacks
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%d MiB are free, %d MiB less than living boxes and a new one may write: %v", e.Free>>20, (e.Missing+1<<20-1)>>20, ErrFull)
}

// Is reports whether target is ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Policy divides the free space of a file system among guests and others. The zero value
// limits nothing but the single guest.
type Policy struct {
	// Guaranteed is the share of Limits.DiskMB, from 0 to 1, that is reserved for a
	// guest while it lives. A guest may write more, up to its limit, while there is
	// room; without room, it may end with engine.ExitDisk.
	Guaranteed float64
	// Reserve is the number of bytes that guests and snapshots leave free.
	Reserve int64
	// Others, if set, returns how many more of the free bytes guests leave to others.
	// free is what would be free if the guests of this process had written nothing.
	// Others is called often and concurrently, and must not block.
	Others func(free int64) int64
	// Owners, if set, returns the owner of each guest by the guest's id. Without room, the
	// guest to end is one of the owner whose guests have written most beyond their
	// guarantees, all together. A guest that is missing from the result is an owner of its
	// own. Owners is called when a guest must end, and must not block.
	Owners func() map[string]string
}

// Engine is an engine whose guests write to a file system of this host.
type Engine interface {
	// Disk describes the file system.
	Disk() (Use, error)
	// Reclaimable returns, by id, how many bytes of room the end of each guest of this process
	// would free.
	Reclaimable() map[string]int64
	// Borrowed returns, by id, how many bytes each guest of this process has written beyond
	// Policy.Guaranteed of its limit, the files that it started with included. Guests that have
	// written no more are missing.
	Borrowed() map[string]int64
	// Unreserve gives up what is reserved for the guests of this process, which are all
	// about to end, so that their snapshots can take it.
	Unreserve()
}

// Use describes the file system that guests write to, in bytes.
type Use struct {
	Free int64 // available to this user
	// Reserved is what the guests of all processes on the state directory have not yet
	// written of their guarantees.
	Reserved int64
	// Room is left for further guests. If it is negative, a guest that writes more
	// than its guarantee ends.
	Room int64
	// Guaranteed is that of the Policy.
	Guaranteed float64
}
