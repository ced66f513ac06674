// Package codemode lets code in a box call the tools of other MCP servers. A Broker
// checks each call against the policy, the tool's schema and the budgets, makes it, and
// shapes the result for a program. Credentials and connections stay on the host.
//
// The box is hostile: everything in a call is bounded and checked, and the log has
// names that the servers' lists contain, never text of a call.
//
// Where to look: run.go makes a call, policy.go (with pattern.go) and budget.go decide about
// it, memory.go bounds the memory of all calls, and package approval asks a person.
// arguments.go checks what goes in, against the schemas of declaration.go; violation.go says where
// it does not fit. result.go shapes what comes out, errors.go has the failures, and changes.go
// the calls that may have changed something. servers.go and pool.go keep the connections, and
// local.go adds the tools of this program. names.go, signature.go (with leaf.go), describe.go
// and stubs.go show the tools to programs; search.go finds them, and prefers those that
// deprecated.go does not recognize as deprecated.
package codemode

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/loglimit"
)

// A Tool is a tool of a server, as programs see it.
type Tool struct {
	Server     string
	Definition string // hash of the server's definition; "": the tool is of this process
	*mcp.Tool

	// ambiguousServer and ambiguousName say that the identifier of the server or tool does
	// not mean this one; see Broker.tools.
	ambiguousServer, ambiguousName bool
}

// Servers are the MCP servers whose tools programs may call. Its methods are called
// concurrently.
type Servers interface {
	// Names returns the names of all servers, those without tools included.
	Names() []string
	// Tools returns the tools of a server that can be called now; of all servers for "".
	Tools(ctx context.Context, server string) []Tool
	// Unavailable returns why a tool that is not listed, or a server without tools,
	// cannot be used, as an *Error with what the user can do, or nil if it does not
	// exist. tool may be "".
	Unavailable(ctx context.Context, server, tool string) *Error
	// Withheld returns the names of the tools of a server that are not listed although it has
	// them, such as changed ones. Unavailable has the reason of each.
	Withheld(ctx context.Context, server string) []string
	// Hold says that a program runs that has called tools, and may call others until release
	// is called: servers should not end between its calls.
	Hold() (release func())
	// Call calls a tool as Tools returned it, with a JSON object. If the tool or its server has
	// another definition by the time the request would be sent, the error is an *Error with the
	// code Changed. An error means that there is no result; an *Error keeps its code.
	Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error)
}

// Options configure a Broker.
type Options struct {
	Servers Servers
	Policy  Policy
	// Approve asks a person about a call for which the policy says Ask; nil refuses it. An
	// *Error reaches the program as it is. The wait counts against no budget.
	Approve func(ctx context.Context, r Request) (approved bool, err error)
	// Called observes each call of a tool before the server gets it; nil: none. Its context
	// is that of the run, as for Approve. It must not block.
	Called func(ctx context.Context, t Tool)
	// RunBudget bounds one run, BoxBudget all runs of a box within an hour, and OwnerBudget
	// all runs of an owner within an hour. A field that is zero has the default.
	RunBudget, BoxBudget, OwnerBudget Budget
	// Memory bounds the memory of calls; nil means a bound of this broker's own.
	Memory *Memory
	// MaxImages bounds the images that the calls of one run may return, 0 means 10;
	// MaxImageSize bounds each in bytes, 0 means 5 MiB.
	MaxImages, MaxImageSize int
	Log                     *slog.Logger // nil discards
}

// A Request is a call that waits for approval.
type Request struct {
	Identity
	Server, Tool string
	Version      string               // identifies the definitions of the server and the tool
	Arguments    json.RawMessage      // an object, see Canonical
	Declared     map[string]bool      // the arguments in the tool's schema; nil if it names none; read-only
	Description  string               // of the tool, by its server
	Annotations  *mcp.ToolAnnotations // may be nil
}

// Identity says on whose behalf a run calls.
type Identity struct {
	Owner string // from authentication; "" is the local user
	Box   string // id of the session or context
}

// boxesKept bounds the boxes whose use of the hour is remembered; a box that calls no
// tools takes no place.
const boxesKept = 10_000

// ownersKept bounds the owners of whom the same is remembered.
const ownersKept = 10_000

// refusalBurst is the number of log lines that an owner gets at once about calls that were
// not made. It is more than the calls that a box makes at a time.
const refusalBurst = 20

// ownerUse is what the runs of an owner use together.
type ownerUse struct {
	usage   *usage
	refused *loglimit.Limit // log lines about calls that were not made
}

// A Broker makes the calls of programs. Its methods may be called concurrently.
type Broker struct {
	o      Options
	policy atomic.Pointer[Policy]
	log    *slog.Logger

	declarations declarations

	mu     sync.Mutex
	boxes  *lru.Cache[Identity, *usage]  // guarded by mu
	owners *lru.Cache[string, *ownerUse] // guarded by mu
}

// New returns a Broker.
func New(o Options) *Broker {
	boxes, err := lru.New[Identity, *usage](boxesKept)
	owners, ownersErr := lru.New[string, *ownerUse](ownersKept)
	if err := cmp.Or(err, ownersErr); err != nil {
		panic(err) // of a positive size: cannot fail
	}
	o.RunBudget = o.RunBudget.withDefaults(Budget{Calls: 200, Bytes: 64 << 20, Time: 5 * time.Minute})
	o.BoxBudget = o.BoxBudget.withDefaults(Budget{Calls: 2000, Bytes: 256 << 20, Time: 30 * time.Minute})
	// Boxes of an owner overlap, so that time does not bound them together.
	o.OwnerBudget = o.OwnerBudget.withDefaults(Budget{Calls: 20_000, Bytes: 2560 << 20, Time: 24 * time.Hour})
	if o.Memory == nil {
		o.Memory = NewMemory()
	}
	o.MaxImages, o.MaxImageSize = cmp.Or(o.MaxImages, 10), cmp.Or(o.MaxImageSize, 5<<20)
	b := &Broker{o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), boxes: boxes, owners: owners}
	b.policy.Store(&o.Policy)
	return b
}

// SetPolicy replaces the policy for calls from now on.
func (b *Broker) SetPolicy(p Policy) { b.policy.Store(&p) }
