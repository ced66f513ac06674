package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Op names an operation. The host opens all of them except OpCall, OpDial and OpLookup.
type Op string

// The operations, with their arguments, data flow and result.
const (
	OpHello   Op = "hello"   // Hello → HelloResult; first operation of a connection
	OpPing    Op = "ping"    // none → none
	OpRun     Op = "run"     // Run; in: Body (code); out: Stdout, Stderr, Displays → RunResult
	OpKernel  Op = "kernel"  // Kernel: start, stop or restart one → KernelResult
	OpExec    Op = "exec"    // Exec; in: Stdin; out: Stdout, Stderr → ExecResult
	OpAttach  Op = "attach"  // Attach; out: Stdout, Stderr → ExecResult
	OpSignal  Op = "signal"  // Signal → none
	OpPS      Op = "ps"      // none → PSResult
	OpRead    Op = "read"    // Read; out: Body → FileInfo
	OpWrite   Op = "write"   // Write; in: Body → FileInfo
	OpStat    Op = "stat"    // Path → FileInfo
	OpList    Op = "list"    // List → ListResult
	OpMkdir   Op = "mkdir"   // Mkdir → FileInfo
	OpRemove  Op = "remove"  // Remove → none
	OpArchive Op = "archive" // Path; out: Body (tar) → none
	OpExtract Op = "extract" // Extract; in: Body (tar) → none
	OpBackup  Op = "backup"  // Backup; out: Body (tar) → BackupResult
	OpNetwork Op = "network" // Network → none; may be repeated
	OpCall    Op = "call"    // Call; opened by the agent; in and out: Body (JSON) → none
	OpDial    Op = "dial"    // Dial; opened by the agent; in and out: Body → DialResult
	OpLookup  Op = "lookup"  // Lookup; opened by the agent → LookupResult
)

// Request is the payload of Open.
type Request struct {
	Op   Op              `json:"op"`
	Args json.RawMessage `json:"args,omitempty"`
}

