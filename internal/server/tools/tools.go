// Package tools is the catalogue of MCP tools, one file each: name, description,
// arguments, result and handler. A handler maps typed input to typed output; define.go
// turns the output into a message, and errors.go an error. resource.go serves files
// of boxes as MCP resources.
//
// The package knows no transports, and boxes only through box.Manager.
package tools

//go:generate go test -run ^(TestCatalog|TestDocs)$ -update .

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
)

// A Set is a group of tools that --toolset enables together.
type Set string

// All sets.
const (
	Sessions Set = "sessions"
	Contexts Set = "contexts"
	// Files comes with Sessions and with Contexts.
	Files Set = "files"
	// Snapshots forks, snapshots and restores sessions and contexts.
	Snapshots Set = "snapshots"
)

// EverySet in the sets of an [Offer] enables the whole catalogue.
const EverySet = "all"

// Sets returns all sets in the order of the documentation.
func Sets() []Set { return []Set{Sessions, Files, Contexts, Snapshots} }

// An Offer selects the tools that a server offers.
type Offer struct {
	Sets    []string // names for --toolset; empty means [EverySet]
	Volumes bool     // whether boxes have volumes
	Code    bool     // whether code can call the tools of MCP servers
	// NoSnapshots leaves out Snapshots, which the engine lacks.
	NoSnapshots bool
	// NoHibernation has descriptions say that idle boxes end. NoSnapshots implies it.
	NoHibernation bool
	// Image has descriptions speak of the container image of boxes instead of the
	// interpreters and libraries of this machine.
	Image bool
}

// Deps are the dependencies of the handlers.
type Deps struct {
	Boxes *box.Manager
	// Await waits until calls may use the manager and returns it in place of Boxes; nil
	// uses Boxes at once. An error of Await is the error of the call.
	Await func(context.Context) (*box.Manager, error)
	Log   *slog.Logger // nil discards
	// Code returns the broker for the calls of an owner's code, nil if the owner's code can
	// call no tools. Nil for a server without code mode.
	Code func(box.Owner) *codemode.Broker
	// Approvals asks for the approval of calls of code; nil asks nobody.
	Approvals *approval.Approver
	// Reserve reserves memory for a large result before the call produces it, and reports
	// false if the client may not have that much now; nil always succeeds.
	Reserve func(ctx context.Context, bytes int64) bool
	// Fits reserves memory for the whole answer of a call, of about so many bytes, and returns the
	// error in its place if the client may not have that much now; nil always succeeds.
	Fits func(ctx context.Context, bytes int64) error
	// Hold reserves the place of a call of an owner for code that goes on after its request, and
	// returns what gives the place back; nil reserves nothing.
	Hold func(box.Owner) (release func())
	// ProtocolErrors makes the session tools fail with a JSON-RPC error instead of a
	// result with isError.
	ProtocolErrors bool
}

// manager returns the manager for a call.
func (d *Deps) manager(ctx context.Context) (*box.Manager, error) {
	if d.Await == nil {
		return d.Boxes, nil
	}
	return d.Await(ctx)
}

// A Tool is one entry of the catalogue.
type Tool struct {
	Def   *mcp.Tool // read-only
	Set   Set
	Needs Set  // for Snapshots: the other set that the tool needs; "" none
	Long  bool // a call may take minutes and can become a task

	alias   bool            // an alternative name of a tool
	volumes bool            // useful only with volumes
	code    bool            // useful only with code mode
	calls   string          // added to the description with code mode
	offline string          // in the description, if boxes have no network
	online  json.RawMessage // the input schema, if they have one

	wordings []wording // of the description

	bind func(Deps) mcp.ToolHandler
}

// catalogue returns all tools in the order of the documentation. It is built lazily:
// the isolation runs this executable as processes that never use it.
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
	searchTools, describeTools,
	runCode, createContext, stopContext, listContexts,
	forkContext, snapshotContext, restoreContext, forkSession, snapshotSession, restoreSession, listSnapshots, deleteSnapshot,
}

// All returns all tools in the order of the documentation.
func All() []Tool { return slices.Clone(catalogue()) }

