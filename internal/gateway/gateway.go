// Package gateway offers many MCP servers as one: their tools under the names
// server__tool, their prompts alike, their resources under their own addresses. A
// client then needs one entry in its configuration, and each server is started when
// it is first used.
//
// What a server offers is remembered by the hash of its definition, so that a list
// starts nothing; it is asked again when the server is used, and a change is passed
// on to clients.
//
// All clients share one connection to a server. What it asks during a call (for a
// model's words, for the user's, for roots) is put to the client that made the call,
// and so are progress and log messages; no other client sees any of it. Older servers
// do not say which call they ask about: see lines.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

const (
	// atOnce bounds the servers that are asked what they offer at the same time:
	// each may be a program that has to be installed first.
	atOnce = 4
	// learnTimeout bounds asking one.
	learnTimeout = time.Minute
	// retryAfter is the time after which a server that could not be asked is asked
	// again when a client asks for a list: its user may have allowed it meanwhile,
	// or its package be installed.
	retryAfter = 30 * time.Second
	// againAfter is the time after which a server is asked again that has changed
	// while it was asked: it may change as often as it likes.
	againAfter = time.Second
	// listWait is what a list waits for servers that nothing is known of. Those that
	// take longer are told of by a change of the list.
	listWait = 15 * time.Second
)

// Options configures a [Gateway].
type Options struct {
	// Servers is how to reach them. Its hooks are the gateway's, but for Untrusted,
	// and Log, which hears all that servers log.
	Servers mcpkit.Options
	// Alone says that the gateway has one client and will have no other, as over
	// standard input and output: then its roots are those of all servers that the
	// configuration names none for, and log messages outside of calls are its too.
	Alone bool
	// Offers is where what servers offer is remembered; nil remembers nothing.
	Offers *listing.Store
	// TrustLine is the command with which the user allows a server; nil means
	// "glovebox mcp trust SERVER".
	TrustLine func(server string) string
	Log       *slog.Logger // nil discards
}

// A Gateway stands between clients of one server and many servers. Its methods may
// be called concurrently.
type Gateway struct {
	manager  *mcpkit.Manager
	log      *slog.Logger
	offers   *listing.Store
	ctx      context.Context // ends with Close
	cancel   context.CancelCauseFunc
	tasks    sync.WaitGroup
	slots    chan struct{}
	alone    bool
	allow    func(server string) string
	only     only
	lines    lines
	parked   parked
	progress progress
	pages    pages
	watched  watched
	server   *mcp.Server   // set by Register, before anything is asked
	first    chan struct{} // closed when each server was asked once that nothing was known of

	mu        sync.Mutex
	offered   map[string]*offered         // guarded by mu, by server
	asking    map[string]bool             // guarded by mu: the servers that are asked now; true if once more after that
	failed    map[string]failure          // guarded by mu: servers that could not be asked
	tasksOnly map[string][]string         // guarded by mu: tools that run as tasks only, by server
	names     names                       // guarded by mu: of tools
	prompts   names                       // guarded by mu
	resources map[string]string           // guarded by mu: servers by address
	templates map[string]string           // guarded by mu: servers by template
	level     mcp.LoggingLevel            // guarded by mu: the most verbose that a client has asked for
	told      map[string]mcp.LoggingLevel // guarded by mu: what servers were told, by server
}

// offered is what clients are shown of a server.
type offered struct {
	listing.Offer
	asked bool // since this gateway began
}

// A failure says why and when a server could not be asked what it offers.
type failure struct {
	at      time.Time
	text    string
	refused bool
}

// due reports whether to ask the server again.
func (f failure) due() bool { return f.refused || time.Since(f.at) >= retryAfter }

// New returns a gateway that has not started anything.
func New(o Options) *Gateway {
	g := &Gateway{
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), slots: make(chan struct{}, atOnce), first: make(chan struct{}),
		alone: o.Alone, only: only{met: make(chan struct{})},
		offered: make(map[string]*offered), asking: make(map[string]bool), failed: make(map[string]failure), tasksOnly: make(map[string][]string), names: newNames(), prompts: newNames(),
		resources: make(map[string]string), templates: make(map[string]string), told: make(map[string]mcp.LoggingLevel),
	}
	if g.allow = o.TrustLine; g.allow == nil {
		g.allow = func(server string) string { return "glovebox mcp trust " + server }
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.offers = o.Offers
	hear := o.Servers.Hooks.Log
	o.Servers.Hooks = mcpkit.Hooks{
		Sampling: g.sample, Elicit: g.elicit, ElicitURL: true, Roots: g.roots, Untrusted: o.Servers.Hooks.Untrusted,
		Log: func(ctx context.Context, server string, m *mcp.LoggingMessageParams) {
			if hear != nil {
				hear(ctx, server, m)
			}
			g.logged(ctx, server, m)
		},
		Progress:            func(_ context.Context, server string, p *mcp.ProgressNotificationParams) { g.progress.pass(server, p) },
		ListChanged:         func(_ context.Context, server, _ string) { g.learn(server) },
		ResourceUpdated:     g.updated,
		ElicitationComplete: func(_ context.Context, server, id string) { g.pages.done(g.ctx, server, id) },
	}
	g.manager = mcpkit.New(o.Servers)
	return g
}

