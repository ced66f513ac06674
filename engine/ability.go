package engine

import (
	"context"
	"time"
)

// As returns an optional ability of an engine, such as Pauser. It looks through
// decorators. An engine has the ability for all of its guests or not at all.
func As[T any](e Engine) (ability T, ok bool) {
	for {
		if ability, ok = e.(T); ok {
			return ability, true
		}
		d, decorates := e.(interface{ Unwrap() Engine })
		if !decorates {
			return ability, false
		}
		e = d.Unwrap()
	}
}

// The abilities below take the id of a guest. If this Engine has no living guest
// with that id, their methods return ErrGone.

// Pauser is an engine that can stop all processes of a guest.
type Pauser interface {
	// Pause returns when nothing in the guest runs any more. Open streams stay
	// open. Pausing a paused guest does nothing.
	Pause(ctx context.Context, id string) error
	// Resume lets a paused guest run again. Resuming a running guest does nothing.
	Resume(ctx context.Context, id string) error
}

// Statser is an engine that measures the resource usage of guests.
type Statser interface {
	Stats(ctx context.Context, id string) (Stats, error)
}

// Stats is the resource usage of a guest, all of its processes included.
type Stats struct {
	MemoryBytes uint64        // resident; shared pages in proportion where the host reports it
	CPU         time.Duration // since boot
	Processes   int           // on the host
}

// Snapshotter is an engine that writes running guests to storage and boots guests
// from there.
type Snapshotter interface {
	// Snapshot stores the guest: memory, processes, open files and its writable
	// layer, but neither the root nor the volumes. The guest stops for part of the
	// call and then continues, after an error too; a paused guest stays paused.
	//
	// dir is an existing, empty directory of the caller, who also renames, moves
	// and removes it. An engine writes the snapshot there or, if it keeps the
	// snapshot itself, returns an opaque reference of at most 1 KiB. The caller
	// stores the reference.
	//
	// When Snapshot returns nil, the snapshot is complete and durable. After an
	// error dir is empty and the engine keeps nothing. The death of this process
	// leaves files that Restore rejects.
	//
	// If ctx ends, Snapshot returns its cause at once, though the guest may stand
	// still a little longer. Errors: ErrInvalid for an unusable dir, ErrExhausted
	// without disk space, ErrUnsupported if the guest is in a state that cannot be
	// stored, ErrUnavailable, ErrGone, or the cause of ctx.
	Snapshot(ctx context.Context, id, dir string) (ref string, err error)

	// Restore is Create from a snapshot: the guest continues where the snapshot
	// was taken, running, with another id and host name and the correct time. Its
	// agent is in the middle of an earlier stream: the caller dials, resumes the
	// protocol and, if the snapshot is restored more than once, has the agent
	// reseed its randomness. A snapshot may be restored any number of times,
	// concurrently, and after the end of its guest.
	//
	// spec has the same Root.Key, agent (content and arguments), limits and mounts
	// (guest paths and modes) as the snapshot's guest, and the root still has the
	// files that the guest had open; host paths may differ. The engine verifies
	// checksums before it runs anything, against damage and not against malice:
	// write access to snapshots is control over guests. Restore does not need
	// s.Dir after it has returned.
	//
	// Errors: those of Create; ErrDamaged for a snapshot that is incomplete or damaged;
	// ErrInvalid also for one of another engine, version, architecture or spec.
	Restore(ctx context.Context, id string, spec *Spec, s Snapshot) (Guest, error)

	// InspectSnapshot returns what Restore needs. Errors: ErrDamaged for a
	// snapshot that is incomplete, ErrInvalid for one of another engine, version or
	// architecture.
	InspectSnapshot(ctx context.Context, s Snapshot) (SnapshotInfo, error)

	// CheckSnapshot returns the error with which Restore would reject the
	// snapshot, without reading large files; it misses damage in those.
	CheckSnapshot(ctx context.Context, spec *Spec, s Snapshot) error

	// RemoveSnapshot frees what the engine keeps for s.Ref. It neither reads nor
	// removes s.Dir. Removing an unknown or empty reference does nothing.
	RemoveSnapshot(ctx context.Context, s Snapshot) error
}

// Snapshot locates a stored guest.
type Snapshot struct {
	Dir string // the directory passed to Snapshotter.Snapshot, or where it was moved
	Ref string // the reference returned; empty if Dir holds everything
}

// SnapshotInfo is the part of a spec that a snapshot requires.
type SnapshotInfo struct {
	RootKey string // Spec.Root.Key
	Agent   string // SHA-256 of the agent's executable, in hex, or Image.Digest
}

// Recoverer is an engine whose guests can outlive an Engine value, so that another
// one can adopt them: after a restart, or in another replica of a server.
type Recoverer interface {
	// List returns the states of all living guests in the engine's scope (its
	// state directory, its namespace in a cluster), sorted by id, including those
	// of other Engine values and processes.
	List(ctx context.Context) ([]GuestState, error)

	// State returns the state of a guest of this Engine, for Recover. It is
	// constant for the life of the guest; the caller may store it.
	State(ctx context.Context, id string) (GuestState, error)

	// Detach releases a guest of this Engine without ending it: Close leaves it
	// running, and the methods of its Guest return ErrGone. Its id stays taken.
	Detach(ctx context.Context, id string) error

	// Recover adopts a living guest. Its agent is in the middle of an earlier
	// stream, as after Restore. Where several Engine values may share a guest, the
	// last Dial has the stream and one Destroy ends the guest for all.
	//
	// Errors: ErrGone if the guest does not live, ErrExists if this Engine has a
	// guest with the id, ErrUnavailable if another Engine holds the guest and the
	// engine does not share guests, ErrInvalid for a malformed state or a version
	// that the engine does not know, or the cause of ctx.
	Recover(ctx context.Context, state GuestState) (Guest, error)
}

// GuestState identifies a living guest across processes. It contains no secrets.
type GuestState struct {
	ID      string
	Version int    // of Data, chosen by the engine
	Data    []byte // opaque to the caller, at most 64 KiB
}