// In reports whether an offer includes the tool. Sessions and Contexts imply Files;
// Snapshots without Contexts implies Sessions. Volume tools need volumes, those of code
// mode need code mode, and alternative names need [EverySet]. NoSnapshots overrides Sets.
func (t *Tool) In(o Offer) bool {
	if t.code && !o.Code || t.Set == Snapshots && o.NoSnapshots {
		return false
	}
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
	case t.code:
		return sessions || contexts
	}
	return offered[t.Set] && (t.Needs == "" || offered[t.Needs])
}

// Definition returns the definition of the tool in an offer. It is read-only.
func (t *Tool) Definition(o Offer) *mcp.Tool {
	o.NoHibernation = o.NoHibernation || o.NoSnapshots
	description := reworded(t.Def.Description, t.wordings, o)
	inCode := o.Code && t.calls != ""
	if !inCode && description == t.Def.Description {
		return t.Def
	}
	def := *t.Def
	def.Description = description
	if !inCode {
		return &def
	}
	def.Description += " " + t.calls
	annotations, open := *def.Annotations, true // the servers may reach anything
	annotations.OpenWorldHint = &open
	def.Annotations = &annotations
	return &def
}

// NeedsCode reports whether the tool is part of code mode.
func (t *Tool) NeedsCode() bool { return t.code }

// toolset returns the value of --toolset that enables the tool.
func (t *Tool) toolset() string {
	switch {
	case t.alias, t.volumes:
		return EverySet
	case t.Needs != "" && t.Needs != Sessions:
		return string(t.Set) + "," + string(t.Needs)
	}
	return string(t.Set)
}

// Handlers returns the handlers of the tools that keep accepts, by name; a nil keep
// accepts all. A request without a session gets no progress notifications.
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

// A Call is the context of one call of a handler.
type Call struct {
	Boxes    *box.Manager
	Owner    box.Owner
	Client   *Client         // nil: the client cannot be recognized across calls
	Progress func(box.Chunk) // nil unless the client requested progress
	Links    bool            // whether the client understands links to resources

	progress *progress                                   // nil unless the client requested progress
	byResult bool                                        // the client is asked for approval by results
	expired  error                                       // refuses a request whose program expired before; nil: none did
	behind   string                                      // the box whose parked program refused the call; "" none did
	reserve  func(ctx context.Context, bytes int64) bool // [Deps.Reserve]
	holdCall func(box.Owner) (release func())            // [Deps.Hold]
	holds    []box.Hold                                  // of the boxes that the call uses
	broker   *codemode.Broker                            // nil: the code can call no tools
	run      *codemode.Run                               // answers the calls of the code; nil: none began
	approver *approval.Approver                          // [Deps.Approvals]
	found    target                                      // that the call works in; without a box: none yet
}

// calls returns what answers the calls of code in a box; nil if it can call no tools.
func (c *Call) calls(boxID string) box.ToolCalls {
	if c.broker == nil {
		return nil // not a nil *codemode.Run in an interface
	}
	c.run = c.broker.Begin(codemode.Identity{Owner: string(c.Owner), Box: boxID})
	return c.run
}

type withoutCodeKey struct{}

// WithoutCode returns a context for calls of a client that does not want code mode.
func WithoutCode(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutCodeKey{}, true)
}

// broker returns the broker for a call of an owner, or nil.
func (d *Deps) broker(ctx context.Context, owner box.Owner) *codemode.Broker {
	if d.Code == nil || ctx.Value(withoutCodeKey{}) != nil {
		return nil
	}
	return d.Code(owner)
}

// A Client is one client across its calls; see [box.Client].
type Client = box.Client

type clientKey struct{}