// Capabilities are those of a server that a gateway is registered with.
func Capabilities() *mcp.ServerCapabilities {
	return &mcp.ServerCapabilities{
		Tools:     &mcp.ToolCapabilities{ListChanged: true},
		Prompts:   &mcp.PromptCapabilities{ListChanged: true},
		Resources: &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true},
		Logging:   &mcp.LoggingCapabilities{}, Completions: &mcp.CompletionCapabilities{},
	}
}

// Configure sets the handlers of a server that the gateway will be registered with.
func (g *Gateway) Configure(o *mcp.ServerOptions) {
	o.SubscribeHandler, o.UnsubscribeHandler, o.CompletionHandler = g.subscribe, g.unsubscribe, g.complete
}

// Register has a server offer what is known of the servers, and asks those that
// nothing is known of. A server that would be refused is not offered, also if what it
// offers is remembered. It is called once.
func (g *Gateway) Register(s *mcp.Server) {
	g.server = s
	known := g.remembered()
	var asked sync.WaitGroup
	for _, def := range g.manager.Config().Servers {
		if def.Disabled {
			continue
		}
		o, seen := known[def.Hash()]
		allowed := g.allowed(def.Name)
		if seen && allowed {
			g.show(def.Name, o, false)
		}
		if !o.Whole || !allowed {
			asked.Add(1)
			g.learnThen(def.Name, asked.Done)
		}
	}
	g.tasks.Go(func() {
		asked.Wait()
		close(g.first)
	})
}

// Middleware has lists wait for servers that nothing is known of yet, and notes what
// clients say that is for all servers.
func (g *Gateway) Middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		g.note(method, req)
		list := strings.HasSuffix(method, "/list")
		if list {
			g.retry()
		}
		wait := list || !g.knows(req)
		if wait {
			timer := time.NewTimer(listWait)
			defer timer.Stop()
			select {
			case <-g.first:
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if r, ok := req.(*mcp.CallToolRequest); ok && !g.knows(req) {
			// What the model should read is a result.
			if why := g.absent(ctx, r.Params.Name); why != "" {
				return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: why}}}, nil
			}
		}
		return next(ctx, method, req)
	}
}

// knows reports whether what a request asks for is offered now.
func (g *Gateway) knows(req mcp.Request) bool {
	switch r := req.(type) {
	case *mcp.CallToolRequest:
		return r.Params == nil || g.Offers(r.Params.Name)
	case *mcp.GetPromptRequest:
		return r.Params == nil || g.hasPrompt(r.Params.Name)
	case *mcp.ReadResourceRequest:
		return r.Params == nil || g.hasResource(r.Params.URI)
	case *mcp.SubscribeRequest:
		return r.Params == nil || g.hasResource(r.Params.URI)
	case *mcp.SubscriptionsListenRequest:
		return r.Params == nil || r.Params.Notifications == nil ||
			!slices.ContainsFunc(r.Params.Notifications.ResourceSubscriptions, func(uri string) bool { return !g.hasResource(uri) })
	case *mcp.CompleteRequest:
		if r.Params == nil || r.Params.Ref == nil {
			return true
		}
		_, _, ok := g.referred(r.Params.Ref)
		return ok
	}
	return true
}

func (g *Gateway) hasResource(uri string) bool {
	_, ok := g.owner(uri)
	return ok
}

func (g *Gateway) hasPrompt(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.prompts.has(name)
}

// note notes what a client says that is for all servers.
func (g *Gateway) note(method string, req mcp.Request) {
	switch r := req.(type) {
	case *mcp.ServerRequest[*mcp.SetLoggingLevelParams]:
		if r.Params != nil {
			g.hear(r.Params.Level)
		}
	case *mcp.InitializedRequest:
		if g.alone {
			g.only.is(r.Session)
		}
	case *mcp.RootsListChangedRequest:
		if !g.alone {
			return
		}
		for _, def := range g.manager.Config().Servers {
			if s, err := g.manager.Session(def.Name); err == nil {
				g.tasks.Go(func() {
					if err := s.RootsChanged(g.ctx); err != nil {
						g.log.Debug("tell a server that the roots changed", "server", s.Name(), "err", err)
					}
				})
			}
		}
	default:
		if g.alone && method != "initialize" && modernRequest(req) {
			g.only.is(nil)
		}
	}
}

// Offers reports whether a tool of that name is offered now.
func (g *Gateway) Offers(tool string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names.has(tool)
}

// Names are the tools that are offered now, sorted.
func (g *Gateway) Names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.names.to))
}

