// Package tools is the catalogue of MCP tools: what each is called, what it
// takes and gives, and the few lines that connect it to the boxes. One file a
// tool. A handler is a plain function of typed input to typed output; how that
// becomes a message is written once, in define.go, and how an error meets the
// client once, in errors.go.
//
// It does not know transports, and boxes only through the Manager.
package tools

//go:generate go test -run ^(TestCatalog|TestDocs)$ -update .

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// A Set groups tools that are offered together.
type Set string

// The closed set of sets.
const (
	Sessions Set = "sessions"
	Contexts Set = "contexts"
	// Files comes with sessions and with contexts, whose files it moves.
	Files Set = "files"
	// Snapshots has what copies, keeps and brings back both sessions and contexts.
	Snapshots Set = "snapshots"
)

// EverySet, among the sets of an [Offer], stands for the whole catalogue.
const EverySet = "all"

// Sets returns all sets, in the order of the documentation.
func Sets() []Set { return []Set{Sessions, Files, Contexts, Snapshots} }

// An Offer says which part of the catalogue a server offers.
type Offer struct {
	Sets    []string // as --toolset names them; empty is [EverySet]
	Volumes bool     // whether boxes have volumes
}

// Deps is what handlers work with.
type Deps struct {
	Boxes *box.Manager
	// Await returns the manager in place of Boxes once calls may use it; nil: they
	// may at once. The error is that of the call.
	Await func(context.Context) (*box.Manager, error)
	Log   *slog.Logger // nil discards
	// ProtocolErrors has the tools of sessions answer what they cannot do with an
	// error of JSON-RPC in place of a result that is an error.
	ProtocolErrors bool
}

// manager returns the manager of boxes for a call.
func (d *Deps) manager(ctx context.Context) (*box.Manager, error) {
	if d.Await == nil {
		return d.Boxes, nil
	}
	return d.Await(ctx)
}

// A Tool is one entry of the catalogue.
type Tool struct {
	Def   *mcp.Tool // not to be changed
	Set   Set
	Needs Set  // of Snapshots: the set whose boxes the tool works on; "" both
	Long  bool // a call may take minutes, and is worth a task where a client knows them

	alias   bool // another name of a tool
	volumes bool // of use only where there are volumes

	bind func(Deps) mcp.ToolHandler
}

// catalogue is in the order of the documentation. It is made when it is first
// asked for: the processes of the isolation are this executable too, and none of
// them has a use for it.
var catalogue = sync.OnceValue(func() []Tool {
	tools := make([]Tool, len(definitions))
	for i, define := range definitions {
		tools[i] = define()
	}
	return tools
})

var definitions = []func() Tool{
	executeCode, executeCommand, getSessions, stopSession, getVolumePath, getVolumeMappings,
	uploadFile, downloadFile, listFiles,
	runCode, createContext, stopContext, listContexts,
	forkContext, snapshotContext, restoreContext, forkSession, snapshotSession, restoreSession, listSnapshots, deleteSnapshot,
}

// All returns the catalogue, in the order of the documentation.
func All() []Tool { return slices.Clone(catalogue()) }

// In reports whether an offer has the tool. Sessions and Contexts bring Files;
// Snapshots without either of them brings Sessions. Tools for volumes are offered
// where there are volumes, and other names of a tool, only as part of everything.
func (t *Tool) In(o Offer) bool {
	if len(o.Sets) == 0 || slices.Contains(o.Sets, EverySet) {
		return true
	}
	on := func(s Set) bool { return slices.Contains(o.Sets, string(s)) }
	contexts := on(Contexts)
	sessions := on(Sessions) || on(Snapshots) && !contexts
	offered := map[Set]bool{Sessions: sessions, Contexts: contexts, Files: on(Files) || sessions || contexts, Snapshots: on(Snapshots)}
	switch {
	case t.alias, t.volumes && !o.Volumes:
		return false
	}
	return offered[t.Set] && (t.Needs == "" || offered[t.Needs])
}

