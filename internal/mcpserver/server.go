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
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/tools"
)

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
	caps  mcp.ServerCapabilities // that the server declares
	calls calls
	names []string // of the tools, sorted
	alias alias

	stateful      http.Handler
	stateless     http.Handler
	statelessJSON http.Handler

	handlers map[string]mcp.ToolHandler // of direct calls, by name
	versions []string                   // of the protocol, that the SDK takes
	self     mcp.Meta                   // of the results of direct calls
	call     mcp.MethodHandler          // does a direct call

	faults      faults
	connections connections
	sessions    sessions
	closing     gauge // sessions that the SDK is about to forget
	piped       gauge // sessions over stdio
	posts       gauge // requests over HTTP
	streams     gauge // over HTTP, that only listen
	replay      *replay

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
	s := &Server{opts: opts, log: opts.Log, alias: newAlias(), stopping: make(chan struct{})}
	if opts.Extend.Capabilities != nil {
		s.caps = *opts.Extend.Capabilities
	}
	if s.caps.Tools == nil {
		s.caps.Tools = &mcp.ToolCapabilities{}
	}
	s.connections = connections{limit: opts.Limits.Connections, idle: make(map[net.Conn]time.Time)}
	s.sessions = sessions{limit: opts.Limits.Sessions, idle: opts.Limits.SessionIdle, live: make(map[string]*mcpSession), close: s.closeSession}
	sdk := &mcp.ServerOptions{
		Instructions: opts.Instructions,
		Capabilities: &s.caps,
		Logger:       slog.New(quiet{opts.Log.Handler()}),
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.CacheScope = "private"
		},
	}
	if opts.Extend.Configure != nil {
		opts.Extend.Configure(sdk)
	}
	s.mcp = mcp.NewServer(&mcp.Implementation{
		Name: opts.Name, Title: title, Version: opts.Version,
	}, sdk)
	s.openTools()
	if opts.Extend.Server != nil {
		opts.Extend.Server(s.mcp)
	}
	middleware := slices.Concat([]mcp.Middleware{s.recover}, opts.Extend.Middleware,
		[]mcp.Middleware{s.observe, s.open, s.register, s.code, s.gate})
	s.mcp.AddReceivingMiddleware(slices.Concat([]mcp.Middleware{s.disguise}, middleware)...)
	s.openDirect(middleware)
	s.openHTTP()
	return s
}

// openTools tells the SDK of the tools, and notes which calls can do without it.
func (s *Server) openTools() {
	s.handlers = tools.Handlers(s.opts.Tools, s.keep)
	for _, t := range tools.All() {
		if h := s.handlers[t.Def.Name]; h != nil {
			s.mcp.AddTool(t.Def, h)
			s.names = append(s.names, t.Def.Name)
		}
	}
	for _, t := range s.opts.Extend.Tools {
		s.mcp.AddTool(t.Def, t.Handler)
		s.names = append(s.names, t.Def.Name)
		if t.Direct {
			s.handlers[t.Def.Name] = t.Handler
		}
	}
	slices.Sort(s.names)
}

func (s *Server) keep(t *tools.Tool) bool {
	return t.Offered(s.opts.Toolsets)
}

// Sessions returns how many MCP sessions are open.
func (s *Server) Sessions() int { return s.sessions.count() + s.piped.value() }
