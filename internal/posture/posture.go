// Package posture reads from outside how the processes of a box are confined, and
// compares them with what docs/threat-model.md promises.
//
// The table of promises is in promises.go; go generate writes it into the document.
package posture

import "context"

// Role is what a process does for a box.
type Role string

// The roles.
const (
	Server Role = "server" // serves clients and starts all others
	Sentry Role = "sentry" // the kernel of one box
	Stub   Role = "stub"   // executes programs of the box, under its sentry
	Gofer  Role = "gofer"  // opens files of volumes for the sentry
)

// Process is a process of a box.
type Process struct {
	PID  int
	Role Role
}

// Inspector is an engine whose guests are processes of this host; engine.As finds it.
type Inspector interface {
	// Processes returns the processes of a living guest. Errors: engine.ErrGone.
	Processes(ctx context.Context, id string) ([]Process, error)
}

// Facts are what the kernel says of a process. If its threads differ, Facts has the
// weakest confinement of any.
type Facts struct {
	PID  int  `json:"pid"`
	Role Role `json:"role"`

	UID    uint32   `json:"uid"`    // effective; of the user namespace that surrounds the server's own, if any
	GID    uint32   `json:"gid"`    // likewise
	Groups []uint32 `json:"groups"` // supplementary, likewise

	UserNamespace string   `json:"user_namespace"` // as "user:[4026531837]"
	UIDMap        []string `json:"uid_map"`        // as "inside outside count", as the server sees it
	Namespaces    []string `json:"namespaces"`     // the others, likewise, by kind

	Capabilities []string `json:"capabilities"` // permitted, effective, inheritable or ambient
	Bounding     []string `json:"bounding"`     // that it could gain

	Seccomp     bool   `json:"seccomp"` // a filter of system calls
	NoNewPrivs  bool   `json:"no_new_privs"`
	CoreDumps   bool   `json:"core_dumps"` // the limit allows them
	Dumpable    string `json:"dumpable"`   // yes, no, or unknown
	MemoryGroup string `json:"memory_cgroup"`
	OOMScoreAdj int    `json:"oom_score_adj"`

	Descriptors map[Kind]int `json:"descriptors"`
	Suspicious  []string     `json:"suspicious,omitempty"` // descriptors that no part of a box should have
}

// Kind is the kind of an open descriptor.
type Kind string

// The kinds.
const (
	KindPipe      Kind = "pipe"
	KindSocket    Kind = "socket"
	KindMemory    Kind = "memory file"     // without a path: the guest's memory
	KindEvent     Kind = "event"           // eventfd, epoll, timers and the like
	KindScratch   Kind = "deleted file"    // behind the writable layer
	KindRead      Kind = "file, read-only" // of the root
	KindDirectory Kind = "directory"       // of the root
	KindLink      Kind = "symbolic link"
	KindDevice    Kind = "device"
	KindWritable  Kind = "file, writable"
	KindOther     Kind = "other"
)