// toolset is what --toolset has to name for the tool to be offered.
func (t *Tool) toolset() string {
	switch {
	case t.alias, t.volumes:
		return EverySet
	case t.Needs != "" && t.Needs != Sessions:
		return string(t.Set) + "," + string(t.Needs)
	}
	return string(t.Set)
}

// Handlers returns what does the tools that keep accepts, by name; nil keeps
// all. They may be called without a session: then nothing is told of progress.
func Handlers(d Deps, keep func(*Tool) bool) map[string]mcp.ToolHandler {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	handlers := make(map[string]mcp.ToolHandler)
	for _, t := range catalogue() {
		if keep == nil || keep(&t) {
			handlers[t.Def.Name] = t.bind(d)
		}
	}
	return handlers
}

// A Call is what a handler knows besides its input.
type Call struct {
	Boxes    *box.Manager
	Owner    box.Owner
	Client   *Client         // nil: the caller has no identity between calls
	Progress func(box.Chunk) // nil unless the client asked for it
	Links    bool            // whether the client understands links to resources
}

// A Client is one caller over time; see [box.Client].
type Client = box.Client

type clientKey struct{}

// WithClient returns a context for the calls of one client. Without one, each call
// is a client of its own.
func WithClient(ctx context.Context, c *Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// seconds is how long a call may take; 0 leaves it to the box.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// formatTime is how the catalogue writes times.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// describeLoss tells what became of a box before this call: why its earlier state,
// or some of it, is gone ("" if it is not), and sentences for the model. A box
// that was hibernated and is woken has lost nothing and is told of all the same:
// its processes have stood still.
func describeLoss(acq box.Lease, what string) (reason string, notes []string) {
	switch {
	case acq.Woken != nil && acq.Woken.Rescued != nil:
		return "memory_not_restored: " + acq.Woken.Rescued.Why, []string{acq.Woken.Rescued.Explain()}
	case acq.Woken != nil && acq.Woken.Behind:
		at := formatTime(acq.Woken.Saved)
		cause, note := "the server was killed", "The server was killed while it had this "+what
		if t := acq.Woken.Why; t != nil {
			cause, note = reasons[t.Reason], "This "+what+describeEnd(t)
		}
		return cause + "; what the " + what + " did after " + at + " is lost",
			[]string{note + ". It was woken as it was at " + at + ": what it did after that is lost."}
	case acq.Woken != nil:
		return "", []string{"This " + what + " was hibernated at " + formatTime(acq.Woken.Saved) + " and woken: its variables and files are kept."}
	case acq.Lost != nil:
		note := "The earlier " + what + " " + acq.Lost.ID + describeEnd(acq.Lost)
		return string(acq.Lost.Reason), []string{note + ". Its variables and files are gone; this is a new box under the same id."}
	}
	return "", nil
}

// describeRunLoss is describeLoss with what the run has to tell.
func describeRunLoss(acq box.Lease, res *box.RunResult, what string) (reason string, notes []string) {
	reason, notes = describeLoss(acq, what)
	if res.Lost != "" {
		if reason == "" && res.Fresh {
			notes = nil // it was woken, and yet its variables are not there
		}
		reason = res.Lost
	}
	return reason, append(notes, res.Notes...)
}

// describeEnd says when a box ended, and why.
func describeEnd(t *box.Tombstone) string {
	s := " ended at " + formatTime(t.At) + " (" + reasons[t.Reason] + ")"
	if t.Detail != "" {
		s += ": " + t.Detail
	}
	return s
}

var reasons = map[box.Reason]string{
	box.ReasonStopped:     "it was stopped",
	box.ReasonIdle:        "nobody used it for the idle time-out",
	box.ReasonEvicted:     "it made room for another box",
	box.ReasonOOM:         "it went over its memory limit",
	box.ReasonCrashed:     "it crashed",
	box.ReasonExited:      "its agent ended",
	box.ReasonShutdown:    "the server was restarted",
	box.ReasonHibernated:  "it was hibernated",
	box.ReasonRolledBack:  "it was rolled back to a snapshot",
	box.ReasonHostRestart: "it was lost with its server",
	box.ReasonUnreadable:  "it could not be woken",
}