// Response is the payload of End. Error is nil on success.
type Response struct {
	Error  *Error          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// Error is a failed operation. Code is for programs, Message for people.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Code identifies the kind of an error.
type Code string

// The closed set of error codes.
const (
	CodeVersion    Code = "version"     // the two ends speak different versions
	CodeInvalid    Code = "invalid"     // invalid arguments
	CodeNotFound   Code = "not_found"   // no such file, process or kernel
	CodeExists     Code = "exists"      // it already exists
	CodeNotAllowed Code = "not_allowed" // the path leaves the permitted directories, or permissions forbid it
	CodeTooLarge   Code = "too_large"   // above a limit
	CodeNoSpace    Code = "no_space"    // the disk quota is exhausted
	CodeBusy       Code = "busy"        // too many operations, or the kernel is running
	CodeNoLanguage Code = "no_language" // the image has no interpreter for it
	CodeStart      Code = "start"       // a program or kernel did not start
	CodeCancelled  Code = "cancelled"   // ended by Cancel
	CodeInternal   Code = "internal"    // a fault of the agent or, for a call, of the host
	CodeLost       Code = "lost"        // the connection ended during the call; its outcome is unknown
)

// Hello configures the agent. It is the first operation of each connection.
type Hello struct {
	Version int    `json:"version"`
	Nonce   string `json:"nonce"` // echoed; data before it belong to an earlier connection
	// Restored means that the guest was restored from a snapshot since its last
	// connection, perhaps one of several from the same snapshot: kernels reseed their
	// random generators with Entropy before their next run.
	Restored bool `json:"restored,omitempty"`
	// The following fields apply on the first connection only, except Entropy.
	Home    string   `json:"home"`    // the user's home and default directory, created if missing
	Scratch []string `json:"scratch"` // further directories for files, such as /tmp
	// ReadOnly lists directories with readable files that must not change: read-only
	// volumes.
	ReadOnly     []string          `json:"read_only,omitempty"`
	UID          int               `json:"uid"`           // of user code; -1: the agent's own
	GID          int               `json:"gid"`           //
	Env          []string          `json:"env"`           // of user code, KEY=value
	Interpreters map[string]string `json:"interpreters"`  // language → absolute path inside
	PIDs         int               `json:"pids"`          // processes and threads of user code; 0: no limit
	MemoryMB     int               `json:"memory_mb"`     // of user code; 0: no limit
	Entropy      []byte            `json:"entropy"`       // mixed into random generators
	Now          int64             `json:"now,omitempty"` // host's clock, Unix nanoseconds
}

// HelloResult answers Hello.
type HelloResult struct {
	Version int    `json:"version"`
	Nonce   string `json:"nonce"`
	Build   string `json:"build"`
	// Limits reports how each limit ("pids", "memory", "open_files", "address_space",
	// "core") is enforced inside: "cgroup", "rlimit", "watcher", "none".
	Limits map[string]string `json:"limits"`
	// Features lists what this agent supports beyond the operations of Version: see
	// FeatureNetwork.
	Features []string `json:"features,omitempty"`
}

// Capture bounds the output that a run or command sends: the first Head and the last
// Tail bytes of each of stdout and stderr. If the output is longer, a file in the guest
// keeps all of it, up to a limit of its own. If both are zero, everything is sent, with
// flow control, and nothing is kept.
type Capture struct {
	Head int `json:"head"`
	Tail int `json:"tail"`
}

// Output describes one stream of output.
type Output struct {
	Bytes   int64  `json:"bytes"`             // total
	Omitted int64  `json:"omitted,omitempty"` // not sent, between head and tail
	Path    string `json:"path,omitempty"`    // file in the guest with the whole, if anything was omitted
}

// Run runs code in a kernel, which is started if necessary.
type Run struct {
	Kernel    string  `json:"kernel"`     // its name; 1 to 64 characters of [a-z0-9-]
	Language  string  `json:"language"`   // "python" or "javascript"
	TimeoutMS int64   `json:"timeout_ms"` // 0: the agent applies none
	GraceMS   int64   `json:"grace_ms"`   // between interrupt and kill; 0: 2,000
	Capture   Capture `json:"capture"`
	// Program marks a whole program: the run ends when everything it started has ended
	// and its files are closed, and the kernel ends with it.
	Program bool `json:"program,omitempty"`
	// File is the program's path below the home directory, for tracebacks and __file__.
	// Empty: none.
	File string `json:"file,omitempty"`
	// ToolCalls allows the code to call tools of the host until the run ends. client.Conn sets it.
	ToolCalls bool `json:"calls,omitempty"`
}

// Call is a question of a run's code to the host. The arguments and the result are the
// bodies; this protocol does not interpret them.
type Call struct {
	Run    uint32 `json:"run"`    // id of the run or exec operation in progress that the call belongs to
	Method string `json:"method"` // at most MaxMethod bytes
}

// MaxMethod bounds the name of a call's method, in bytes.
const MaxMethod = 64

// RunResult is the result of a run. A failed run is not an Error.
type RunResult struct {
	OK    bool      `json:"ok"`
	Error *RunError `json:"error,omitempty"` // uncaught in the user's code
	// Stopped is the reason why the agent ended the run early: "", "timeout" or
	// "cancelled".
	Stopped string `json:"stopped,omitempty"`
	// Lost is set when the kernel ended during the run, so that its state is
	// gone: "killed" (it did not yield to the interrupt), "oom", "exited" or
	// "crashed". The next run has a new kernel.
	Lost       string  `json:"lost,omitempty"`
	LostDetail string  `json:"lost_detail,omitempty"` // "exit code 3", "signal 11 (segmentation fault)"
	Fresh      bool    `json:"fresh,omitempty"`       // the kernel was started for this run
	Seconds    float64 `json:"seconds"`               // of the code, without start and transport
	Stdout     Output  `json:"stdout"`
	Stderr     Output  `json:"stderr"`
	// Ended counts the processes that the code left running and that were ended
	// because no further one could start in the box.
	Ended int `json:"ended,omitempty"`
	// Dropped counts displays beyond the limits of number and size.
	Dropped int `json:"dropped,omitempty"`
}

// RunError is an uncaught error of user code.
type RunError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"` // as the language prints it, with the user's lines, without colour; not part of stderr
}

