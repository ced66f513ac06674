// Package server serves the tool catalogue over MCP: Streamable HTTP on one path, and stdio, each in
// both eras of the protocol: the revisions with sessions, to 2025-11-25, and those without, from
// 2026-07-28. The protocol itself is the
// SDK's; this package has the transports, access control, limits, shutdown, and
// the recovery from panics, so that no client and no tool ends the process.
//
// It hands boxes to the catalogue, and forwards the calls into those that another server has.
//
// Where to look:
//
//   - Checks: front.go checks every request, with accept.go, origin.go, cors.go, headers.go and
//     refuse.go. auth.go authenticates by package auth, and caller.go has the result.
//   - Requests of the endpoint: post.go, get.go and delete.go. body.go reads a body, classify.go
//     parses its envelopes, route.go chooses how it is served, and exchange.go serves it.
//   - Calls: calls.go has those in flight, direct.go those that bypass the SDK's session, and
//     answer.go delivers their answers. conn.go connects the others to the SDK. Package tasks
//     has the calls that continue without their request.
//   - Cancelling: exchange.go gets the message by which older clients cancel a call (intercept),
//     and conn.go cancels it, with early_cancel.go for one that is not there yet. Newer clients
//     end the request. calls.go cancels for the end of a session or of the server.
//   - Sessions: session.go has them, stream.go the streams of their messages, response.go writes
//     a stream to a client, and replay.go keeps events for clients that return.
//   - Limits: rate.go, admission.go, connections.go, and budget.go, by which owners share.
//     acktimeout_linux.go and acktimeout_other.go detect dead clients.
//   - Middleware: middleware.go recovers, observes and gives errors their codes, with trace.go
//     and faults.go. reject_unknown.go refuses unknown tools. codemode.go, commands.go,
//     network.go, templates.go and extension.go adapt the catalogue to its client.
//   - Audit: audit.go writes the lines about calls; internal/cli (egress.go) writes those about
//     connections of boxes, and internal/codemode those about tools and approvals.
//   - The server: options.go configures it, serve.go runs and stops it, status.go shows its
//     state, stdio.go is the other transport. quiet.go lowers the level of the SDK's log, and
//     waitcounter.go has the counters that a stop waits for.
//   - Other servers that share the boxes (package fleet): forward.go decides which requests go
//     to them, forwarding.go sends them, and lookups.go bounds how often clients make this
//     server ask for them.
package server

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/loglimit"
	_ "github.com/glovebox-dev/glovebox/internal/server/switches" // before the SDK reads them
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

const title = "Glovebox"

// A Server serves one catalogue over any number of transports at once.
type Server struct {
	opts                Options
	log                 *slog.Logger
	mcp                 *mcp.Server
	caps                mcp.ServerCapabilities // that the server declares
	calls               calls
	offer               tools.Offer                 // of the catalogue
	names               []string                    // of the tools, sorted
	readOnly            map[string]bool             // tools without effects
	withoutCode         map[string]*mcp.Tool        // definitions that differ without code mode; nil of its own tools
	rate                *rates                      // of all requests, by owner or address
	unauthenticatedRate *rates                      // of requests without a valid token, by address
	refusedLines        *loglimit.Table[refusalKey] // of the audit log
	quota               budget                      // calls of tools that run

	handlers map[string]mcp.ToolHandler  // of direct calls, by name
	headers  map[string][]argumentHeader // by tool, of those that never change
	versions []string                    // of the protocol, that the SDK supports
	self     mcp.Meta                    // of the results of direct calls
	call     mcp.MethodHandler           // serves direct calls
	tasks    *tasks.Tasks

	faults        faults
	connections   connections
	sessions      sessions
	closing       waitCounter // sessions of the SDK that are closing
	stdioSessions waitCounter // sessions over stdio
	posts         waitCounter // POSTs with requests that are being served
	inFlight      budget      // requests of the endpoint, from before their bodies are read
	requests      budget      // over HTTP, without an answer
	polls         budget      // requests about tasks
	bodies        budget      // bytes of bodies in memory, except small ones
	answers       budget      // bytes of answers that are being written, except small ones
	warnUnread    rate.Sometimes
	streams       budget // GET and subscription streams over HTTP
	replay        *replay
	forwards      *http.Transport // to other servers
	watchEvery    time.Duration   // see the constant
	unseen        rate.Sometimes
	lookups       *lookups // of other servers, which clients name

	draining atomic.Bool
	stopping chan struct{} // closed by the first Shutdown
	stop     sync.Once

	mu   sync.Mutex
	http []*http.Server // guarded by mu
}