// Close ends all servers and returns when they are gone.
func (g *Gateway) Close() error {
	g.cancel(errors.New("the gateway is closed"))
	err := g.manager.Close()
	g.tasks.Wait()
	return err
}

func (g *Gateway) remembered() map[string]listing.Offer {
	if g.offers == nil {
		return nil
	}
	known, err := g.offers.All()
	if err != nil {
		g.log.Warn("servers are asked anew what they offer", "err", err)
	}
	return known
}

// learn asks a server in the background what it offers. One that is being asked is
// asked once more, however often that is wanted meanwhile.
func (g *Gateway) learn(server string) { g.learnThen(server, func() {}) }

func (g *Gateway) learnThen(server string, done func()) {
	g.mu.Lock()
	_, busy := g.asking[server]
	g.asking[server] = busy
	g.mu.Unlock()
	if busy || g.ctx.Err() != nil {
		done()
		return
	}
	g.tasks.Go(func() {
		g.learnOnce(server)
		done()
		for g.again(server) {
			g.learnOnce(server)
		}
	})
}

// again reports, after a while, whether a server is to be asked once more.
func (g *Gateway) again(server string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.asking[server] {
		delete(g.asking, server)
		return false
	}
	g.mu.Unlock()
	timer := time.NewTimer(againAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.ctx.Done():
	}
	g.mu.Lock()
	g.asking[server] = false
	return g.ctx.Err() == nil
}

func (g *Gateway) learnOnce(server string) {
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	case <-g.ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeoutCause(g.ctx, learnTimeout, fmt.Errorf("no list within %v", learnTimeout))
	defer cancel()
	o, err := g.list(ctx, server)
	if err != nil {
		g.fail(server, err)
		return
	}
	g.mu.Lock()
	delete(g.failed, server)
	g.mu.Unlock()
	g.show(server, o, true)
	g.remember(ctx, server, o)
}

// retry asks servers again that could not be asked, and those that were refused as
// soon as they are allowed.
func (g *Gateway) retry() {
	var again []string
	g.mu.Lock()
	for server, f := range g.failed {
		if f.due() {
			again = append(again, server)
		}
	}
	g.mu.Unlock()
	for _, server := range again {
		if g.allowed(server) {
			g.learn(server)
		}
	}
}

// allowed reports whether a connection to a server would be tried.
func (g *Gateway) allowed(server string) bool {
	s, err := g.manager.Session(server)
	return err == nil && s.Allowed(g.ctx) == nil
}

// refused reports whether an error says that a server may not be used before the user
// allows it. A name that cannot be looked up, or a redirect, is no such thing.
func refused(err error) bool {
	if r, ok := errors.AsType[*outbound.Refusal](err); ok {
		return r.Reason != outbound.Unresolved && r.Reason != outbound.Redirected
	}
	return errors.Is(err, mcpkit.ErrUntrusted)
}

// fail notes that a server could not be asked or used. One that was refused is offered
// no longer: its tools could be listed and never called.
func (g *Gateway) fail(server string, err error) {
	if g.ctx.Err() != nil {
		return
	}
	now := failure{time.Now(), err.Error(), refused(err)}
	g.mu.Lock()
	before := g.failed[server]
	g.failed[server] = now
	g.mu.Unlock()
	if now.refused {
		g.show(server, listing.Offer{}, false)
	}
	switch {
	case now.text == before.text:
	case now.refused:
		g.log.Warn("server is not offered before you allow it", "server", server, "err", err, "type", g.allow(server))
	default:
		g.log.Warn("server of the configuration is not offered", "server", server, "err", err)
	}
}

// list asks a server what it offers. Of what it does not declare it is not asked.
func (g *Gateway) list(ctx context.Context, server string) (o listing.Offer, err error) {
	s, err := g.manager.Session(server)
	if err != nil {
		return o, err
	}
	info, err := s.Initialize(ctx)
	if err != nil {
		return o, err
	}
	o.Whole = true
	caps := info.Capabilities
	if caps == nil {
		caps = &mcp.ServerCapabilities{}
	}
	if caps.Tools != nil {
		o.Tools, err = s.Tools(ctx)
	}
	if caps.Prompts != nil && err == nil {
		o.Prompts, err = s.Prompts(ctx)
	}
	if caps.Resources != nil && err == nil {
		if o.Resources, err = s.Resources(ctx); err == nil {
			o.Templates, err = s.ResourceTemplates(ctx)
			if missing(err) { // many declare resources and know no templates
				err = nil
			}
		}
	}
	return o, err
}

// missing reports whether the server does not know a method.
func missing(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == jsonrpc.CodeMethodNotFound
}

// remember keeps what a server offers for the next gateway.
func (g *Gateway) remember(ctx context.Context, server string, o listing.Offer) {
	def := g.manager.Config().Server(server)
	if g.offers == nil || def == nil {
		return
	}
	if err := g.offers.Keep(ctx, def.Hash(), o); err != nil {
		g.log.Warn("what a server offers is forgotten with this gateway", "server", server, "err", err)
	}
}
