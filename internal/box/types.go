package box

import (
	"io"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Owner is the owner of a box, from authentication; "" is the local user. The
// ids of one owner do not exist for another.
type Owner string

// Kind says through which view a box was made.
type Kind string

// The closed set of kinds.
const (
	KindSession Kind = "session"
	KindContext Kind = "context"
)

// State is where a box is in its life.
type State string

// The closed set of states: creating → ready ⇄ running → stopped or error.
// Paused and hibernated are part of the vocabulary of clients.
const (
	StateCreating   State = "creating"
	StateReady      State = "ready"
	StateRunning    State = "running"
	StatePaused     State = "paused"
	StateHibernated State = "hibernated"
	// StateElsewhere is the state of a box that another server of the state directory has in
	// memory; it may be about to write it to disk.
	StateElsewhere State = "in use by another server"
	// StateLeaving is the state of a box that another server of the state directory, which is
	// stopping, still has. A call waits for it.
	StateLeaving State = "being saved"
	StateError   State = "error"
	StateStopped State = "stopped"
)

// SessionOptions describes the session a caller wants. Empty fields mean: what the
// session has, or the default for a new one.
type SessionOptions struct {
	ID          string // empty: a generated id
	Interpreter Interpreter
	Template    string // a named template, of the owner or of everyone; "": the built-in one
	Flavor      Flavor
	// Network narrows the network of a new session to presets and hosts. A session that
	// exists must have been narrowed to the same. nil: it is not narrowed.
	Network []string
	// Existing makes no session: without one of that id, the error is CodeNotFound.
	Existing bool
}

// ContextOptions describes a new context.
type ContextOptions struct {
	Name        string // 1 to 64 characters of letters, digits, space, ".", "_", "-"
	Language    string // "python" (default) or "javascript"; with Template, "" or that of the template
	Template    string // a named template, of the owner or of everyone; "": the built-in one
	Description string
	Flavor      Flavor
	Network     []string // as in SessionOptions
}

// Info describes a box at one moment.
type Info struct {
	ID          string
	Kind        Kind
	Name        string // contexts only
	Description string // contexts only
	Interpreter Interpreter
	Template    string // the named template that it came from; "": a built-in one
	Language    string
	Flavor      Flavor
	Limits      snapshot.NetLimits // of its network; not modified
	State       State
	Created     time.Time
	LastUsed    time.Time
	Owner       Owner
	Source      Source // empty while it is hibernated
}

// Stats counts what a Manager keeps.
type Stats struct {
	States      map[State]int
	Flavors     map[Flavor]int
	Ended       map[Reason]int64 // since the start
	Sessions    int
	MaxSessions int
	Contexts    int
	MaxContexts int
	MemoryMB    int // of the flavors of all boxes
	MaxMemoryMB int // 0: no limit
	CPUs        float64
	Boxes       map[Class]int // hibernated ones included
	Hibernated  int           // boxes that are on disk only
	Unwritten   int           // boxes in memory that could not be written to disk the last time
	Snapshots   int           // kept ones
	KeptBytes   int64         // of saved snapshots
	DiskBytes   int64         // of hibernated boxes and saved snapshots
	Started     int64         // boxes made since the start
	Starting    int           // boxes that are being made or wait for it
	Evicted     int64         // boxes that made room since the start, also those that went to disk
	Running     int           // calls under way
	Queued      int           // calls that wait for a kernel or a slot
	Uptime      time.Duration
}

// Stream names one of the two outputs.
type Stream string

// The closed set of streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Chunk is a piece of output while a call runs, cleaned like the result.
type Chunk struct {
	Stream Stream
	Text   string
}

// RunRequest asks for code to be run in the kernel of a language, whose
// variables live on from call to call.
type RunRequest struct {
	Code      string
	Language  string        // "": that of the interpreter of the box
	Timeout   time.Duration // 0: the default of the kind
	Progress  func(Chunk)   // may be nil; called in the caller's goroutine, and holds up the code until it returns
	ToolCalls ToolCalls     // answers the code's calls; nil allows none
}

// ToolCalls answers the calls of a run's code, and keeps what they add to its result. A call
// that waits for a person may park the run, see [Park]. The timeout of a run that may
// call includes the start of its interpreter.
type ToolCalls interface {
	client.Host
	// Displays returns the images that calls returned to the code.
	Displays() []protocol.Display
	// Changed lists the calls so far of tools that may have changed something; "" for none.
	Changed() string
	// End is called after the run. No other method is called any more.
	End()
}

// Image is a picture that code displayed.
type Image struct {
	MIME string // "image/png", "image/jpeg", "image/gif" or "image/webp", checked against Data
	Data []byte
	Path string // of a copy in the box, absolute; "" if there is none
}

// RunResult says what code did. Failing code is a result, not an Error.
type RunResult struct {
	Stdout   string // with the values of last expressions, in order
	Stderr   string // with the traceback of Error at the end
	Success  bool   // no uncaught error, no timeout, kernel alive
	Error    *protocol.RunError
	Images   []Image
	Duration time.Duration // of the code
	TimedOut bool
	Lost     string    // why the kernel's variables are gone; "": they are kept
	Fresh    bool      // the kernel was started for this run
	Notes    []string  // sentences for the model: timeouts, losses, omissions
	Refused  []Refusal // connections since the last result, at most 5
	// RefusedMore is how many destinations Refused omits, at least.
	RefusedMore int
}

// ExecRequest asks for a command: Argv, or Shell as a line for the shell.
type ExecRequest struct {
	Argv       []string
	Shell      string
	Stdin      io.Reader     // nil: empty
	Env        []string      // KEY=value, added to the user's
	Dir        string        // "": home
	Timeout    time.Duration // 0: the default; not for Background
	Background bool          // return as soon as it runs
	Progress   func(Chunk)   // may be nil; called in the caller's goroutine, and holds up the code until it returns
	ToolCalls  ToolCalls     // answers the calls of the command's processes; nil allows none; not for Background
}

// ExecResult says how a command ended or, with Running, that it has not.
type ExecResult struct {
	ID          string // of the process, for Attach and Signal
	PID         int
	Running     bool
	ExitCode    int // 128 + n after signal n; 127 and 126 as in a shell
	Signal      string
	Stdout      string
	Stderr      string
	Duration    time.Duration
	TimedOut    bool
	Images      []Image // that Calls returned
	Notes       []string
	Refused     []Refusal // as in RunResult
	RefusedMore int
	// Of the whole output, for Attach to go on from.
	StdoutBytes, StderrBytes int64
}

// AttachRequest asks for the kept output of a background process from an offset
// and, with Follow, for what comes until it ends or Timeout is over.
type AttachRequest struct {
	ID             string
	Stdout, Stderr int64 // offsets in bytes
	Follow         bool
	Timeout        time.Duration // 0: the default
	Progress       func(Chunk)
}

// The types of files and processes are those of the agent protocol.
type (
	// Process is one background process.
	Process = protocol.Process
	// FileInfo describes a file.
	FileInfo = protocol.FileInfo
	// ReadRequest reads a regular file.
	ReadRequest = protocol.Read
	// WriteRequest writes a regular file, whole or not at all.
	WriteRequest = protocol.Write
	// ListRequest lists a directory.
	ListRequest = protocol.List
	// ListResult is what List found.
	ListResult = protocol.ListResult
	// MkdirRequest makes a directory.
	MkdirRequest = protocol.Mkdir
	// RemoveRequest removes a file or directory.
	RemoveRequest = protocol.Remove
)