// Display is a displayed value: that of the last expression, or a figure.
type Display struct {
	// Result marks the value of the last expression.
	Result bool `json:"result,omitempty"`
	// Data holds the representations by MIME type: text types as text, binary types in
	// base64. "text/plain" is always present.
	Data map[string]string `json:"data"`
	// Cut is set if the kernel left out a part of "text/plain".
	Cut bool `json:"cut,omitempty"`
}

// ErrDisplay is wrapped by the errors of ParseDisplay.
var ErrDisplay = errors.New("malformed display")

// ParseDisplay decodes a display, which comes from the guest. It refuses what would take
// far more memory than its bytes: a display with more than MaxRepresentations values, and
// bytes that are no UTF-8, each of which the decoder would replace by three.
func ParseDisplay(b []byte) (d Display, err error) {
	switch {
	case len(b) > MaxDisplay:
		return d, fmt.Errorf("%w: more than %d bytes", ErrDisplay, MaxDisplay)
	case !utf8.Valid(b):
		return d, fmt.Errorf("%w: not UTF-8", ErrDisplay)
	case values(b) > MaxRepresentations+displayMembers:
		return d, fmt.Errorf("%w: more than %d representations", ErrDisplay, MaxRepresentations)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("%w: %w", ErrDisplay, err)
	}
	if len(d.Data) > MaxRepresentations {
		return d, fmt.Errorf("%w: more than %d representations", ErrDisplay, MaxRepresentations)
	}
	return d, nil
}

// displayMembers is the number of members of a Display.
const displayMembers = 3

// values counts the members of all objects in b, which need not be valid JSON.
func values(b []byte) (n int) {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++ // the next byte does not end the string
		case b[i] == '"':
			quoted = !quoted
		case b[i] == ':' && !quoted:
			n++
		}
	}
	return n
}

// Kernel starts, stops or restarts a kernel without running anything.
type Kernel struct {
	Kernel   string   `json:"kernel"`
	Language string   `json:"language"`
	Action   string   `json:"action"`            // "start", "stop", "restart"
	Preload  []string `json:"preload,omitempty"` // modules to import at start, where present
}

// KernelResult answers Kernel.
type KernelResult struct {
	PID     int    `json:"pid"`
	Version string `json:"version"` // of the interpreter
	// Missing lists the modules to preload that could not be imported when the kernel
	// was started.
	Missing []string `json:"missing,omitempty"`
}

// Exec runs a command as the guest's user.
type Exec struct {
	Argv       []string `json:"argv,omitempty"`  // program and arguments; or
	Shell      string   `json:"shell,omitempty"` // a shell command line
	Env        []string `json:"env,omitempty"`   // added to the user's
	Dir        string   `json:"dir,omitempty"`   // empty: home
	TimeoutMS  int64    `json:"timeout_ms"`
	GraceMS    int64    `json:"grace_ms"` // between TERM and KILL; 0: 2,000
	Stdin      bool     `json:"stdin"`    // Stdin frames follow until EOF; otherwise stdin is empty
	Background bool     `json:"background"`
	Capture    Capture  `json:"capture"`
	ToolCalls  bool     `json:"calls,omitempty"` // as of Run; not for Background
}

// ExecResult is the result of a command; for Background, of its start.
type ExecResult struct {
	ID      string `json:"id"` // of the process, for Attach and Signal
	PID     int    `json:"pid"`
	Running bool   `json:"running,omitempty"` // still running
	Code    int    `json:"code"`              // exit code; 128 + n after signal n; 127 and 126 as in a shell
	Signal  string `json:"signal,omitempty"`
	// Stopped is the reason why the agent ended it: "", "timeout", "cancelled" or "oom"
	// (the memory limit was reached and it was the largest process).
	Stopped string  `json:"stopped,omitempty"`
	Seconds float64 `json:"seconds"`
	Stdout  Output  `json:"stdout"`
	Stderr  Output  `json:"stderr"`
}

