// Package engine is the contract between Glovebox and the software that
// isolates guests. An engine supplies isolation and one byte stream to the agent
// that runs in the guest. Everything that the agent can do (run code, run
// commands, transfer files) is implemented once, above the contract.
//
// The life of a guest:
//
//	g, err := e.Create(ctx, id, spec) // booted; the agent reads its stream
//	conn, err := g.Dial(ctx)          // the stream to the agent
//	...                               // the agent protocol over conn
//	exit, err := g.Wait(ctx)          // blocks until the guest has ended
//	err = g.Destroy(ctx)              // frees everything it held
//
// Nothing in the contract requires that guests run on this host or see its
// files: see [Root], [Program], [Mount] and [Snapshot] for the alternatives.
// Optional abilities are interfaces that an Engine implements as well; [As]
// finds them.
//
// The package imports the standard library only and is public. Other modules may
// implement engines and test them with engine/enginetest.
package engine

import (
	"context"
	"io"
)

// Engine creates guests. All methods may be called concurrently.
//
// A decorator of an Engine has a method Unwrap() Engine, so that As finds the
// abilities of the decorated engine.
type Engine interface {
	// Info describes the engine. The result is constant for the life of the
	// engine, and the caller may modify it.
	Info() Info

	// Create boots a guest and returns when its agent can be dialled. The id has
	// 1 to 64 characters of [a-z0-9-] and is unique among the engine's living
	// guests. Create does not keep spec. ctx bounds the call, not the guest. If
	// Create fails, it leaves nothing behind.
	//
	// Errors: ErrExists, ErrInvalid, ErrUnsupported, ErrUnavailable, ErrExhausted,
	// ErrGone after Close, or the cause of ctx.
	Create(ctx context.Context, id string, spec *Spec) (Guest, error)

	// Close destroys all guests of this Engine and frees its resources. Guests
	// that were detached (see Recoverer) go on. Later calls of Create return
	// ErrGone. Close may be called repeatedly.
	Close() error
}

// Guest is one isolated computer. All methods may be called concurrently.
type Guest interface {
	// ID returns the id passed to Create.
	ID() string

	// Dial opens the stream to the agent. A guest has one stream: a new Dial
	// supersedes the previous one, whose reads and writes then fail. Bytes in
	// flight on the previous stream may be lost or may arrive on the new one; the
	// agent protocol resynchronizes. Closing the stream does not end the guest.
	// After the end of the guest, Dial returns ErrGone.
	Dial(ctx context.Context) (io.ReadWriteCloser, error)

	// Wait blocks until the guest has ended and returns the reason, the same to
	// every caller. If ctx ends first, Wait returns its cause. The id of an ended
	// guest is free; its other resources are free after Destroy.
	Wait(ctx context.Context) (Exit, error)

	// Destroy ends the guest and frees everything it holds before it returns:
	// processes, mounts, namespaces, cgroups, files, cluster objects. It may be
	// called repeatedly, concurrently and while the guest is busy; every call
	// returns after the end of the guest. ctx bounds the wait, not the
	// destruction.
	Destroy(ctx context.Context) error
}

// Info describes an engine.
type Info struct {
	Name      string    // a word of [a-z0-9-], for logs and metrics
	Version   string    // of the isolating software, for people
	Isolation Isolation // the boundary between guest and host
	Limits    []Limit   // how each resource limit is enforced; unlisted limits are not
}

// Isolation is the kind of boundary between a guest and the host.
type Isolation string

// The closed set of isolations.
const (
	IsolationNone   Isolation = "none"   // no boundary: for tests of the layers above
	IsolationKernel Isolation = "kernel" // an application kernel in user space
	IsolationVM     Isolation = "vm"     // a virtual machine
	IsolationPod    Isolation = "pod"    // determined by the cluster's runtime class
)

// Limit describes how one resource limit is enforced.
type Limit struct {
	Resource string // "cpu", "memory", "disk", "pids"
	Hard     bool   // enforced by a kernel; otherwise by a watcher that reacts
	By       string // the mechanism, for people: "cgroup v1", "sentry", "watcher"
	Why      string // why the limit is not hard; empty if it is
}

// Exit tells why a guest ended.
type Exit struct {
	Reason ExitReason
	Code   int    // the agent's, if Reason is ExitExited; 128 + n after signal n
	Detail string // one line for people, safe for a terminal; may be empty
}

// ExitReason is a closed set: it is a metric label and part of tombstones.
type ExitReason string

// The closed set of reasons.
const (
	ExitDestroyed ExitReason = "destroyed" // Destroy or Engine.Close was called
	ExitExited    ExitReason = "exited"    // the agent exited
	ExitOOM       ExitReason = "oom"       // the guest exceeded its memory limit
	ExitCrashed   ExitReason = "crashed"   // the isolation itself ended
	ExitDisk      ExitReason = "disk"      // the host's disk was nearly full, and the guest wrote more than hostdisk.Policy guarantees
)
