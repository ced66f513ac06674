// Package hostdisk has what an engine adds to the contract if its guests write to a file
// system of this host: a policy that divides the free space, and a gauge.
package hostdisk

import "errors"

// ErrFull: the disk has no room for what another guest may write. Engines wrap it together
// with engine.ErrExhausted.
var ErrFull = errors.New("no disk space for another guest")

// Policy divides the free space of a file system among guests and others. The zero value
// limits nothing but the single guest.
type Policy struct {
	// Guaranteed is the share of Limits.DiskMB, from 0 to 1, that is reserved for a
	// guest while it lives. A guest may write more, up to its limit, while there is
	// room; without room, it ends with engine.ExitDisk.
	Guaranteed float64
	// Reserve is the number of bytes that guests and snapshots leave free.
	Reserve int64
	// Others, if set, returns how many more of the free bytes guests leave to others.
	// free is what would be free if the guests of this process had written nothing.
	// Others is called often and concurrently, and must not block.
	Others func(free int64) int64
}

// Gauge is an engine whose guests write to a file system of this host.
type Gauge interface {
	Disk() (Use, error)
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
}
