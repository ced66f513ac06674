// Package mcpserver serves the tool catalogue over MCP: Streamable HTTP in
// both eras of the protocol on one path, and stdio. The protocol itself is the
// SDK's; this package is what the SDK leaves to its user: who may knock, what
// a refusal looks like, what happens on shutdown, and that no client and no
// tool can take the process down.
//
// It knows nothing about sandboxes beyond handing them to the catalogue.
package mcpserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
	"github.com/glovebox-dev/glovebox/internal/mcpserver/stdio"
	"github.com/glovebox-dev/glovebox/internal/tools"
)

// Options configures a [Server]. The zero value of every field means its
// default.
type Options struct {
	Name         string // how the server calls itself; "glovebox"
	Version      string // "dev"
	Instructions string // what a client tells its model about the server

	Tools    tools.Deps
	Toolsets []string // the sets to offer; none means all

	Path           string   // the endpoint; "/mcp"
	CORS           bool     // answer browsers of any origin
	AllowedOrigins []string // origins allowed besides those on loopback
	AllowedHosts   []string // Host headers allowed besides those on loopback, with or without port; none allows any on other addresses

	Limits Limits

	// Status adds members to the status page; may be nil.
	Status func(context.Context) map[string]any
	// Observe is told of every request that reached a handler; may be nil.
	Observe func(Observation)
	// Extend may add to the server before it serves; may be nil.
	Extend func(*mcp.Server)
	// Capabilities declares more than tools; may be nil. A modern request
	// for a family that is not declared is refused.
	Capabilities *mcp.ServerCapabilities

	Log *slog.Logger // nil discards
}

// Limits bounds what clients may use.
type Limits struct {
	Body        int64         // bytes of one HTTP request; 32 MiB
	Line        int           // bytes of one stdio line; 64 MiB
	SessionIdle time.Duration // until an MCP session is forgotten; 1 h
	Heartbeat   time.Duration // between comments on a silent stream; 15 s
	Grace       time.Duration // for calls in flight at the end; 30 s
	Replay      int           // bytes kept per session for resuming; 1 MiB
}

func (l Limits) withDefaults() Limits {
	def(&l.Body, 32<<20)
	def(&l.Line, 64<<20)
	def(&l.SessionIdle, time.Hour)
	def(&l.Heartbeat, 15*time.Second)
	def(&l.Grace, 30*time.Second)
	def(&l.Replay, 1<<20)
	return l
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// An Observation is what happened to one request.
type Observation struct {
	Method   string
	Tool     string // of tools/call; only names of the catalogue
	Duration time.Duration
	Code     int64 // the JSON-RPC error code, 0 for a result
	ToolErr  bool  // a result that says isError
}

const title = "Glovebox"

const instructions = `Glovebox gives you isolated computers to run code in; nothing you do there can harm the user's machine.
execute_code / execute_command: pass the session_id of an answer to continue in the same box, with its variables and files; leave it out for a new box.
create_context / run_code: the same for named interpreters; call create_context once, then run_code with its context_id.
snapshot_context and snapshot_session before something risky, then restore_context and restore_session to roll back instead of rebuilding; fork_context and fork_session to try two ways at once.
upload_file, download_file and list_files move files in and out; paths are below the home directory of the box.
A failing program is an ordinary answer: read stderr, correct the code and run it again.`

// A Server serves one catalogue over any number of transports at once.
type Server struct {
	opts  Options
	log   *slog.Logger
	mcp   *mcp.Server
	calls calls
	names []string // of the tools, sorted

	stateful      http.Handler
	stateless     http.Handler
	statelessJSON http.Handler

	handlers map[string]mcp.ToolHandler // of direct calls, by name
	versions []string                   // of the protocol, that the SDK takes
	self     mcp.Meta                   // of the results of direct calls
	call     mcp.MethodHandler          // does a direct call

	posts    gauge
	draining atomic.Bool
	stopping chan struct{} // closed by the first Shutdown
	stop     sync.Once

	mu   sync.Mutex
	http []*http.Server // guarded by mu
}

// New returns a server that does not listen yet.
func New(opts Options) *Server {
	// The SDK's compatibility switches would let whoever sets the
	// environment change what goes over the wire.
	_ = os.Unsetenv("MCPGODEBUG")

	def(&opts.Name, "glovebox")
	def(&opts.Version, "dev")
	def(&opts.Path, "/mcp")
	def(&opts.Instructions, instructions)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Limits = opts.Limits.withDefaults()
	if opts.Capabilities == nil {
		opts.Capabilities = &mcp.ServerCapabilities{}
	}
	if opts.Capabilities.Tools == nil {
		opts.Capabilities.Tools = &mcp.ToolCapabilities{}
	}
	s := &Server{opts: opts, log: opts.Log, stopping: make(chan struct{})}
	s.mcp = mcp.NewServer(&mcp.Implementation{
		Name: opts.Name, Title: title, Version: opts.Version,
	}, &mcp.ServerOptions{
		Instructions: opts.Instructions,
		Capabilities: opts.Capabilities,
		Logger:       slog.New(quiet{opts.Log.Handler()}),
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.CacheScope = "private"
		},
	})
	tools.Register(s.mcp, opts.Tools, s.keep)
	for _, t := range tools.All() {
		if s.keep(&t) {
			s.names = append(s.names, t.Def.Name)
		}
	}
	slices.Sort(s.names)
	if opts.Extend != nil {
		opts.Extend(s.mcp)
	}
	middleware := []mcp.Middleware{s.recover, s.observe, s.register, s.code, s.gate}
	s.mcp.AddReceivingMiddleware(middleware...)
	s.openDirect(middleware)
	s.openHTTP()
	return s
}

func (s *Server) keep(t *tools.Tool) bool {
	return t.Offered(s.opts.Toolsets)
}

// ServeStdio serves one session over in and out and returns when the input
// ends and every answer is written, or when ctx ends. Only messages of the
// protocol are written to out.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	// A write to a closed standard output would otherwise kill the process.
	// Being told, unlike ignoring, is not inherited by children.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	stop := make(chan struct{})
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.stopping:
		case <-finished:
		}
		close(stop)
	}()
	var session *mcp.ServerSession
	abort := func() {
		s.calls.cancel(func(of mcp.Session) bool { return of == session }, errShutdown)
	}
	connected := make(chan struct{})
	session, err := s.mcp.Connect(context.WithoutCancel(ctx), &stdio.Transport{
		In: in, Out: out, MaxLine: s.opts.Limits.Line, Log: s.log,
		Stop: stop, StopGrace: s.opts.Limits.Grace,
		Abort: func() { <-connected; abort() },
	}, nil)
	close(connected)
	if err != nil {
		return err
	}
	err = session.Wait()
	for _, gone := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE} {
		if errors.Is(err, gone) {
			return nil // a client that is gone is the end of a session, not a fault
		}
	}
	return err
}

// Sessions returns how many MCP sessions are open.
func (s *Server) Sessions() int {
	n := 0
	for range s.mcp.Sessions() {
		n++
	}
	return n
}

// modern reports whether a request claims a revision without sessions.
func modern(req mcp.Request) bool {
	p := req.GetParams()
	if p == nil {
		return false
	}
	version, _ := p.GetMeta()[mcp.MetaKeyProtocolVersion].(string)
	return version >= envelope.Modern
}

// quiet demotes the SDK's notes: it logs every session at info and every
// refusal at error, which in a server are events of a client's making.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }
func (q quiet) WithGroup(n string) slog.Handler      { return quiet{q.Handler.WithGroup(n)} }