// New returns a server that does not listen yet.
func New(opts Options) *Server {
	opts.Name = cmp.Or(opts.Name, "glovebox")
	opts.Version = cmp.Or(opts.Version, "dev")
	opts.Path = cmp.Or(opts.Path, "/mcp")
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	offer := tools.Offer{
		Sets: opts.Toolsets, Volumes: opts.Volumes, Code: opts.Tools.Code != nil,
		NoSnapshots: opts.NoSnapshots, NoHibernation: opts.NoHibernation, Image: opts.Image,
	}
	if m := opts.Tools.Boxes; m != nil {
		offer.Volumes = len(m.Volumes()) > 0
	}
	opts.plainInstructions = opts.Instructions
	if opts.Instructions == "" {
		plain := offer
		plain.Code = false
		opts.Instructions, opts.plainInstructions = tools.Instructions(offer)+opts.Extend.Instructions, tools.Instructions(plain)+opts.Extend.Instructions
	}
	opts.Limits = opts.Limits.withDefaults()
	s := &Server{opts: opts, offer: offer, log: opts.Log, stopping: make(chan struct{}), readOnly: make(map[string]bool), withoutCode: make(map[string]*mcp.Tool)}
	s.rate = newRates(opts.Limits.Rate, opts.Limits.Burst)
	s.unauthenticatedRate = newRates(unauthenticatedRate, unauthenticatedBurst)
	s.lookups = newLookups()
	s.refusedLines = loglimit.NewTable[refusalKey](refusedLineBurst, maxRates)
	s.openBudgets()
	s.versions = mcp.SupportedProtocolVersions()
	s.headers = make(map[string][]argumentHeader)
	s.replay = newReplay(opts.Limits.Replay)
	s.caps = capabilities(opts.Extend.Capabilities)
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
	tasked := s.openTools()
	if opts.Extend.Server != nil {
		opts.Extend.Server(s.mcp)
	}
	tasks.Register(s.mcp)
	s.openMiddleware(tasked)
	s.openForwarding()
	return s
}

// capabilities returns those of the server, beside its own ones for extensions.
func capabilities(own *mcp.ServerCapabilities) (caps mcp.ServerCapabilities) {
	if own != nil {
		caps = *own
	}
	if caps.Tools == nil {
		caps.Tools = &mcp.ToolCapabilities{}
	}
	// There are no prompts; an empty list says so.
	if caps.Prompts == nil {
		caps.Prompts = &mcp.PromptCapabilities{}
	}
	if caps.Resources == nil {
		caps.Resources = &mcp.ResourceCapabilities{}
	}
	caps.Extensions = maps.Clone(caps.Extensions)
	caps.AddExtension(tasks.Extension, nil)
	return caps
}

// openMiddleware sets what a message passes on its way to the tools and back, and the tasks, of
// which tasked has the policy of each tool.
func (s *Server) openMiddleware(tasked map[string]tasks.Policy) {
	opts := &s.opts
	// A call that becomes a task is observed, registered and checked when it runs.
	run := []mcp.Middleware{s.observe, s.authorize, s.trackSessions, s.register, s.code, s.rejectUnknown}
	if opts.Templates != nil { // before the network, which exchanges schemas
		run = slices.Insert(run, len(run)-1, s.templates)
	}
	if opts.Network != nil { // before code mode, which exchanges definitions
		run = slices.Insert(run, len(run)-1, s.describeNetwork)
	}
	if opts.CommandsOnly != nil {
		run = slices.Insert(run, len(run)-1, s.commandsOnly)
	}
	if opts.Tools.Code != nil {
		run = slices.Insert(run, len(run)-1, s.codeMode)
	}
	s.tasks = tasks.New(tasks.Options{
		Policies: tasked, Call: chain(slices.Concat([]mcp.Middleware{endWithTask, s.recover, s.registerTask}, run), s.callHandler),
		Limits: opts.Limits.Tasks, Log: opts.Log, Server: s.serverName,
	})
	run = slices.Insert(run, len(run)-1, s.tasks.Serve)
	all := slices.Concat([]mcp.Middleware{s.recover}, opts.Extend.Middleware, []mcp.Middleware{s.tasks.Create}, run, []mcp.Middleware{s.boundState})
	s.mcp.AddReceivingMiddleware(slices.Concat([]mcp.Middleware{s.attach}, all)...)
	s.mcp.AddSendingMiddleware(tools.KeepAnswer)
	s.openDirect(all)
}

