package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// Options configures a [Server]. The zero value of every field means its
// default.
type Options struct {
	Name         string // of the server, in the protocol; "glovebox"
	Version      string // "dev"
	Instructions string // for the model, which clients pass on; [tools.Instructions]

	Tools    tools.Deps
	Toolsets []string // the sets to offer; none means all
	// NoSnapshots leaves the set of snapshots out of all sets: the engine has none.
	NoSnapshots bool
	// NoHibernation and Image are for the descriptions of tools, as in tools.Offer.
	NoHibernation, Image bool
	// CommandsOnly reports whether boxes have no interpreter, as far as that is known. It is
	// asked whenever tools are listed. nil: they have one.
	CommandsOnly func() bool
	// Network says what the boxes of an owner can reach. It is asked whenever tools are listed.
	// nil: no box has a network.
	Network func(box.Owner) tools.Network
	// Templates returns the named templates that an owner may use. It is asked whenever tools
	// are listed. nil: there are none.
	Templates func(box.Owner) []tools.Template
	Volumes   bool // boxes have volumes; else it is asked of Tools.Boxes, if that is there

	Path           string   // the endpoint; "/mcp"
	CORS           bool     // answer browsers of any origin
	AllowedOrigins []string // scheme://host[:port] in lower case: may ask, and read the answers; those on loopback may ask
	AllowedHosts   []string // Host headers in lower case, with or without port, besides those of loopback and the host of PublicURL; none: also those that docs/security.md names

	// Auth authenticates requests; nil: without authentication, all boxes are the local
	// user's. The Server does not close it.
	Auth *auth.Verifier
	// PublicURL is the endpoint's URL for clients behind a proxy; "" takes it from the
	// request.
	PublicURL string
	// BehindProxy trusts X-Forwarded-For and X-Request-Id.
	BehindProxy bool
	// Audit gets a record for each tool call, and for requests refused for their token, scope
	// or session or at a limit; nil: no audit log.
	Audit *slog.Logger

	Limits Limits

	// Status adds members to the status as JSON, Page to the page; both may be nil.
	Status func(context.Context) map[string]any
	Page   func(context.Context, *statuspage.Page)
	// Ready returns why the server is not ready for new clients, in public sentences; none
	// if it is. May be nil: it is.
	Ready func() []string
	// Ending is called when the server begins to stop, or its client over standard
	// input has ended the input, before running calls are waited for. It may be
	// called again and must return at once. May be nil.
	Ending func()
	// Metrics answers /metrics; nil: there is none.
	Metrics http.Handler
	// Observe is called after each request that reached a handler, Refused with the HTTP
	// status of each other request; both may be nil.
	Observe func(Observation)
	Refused func(status int)
	// Trace starts a span for each request that reaches a handler; nil: none.
	Trace *tracing.Tracer
	// Peers returns the servers that share boxes with this one, once they are known. Requests
	// of their sessions, and calls into their boxes, are forwarded to them. nil: there are
	// none.
	Peers func() *Peers
	// PeersTLS is for connections to them; nil: without TLS.
	PeersTLS *tls.Config
	// Extend adds to the catalogue.
	Extend Extension

	Log *slog.Logger // nil discards

	plainInstructions string // Instructions without code mode
}

// Limits bounds the resources of clients. The defaults are for a few agents of one
// person, with many windows.
type Limits struct {
	Body        int64         // bytes of one HTTP request; 32 MiB, in which an upload of 23 MiB fits as base64
	Line        int           // bytes of one stdio line; 64 MiB, in which it fits with every character escaped
	Connections int           // of HTTP; 100
	Sessions    int           // open over HTTP; 1000: clients begin one for each conversation, and few end them
	Calls       int           // at once over HTTP, each of a batch counted; 100, one for each connection
	Streams     int           // GET and subscription streams over HTTP; 80, so that calls get through
	SessionIdle time.Duration // until an MCP session is forgotten; 1 h, longer than a person is away for lunch
	Header      time.Duration // for a client to send the header of a request; 10 s, it is a packet or two
	Upload      time.Duration // for it to send the body; 2 min, in which 32 MiB pass a line of 2.5 Mbit/s
	Heartbeat   time.Duration // between comments on a silent stream; 15 s: proxies cut what is silent for 30 or 60
	Write       time.Duration // for a client to take what is written, 256 KiB at a time; 30 s
	Grace       time.Duration // for calls in flight at the end; 30 s
	Answers     int64         // bytes of answers that clients have not read yet, small ones not counted; 128 MiB, five of the largest downloads
	Replay      int           // bytes kept per session for resuming; 1 MiB, more than most answers have
	Tasks       tasks.Limits

	// Of each owner, or of each address without authentication; 0: none.
	Rate         float64 // requests a second
	Burst        int     // requests at once, however long nothing came; Rate if 0, and at least 1
	OwnerCalls   int     // calls of tools under way
	OwnerStreams int     // GET and subscription streams
}

func (l Limits) withDefaults() Limits {
	l.Body = cmp.Or(l.Body, 32<<20)
	l.Line = cmp.Or(l.Line, 64<<20)
	l.Connections = cmp.Or(l.Connections, 100)
	l.Sessions = cmp.Or(l.Sessions, 1000)
	l.Calls = cmp.Or(l.Calls, 100)
	l.Streams = cmp.Or(l.Streams, 80)
	l.SessionIdle = cmp.Or(l.SessionIdle, time.Hour)
	l.Header = cmp.Or(l.Header, 10*time.Second)
	l.Upload = cmp.Or(l.Upload, 2*time.Minute)
	l.Heartbeat = cmp.Or(l.Heartbeat, 15*time.Second)
	l.Write = cmp.Or(l.Write, 30*time.Second)
	l.Grace = cmp.Or(l.Grace, 30*time.Second)
	l.Answers = cmp.Or(l.Answers, 128<<20)
	l.Replay = cmp.Or(l.Replay, 1<<20)
	l.Burst = cmp.Or(l.Burst, max(int(l.Rate), 1))
	return l
}

// An Observation is the outcome of a request.
type Observation struct {
	Method   string
	Tool     string // of tools/call; only names of tools that the server has
	Direct   bool   // served without the SDK
	Duration time.Duration
	Code     int64 // the JSON-RPC error code, 0 for a result
	ToolErr  bool  // a result that says isError
}