// WithClient returns a context for the calls of one client. Without it, each call is
// from a client of its own.
func WithClient(ctx context.Context, c *Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// seconds converts a timeout argument; 0 is the box's default.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// formatTime formats a time for results.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// describeLoss returns why earlier state of a box is lost ("" if none is), and notes
// for the model. A box that woke from hibernation lost nothing and still gets a note:
// time has passed for its processes.
func describeLoss(hold box.Hold, what string) (reason string, notes []string) {
	reason, notes = describeState(hold, what)
	return reason, append(notes, describeUndelivered(hold, what)...)
}

// describeUndelivered returns the notes about earlier calls whose clients got no answer, in the
// box and, for a new session, in one whose id the client was never told.
func describeUndelivered(hold box.Hold, what string) (notes []string) {
	if i := hold.Undelivered(); i != nil {
		notes = append(notes, explainUndelivered(i, "Calls in this "+what))
	}
	if hold.Created {
		if id, i := hold.Elsewhere(); i != nil {
			notes = append(notes, explainUndelivered(i, "Calls in the session "+id+", whose id no answer has named,"))
		}
	}
	return notes
}

func explainUndelivered(i *box.Undelivered, calls string) string {
	const end = ". To repeat them would make these calls again."
	if i.Changed == "" {
		return calls + " were cut off, the last at " + formatTime(i.At) + ", since the server stopped or their client left: they may have done part of their work, and do not go on."
	}
	if i.Finished {
		return calls + " ran to their end, the last at " + formatTime(i.At) + ", but their client was gone. If you have no result of them: their programs called " + i.Changed + end
	}
	return calls + " were cut off, the last at " + formatTime(i.At) + ", since their client cancelled them or was gone, or the server stopped. Their programs had called " + i.Changed + end
}

// describeState is describeLoss without interrupted calls.
func describeState(hold box.Hold, what string) (reason string, notes []string) {
	if lost := hold.Lost; lost != nil {
		reason, notes = string(lost.Reason), []string{"The earlier " + what + " " + lost.ID + describeEnd(lost) +
			". Its variables and files are gone; this is a new box under the same id."}
		if hold.Woken == nil || !hold.Woken.Behind && hold.Woken.Rescued == nil {
			return reason, notes
		}
	}
	why, more := describeWake(hold, what)
	return cmp.Or(reason, why), append(notes, more...)
}

// describeWake is describeLoss for a box that woke from hibernation.
func describeWake(hold box.Hold, what string) (reason string, notes []string) {
	switch {
	case hold.Woken != nil && hold.Woken.Rescued != nil:
		return rescueReason(hold.Woken.Rescued), []string{hold.Woken.Rescued.Explain()}
	case hold.Woken != nil && hold.Woken.Behind:
		at := formatTime(hold.Woken.Saved)
		cause, note := "the server was killed", "The server was killed while it had this "+what
		if t := hold.Woken.Why; t != nil {
			cause, note = reasons[t.Reason], "This "+what+describeEnd(t)
		}
		return cause + "; what the " + what + " did after " + at + " is lost",
			[]string{note + ". It was woken as it was at " + at + ": what it did after that is lost." + inCallNote(hold.Woken)}
	case hold.Woken != nil:
		return "", []string{"This " + what + " was hibernated at " + formatTime(hold.Woken.Saved) + " and woken: its variables and files are kept." + inCallNote(hold.Woken)}
	}
	return "", nil
}

// inCallNote is a sentence, after a space, about the calls that were in flight when a box was
// written; "" if there were none.
func inCallNote(w *box.Woken) string {
	if !w.InCall {
		return ""
	}
	return " A call was running at that time. Part of it or all may have taken effect, so look before you repeat it."
}

// rescueReason is why a box that was rescued has lost state.
func rescueReason(r *box.Rescue) string { return "memory_not_restored: " + r.Why }

// describeRunLoss is describeLoss with the loss and the notes of a run.
func describeRunLoss(hold box.Hold, res *box.RunResult, what string) (reason string, notes []string) {
	reason, notes = describeState(hold, what)
	if res.Lost != "" {
		if reason == "" && res.Fresh {
			notes = nil // the box woke, but its variables are lost
		}
		reason = res.Lost
	}
	return reason, slices.Concat(notes, describeUndelivered(hold, what), res.Notes)
}

// describeEnd says when and why a box ended.
func describeEnd(t *box.Tombstone) string {
	s := " ended at " + formatTime(t.At) + " (" + reasons[t.Reason] + ")"
	if t.Detail != "" {
		s += ": " + t.Detail
	}
	return s
}

var reasons = map[box.Reason]string{
	box.ReasonStopped:     "it was stopped",
	box.ReasonIdle:        "it was idle for longer than the idle timeout",
	box.ReasonEvicted:     "it made room for another box",
	box.ReasonOOM:         "it went over its memory limit",
	box.ReasonDisk:        "the disk of the server was nearly full",
	box.ReasonCrashed:     "it crashed",
	box.ReasonExited:      "its agent ended",
	box.ReasonShutdown:    "the server was restarted",
	box.ReasonHibernated:  "it was hibernated",
	box.ReasonRolledBack:  "it was rolled back to a snapshot",
	box.ReasonHostRestart: "it was lost with its server",
	box.ReasonUnreadable:  "it could not be woken",
}