// Attach replays the kept output of a background process from an offset and, with
// Follow, continues until it ends. In its result, Bytes is the offset after the last
// byte sent, Omitted the number of requested bytes that are no longer kept.
type Attach struct {
	ID     string `json:"id"`
	Stdout int64  `json:"stdout"` // offsets in bytes; bytes no longer kept are skipped
	Stderr int64  `json:"stderr"`
	Follow bool   `json:"follow"`
}

// Signal sends a signal to a process and its group.
type Signal struct {
	ID     string `json:"id"`
	Signal string `json:"signal"` // "INT", "TERM", "KILL", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT"
}

// PSResult lists background processes, the newest first.
type PSResult struct {
	Processes []Process `json:"processes"`
}

// Process is one background process.
type Process struct {
	ID      string `json:"id"`
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Started int64  `json:"started"` // Unix nanoseconds
	ExecResult
}

// Path names a file. Relative paths are below home.
type Path struct {
	Path string `json:"path"`
}

// Extract unpacks a tar archive into a directory.
type Extract struct {
	Path string `json:"path"`
	// Backup marks an archive made by Backup: its symbolic links are restored
	// unchanged, wherever they lead.
	Backup bool `json:"backup,omitempty"`
}

// Backup requests a tar archive of the home directory, to be unpacked in another box.
// Files that cannot be read or do not fit are omitted and counted.
type Backup struct {
	MaxBytes int64    `json:"max_bytes"`         // of file content
	Exclude  []string `json:"exclude,omitempty"` // absolute paths to omit, with everything below them
	Unless   string   `json:"unless,omitempty"`  // Mark of an earlier backup: if nothing has changed, no archive is sent
}

// BackupResult describes what a Backup sent.
type BackupResult struct {
	// Mark changes with the names, sizes, modes and modification times of the files.
	Mark      string `json:"mark"`
	Unchanged bool   `json:"unchanged,omitempty"` // Mark is Backup.Unless, and nothing was sent
	Files     int    `json:"files"`               // in the archive, without directories and links
	Bytes     int64  `json:"bytes"`               // of their content
	Omitted   int    `json:"omitted,omitempty"`   // that could not be read or did not fit
	// Examples names the first few omitted files.
	Examples []string `json:"examples,omitempty"`
}

// Read reads a regular file.
type Read struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Limit  int64  `json:"limit"` // bytes; 0: to the end
}

// Write writes a regular file, whole or not at all.
type Write struct {
	Path      string `json:"path"`
	Mode      uint32 `json:"mode"`      // permission bits; 0: those of the file it replaces, or 0644
	Exclusive bool   `json:"exclusive"` // CodeExists if the file exists
	Parents   bool   `json:"parents"`   // create missing directories
	MaxBytes  int64  `json:"max_bytes"` // CodeTooLarge beyond; 0: no limit but the disk's
}

// List lists a directory.
type List struct {
	Path  string `json:"path"`
	Depth int    `json:"depth"` // 1: its entries; at most 16
	Max   int    `json:"max"`   // entries; 0: 1,000; at most 1,000
}

// ListResult lists the entries, sorted by path.
type ListResult struct {
	Entries   []FileInfo `json:"entries"`
	Truncated bool       `json:"truncated,omitempty"`
}

// Mkdir makes a directory.
type Mkdir struct {
	Path    string `json:"path"`
	Parents bool   `json:"parents"`
	Mode    uint32 `json:"mode"` // 0: 0755
}

// Remove removes a file or directory.
type Remove struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
}

// FileInfo describes a file.
type FileInfo struct {
	Path     string `json:"path"` // absolute inside the guest
	Name     string `json:"name"`
	Type     string `json:"type"` // "file", "directory", "symlink", "other"
	Size     int64  `json:"size"`
	Mode     uint32 `json:"mode"`             // permission bits
	Modified int64  `json:"modified"`         // Unix nanoseconds
	Target   string `json:"target,omitempty"` // of a symlink, as written
	SHA256   string `json:"sha256,omitempty"` // hex; after Write only
}
