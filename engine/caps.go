package engine

import (
	"context"
	"time"
)

// Caps is a set of optional abilities. A bit is set if and only if the guests
// of the engine, or for CapRestorer the engine itself, implement the interface of
// the same name.
type Caps uint32

// The optional abilities.
const (
	CapPauser      Caps = 1 << iota // Pauser
	CapStatser                      // Statser
	CapSnapshotter                  // Snapshotter
	CapRestorer                     // Restorer, of the engine
)

// Has reports whether all of want are in c.
func (c Caps) Has(want Caps) bool { return c&want == want }

// Pauser is a guest that can be stopped in its tracks and go on later.
type Pauser interface {
	// Pause returns when nothing in the guest runs any more. Open streams stay
	// open. Pausing a paused guest does nothing.
	Pause(ctx context.Context) error
	// Resume lets a paused guest go on. Resuming a running guest does nothing.
	Resume(ctx context.Context) error
}

// Statser is a guest that tells what it uses.
type Statser interface {
	Stats(ctx context.Context) (Stats, error)
}

// Stats is what a guest uses on the host, all its processes counted.
type Stats struct {
	MemoryBytes uint64        // resident, shared pages counted in proportion where the host tells
	CPU         time.Duration // since boot
	Processes   int           // on the host
}

// Snapshotter is a guest that can be written to disk as it runs.
type Snapshotter interface {
	// Snapshot writes the guest into dir, an existing, empty directory of the
	// host: memory, processes, open files and what the guest has written to its
	// own layer; not the root and the volumes, which are the spec's. The guest
	// stands still for part of the call and goes on afterwards, whether the call
	// succeeds or not, as if nothing had been; one that is paused stays paused.
	//
	// When Snapshot returns nil, the snapshot is whole and has been given to the
	// disk. After an error dir is empty again. A process that is killed meanwhile
	// leaves files that Restore refuses. Making the directory, giving it its name
	// once it is whole and removing it are the caller's; a snapshot may be moved
	// and copied.
	//
	// If ctx ends, Snapshot returns its cause at once, though the guest may stand
	// still a little longer. Errors: ErrInvalid if dir is not as it should be,
	// ErrExhausted if the disk has no room, ErrUnsupported if the guest is in a
	// state that cannot be written, ErrUnavailable, ErrGone, or the cause of ctx.
	Snapshot(ctx context.Context, dir string) error
}

// Restorer is an engine that boots guests from snapshots.
type Restorer interface {
	// Restore is Create with the guest of a snapshot: it goes on where the
	// snapshot found it, running, under another id and host name, with the right
	// time, and knows nothing of it. Its agent is in the middle of an earlier
	// stream: whoever dials resumes the protocol, and tells the agent to draw new
	// randomness where one snapshot is restored more than once. A snapshot may be
	// restored any number of times, at once too, and after its guest has ended.
	//
	// spec has the Root.Key, the agent (content and arguments), the limits and the
	// mounts (guest paths and modes) that the snapshot's guest had, and the root
	// must still have the files that guest had open; host paths may differ. The
	// snapshot is checked against its checksums before anything of it runs, which
	// finds damage and not malice: who can write to snapshots owns the guests. dir
	// is read, and no longer needed once Restore has returned.
	//
	// Errors: those of Create; ErrInvalid also for what is no whole snapshot, is
	// damaged, or was made by another engine, version or kind of machine, or of
	// another spec.
	Restore(ctx context.Context, id string, spec *Spec, dir string) (Guest, error)
}

// Inspector is a Restorer that can look at a snapshot without restoring it.
type Inspector interface {
	// InspectSnapshot says what the snapshot in dir is of. Errors: ErrInvalid for what
	// is no whole snapshot or was made by another engine, version or kind of machine.
	InspectSnapshot(dir string) (SnapshotInfo, error)

	// CheckSnapshot returns the error with which Restore would refuse the snapshot in
	// dir, without reading its large files: damage in those goes unnoticed.
	CheckSnapshot(spec *Spec, dir string) error
}

// SnapshotInfo says what a snapshot is of, as far as the same has to be given to
// Restore.
type SnapshotInfo struct {
	RootKey string // Spec.Root.Key
	Agent   string // SHA-256 of the agent's executable, in hex
}

// Unwrapper is a Guest that decorates another one.
type Unwrapper interface{ Unwrap() Guest }

// As finds an optional ability of a guest, looking through decorators.
func As[T any](g Guest) (T, bool) {
	for g != nil {
		if t, ok := g.(T); ok {
			return t, true
		}
		u, ok := g.(Unwrapper)
		if !ok {
			break
		}
		g = u.Unwrap()
	}
	var zero T
	return zero, false
}