// openBudgets sets the limits. One owner may use half of each, where owners are known, and of
// requests a quarter more than its calls.
func (s *Server) openBudgets() {
	l := s.opts.Limits
	half := func(all int64) int64 {
		if s.opts.Auth == nil {
			return 0
		}
		return max(all/2, 1)
	}
	s.quota.each = int64(l.OwnerCalls)
	s.streams.all, s.streams.each = int64(l.Streams), int64(l.OwnerStreams)
	s.requests.all = int64(l.Calls)
	if l.OwnerCalls > 0 {
		// A quarter more than calls of tools, so that an owner at that limit can still list and ping.
		s.requests.each = min(int64(l.OwnerCalls)+(int64(l.OwnerCalls)+3)/4, s.requests.all)
	}
	s.polls.all, s.polls.each = s.requests.all, s.requests.each
	s.bodies.all = largeBodies * l.Body
	s.bodies.each = half(s.bodies.all)
	s.answers.all = l.Answers
	s.answers.each = half(s.answers.all)
	s.warnUnread.Interval = warnInterval
	s.connections = connections{limit: l.Connections, log: s.log}
	// With HTTP/2 there may be more requests in flight than connections: those that the
	// other limits allow, and bodies that are being read.
	s.inFlight.all = int64(l.Connections) + s.requests.all + s.polls.all + s.streams.all
	if s.opts.BehindProxy {
		// The connections carry requests of many owners. Each request in flight takes one.
		s.inFlight.each = half(int64(l.Connections))
	} else {
		s.inFlight.each = half(s.inFlight.all)
		s.connections.each = int(half(int64(l.Connections)))
	}
	s.connections.init()
	s.sessions = sessions{
		limit: l.Sessions, each: int(half(int64(l.Sessions))), idle: l.SessionIdle,
		live: make(map[string]*mcpSession), opening: make(map[account]int), close: s.closeSession,
	}
}

// chain puts middleware around a handler, the first outermost.
func chain(middleware []mcp.Middleware, handler mcp.MethodHandler) mcp.MethodHandler {
	for _, m := range slices.Backward(middleware) {
		handler = m(handler)
	}
	return handler
}

// openTools registers the tools with the SDK, and the handlers of direct calls. It
// returns the policies by which calls become tasks.
func (s *Server) openTools() map[string]tasks.Policy {
	tasked := make(map[string]tasks.Policy)
	s.opts.Tools.Reserve, s.opts.Tools.Fits, s.opts.Tools.Hold = s.reserve, s.fits, s.holdCall
	s.handlers = tools.Handlers(s.opts.Tools, s.keep)
	for _, t := range tools.All() {
		if h := s.handlers[t.Def.Name]; h != nil {
			def := t.Definition(s.offer)
			s.mcp.AddTool(def, h)
			s.addName(t.Def)
			switch {
			case t.NeedsCode():
				s.withoutCode[def.Name] = nil
				s.readOnly[def.Name] = false // they may start servers
			case s.offer.Code:
				plain := s.offer
				plain.Code = false
				s.withoutCode[def.Name] = t.Definition(plain)
			}
			if t.Long {
				tasked[t.Def.Name] = tasks.Policy{}
			}
		}
	}
	if s.handlers[tools.DownloadFile] != nil {
		s.mcp.AddResourceTemplate(tools.FileResources(s.opts.Tools))
	}
	for _, t := range s.opts.Extend.Tools {
		s.mcp.AddTool(t.Def, t.Handler)
		s.addName(t.Def)
		if !t.Direct {
			continue
		}
		s.handlers[t.Def.Name] = t.Handler
		if t.Task != nil {
			tasked[t.Def.Name] = *t.Task
		}
	}
	slices.Sort(s.names)
	return tasked
}

func (s *Server) addName(def *mcp.Tool) {
	s.names = append(s.names, def.Name)
	s.headers[def.Name] = headersOf(def.InputSchema)
	// A tool of the open world sends its arguments to somebody, who may charge for it.
	hints := def.Annotations
	s.readOnly[def.Name] = hints != nil && hints.ReadOnlyHint && hints.OpenWorldHint != nil && !*hints.OpenWorldHint
}

func (s *Server) keep(t *tools.Tool) bool {
	return !s.opts.Extend.Alone && t.In(s.offer)
}

// Sessions returns how many MCP sessions are open.
func (s *Server) Sessions() int { return s.sessions.count() + s.stdioSessions.value() }
