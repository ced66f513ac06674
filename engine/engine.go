// Package engine is the contract between Glovebox and whatever isolates a
// guest: an engine supplies isolation and one byte stream to the agent that
// runs inside. Everything that can be done by talking to the agent (code,
// commands, files) is not in the contract and is written once, above it.
//
// The life of a guest:
//
//	g, err := e.Create(ctx, id, spec) // booted; the agent is reading its stream
//	conn, err := g.Dial(ctx)          // the stream to the agent
//	...                               // the link speaks over conn
//	exit, err := g.Wait(ctx)          // blocks until the guest has ended, says why
//	err = g.Destroy(ctx)              // everything it held on the host is free
//
// The package imports the standard library only and is public: other programs
// may bring engines of their own and prove them with engine/enginetest.
package engine

import (
	"context"
	"io"
)

// Engine creates guests. All methods may be called concurrently.
type Engine interface {
	// Info says what the engine is. It is constant for the life of the engine.
	Info() Info

	// Create boots a guest and returns when its agent can be dialled. id is
	// 1 to 64 characters of [a-z0-9-], unique among the engine's living guests
	// (ErrExists otherwise); spec is read, not kept. ctx bounds the call, never
	// the guest. A Create that returns an error has left nothing behind.
	//
	// Errors: ErrExists, ErrInvalid, ErrUnsupported, ErrUnavailable, ErrExhausted,
	// or the cause of ctx.
	Create(ctx context.Context, id string, spec *Spec) (Guest, error)

	// Close destroys every guest that is left and frees what the engine holds.
	// Later calls of Create return ErrGone. Close may be called again.
	Close() error
}

// Guest is one isolated computer. All methods may be called concurrently.
type Guest interface {
	// ID is the id that Create was given.
	ID() string

	// Dial opens the stream to the agent. A guest has one such stream: a new
	// Dial supersedes the earlier one, whose reads and writes then fail. Bytes
	// that were in flight on the earlier stream may still arrive on the new one;
	// the protocol above resynchronises. Closing the stream leaves the guest
	// running. After the guest has ended, Dial returns ErrGone.
	Dial(ctx context.Context) (io.ReadWriteCloser, error)

	// Wait blocks until the guest has ended and returns why, the same answer to
	// every caller. If ctx ends first, Wait returns its cause. The id of a guest
	// that has ended is free; what else it holds is free after Destroy.
	Wait(ctx context.Context) (Exit, error)

	// Destroy ends the guest and frees everything it holds on the host before it
	// returns: processes, mounts, namespaces, cgroups, files. It may be called
	// repeatedly, concurrently and while the guest is busy; every call returns
	// after the guest is gone. ctx bounds the waiting, not the destruction.
	Destroy(ctx context.Context) error
}

// Info describes an engine.
type Info struct {
	Name      string    // a word of [a-z0-9-], for logs and metrics
	Version   string    // of what isolates, for people
	Isolation Isolation // what stands between a guest and the host
	Caps      Caps      // which optional abilities the guests have
	Limits    []Limit   // how each resource limit is held on this host; not at all if it is missing
}

// Isolation says what stands between a guest and the host.
type Isolation string

// The closed set of isolations.
const (
	IsolationNone   Isolation = "none"   // nothing: for tests of the layers above
	IsolationKernel Isolation = "kernel" // an application kernel in user space
	IsolationVM     Isolation = "vm"     // a virtual machine
	IsolationPod    Isolation = "pod"    // whatever the cluster's runtime class gives
)

// Limit says how one resource limit is held.
type Limit struct {
	Resource string // "cpu", "memory", "disk", "pids"
	Hard     bool   // held by a kernel; otherwise by a watcher that reacts
	By       string // the mechanism, for people: "cgroup v1", "sentry", "watcher"
	Why      string // why it is not hard, empty if it is
}

// Spec describes a guest, independent of the engine.
type Spec struct {
	Root     Root    // what the guest sees as its file system
	Agent    Program // started as the guest's first process, as the guest's root
	Hostname string  // inside; empty means the id
	Limits   Limits  // zero fields mean: no limit
	Mounts   []Mount // host directories and files shared with the guest (volumes)
}

// Root is a file system: a directory tree of the host and, laid over it,
// further host paths. It is always seen read-only from the host's side: what
// the guest writes goes to a layer of its own that ends with it.
type Root struct {
	// Key identifies the content: the same Key means the same Dir and Binds, so
	// that an engine may prepare the tree once. 1 to 64 characters of [a-z0-9-].
	Key string
	// Dir is an absolute directory of the host that becomes "/".
	Dir string
	// Binds are host paths shown inside, read-only. Their targets exist in Dir or
	// inside an earlier bind.
	Binds []Mount
}

// UserID is the id, inside, of the user and of the group that user code runs as.
// The agent runs as the guest's root and gives its rights up for user code.
const UserID = 1000

// Mount shows a path of the host inside the guest.
//
// A volume (of Spec.Mounts) that is not ReadOnly belongs to the guest's user,
// UserID, where the engine can bring that about: what belongs to the owner of
// Host on the host belongs to that user inside, and what that user makes belongs
// to the owner of Host. Otherwise owners are the same on both sides, and the
// engine logs what to do if user code cannot write. What others own, and what the
// guest's root makes in a volume, is the engine's to say.
type Mount struct {
	Host     string // absolute, without symbolic links
	Guest    string // absolute and clean
	ReadOnly bool
}

// Program is an executable of the host that runs in the guest.
type Program struct {
	Path string   // absolute path of a static executable on the host
	Args []string // argv, the name first
}

// Limits bounds what a guest may take. Zero means no limit.
type Limits struct {
	CPUs     float64 // cores
	MemoryMB int     // MiB, of the guest's own memory
	DiskMB   int     // MiB, of what the guest may write to its own layer
	PIDs     int     // processes and threads
}

// Exit says why a guest ended.
type Exit struct {
	Reason ExitReason
	Code   int    // of the agent, if Reason is ExitExited; 128 + n after signal n
	Detail string // one line for people, fit for a terminal; may be empty
}

// ExitReason is a closed set: it is a metric label and part of tombstones.
type ExitReason string

// The closed set of reasons.
const (
	ExitDestroyed ExitReason = "destroyed" // Destroy or Engine.Close was called
	ExitExited    ExitReason = "exited"    // the agent returned
	ExitOOM       ExitReason = "oom"       // the guest went over its memory limit
	ExitCrashed   ExitReason = "crashed"   // the isolation itself ended
)
