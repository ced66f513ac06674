// Package gateway combines several MCP servers into one: their tools and prompts under
// the names server__tool, their resources under their own URIs. A client needs one
// entry in its configuration.
//
// Lists of tools, prompts and resources are cached by the hash of the server's
// definition. A server without a cached list starts at once to be listed, any other one
// when it is first used. A cached list is refreshed when its server
// is used, and clients are notified of changes.
//
// All clients share one connection to a server. Its requests for input (sampling,
// elicitation, roots), progress and log messages during a call go to the client that
// made the call, and to no other. Legacy servers do not say which call a request
// belongs to: see callSerializer.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/gateway/pin"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

const (
	// maxConcurrentLists bounds the servers that are listed at the same time, and those
	// that are started because npx or the like may install them first.
	maxConcurrentLists = 4
	// listTimeout bounds listing one server, without an installation.
	listTimeout = time.Minute
	// retryAfter is the minimum time between attempts to list a server that failed.
	// Clients' list requests trigger them.
	retryAfter = 30 * time.Second
	// retryCallAfter is the same for a program that calls a tool of the server: its user may
	// just have started the server.
	retryCallAfter = 2 * time.Second
	// relistInterval is the pause before listing a server again that changed while it
	// was listed; it limits servers that send changes without end.
	relistInterval = time.Second
	// listWait bounds the wait of a list request for servers without a cached listing.
	// Clients get slower servers by a list_changed notification.
	listWait = 15 * time.Second
	// partWait bounds the wait of a program for all servers if one of them has tools: the program
	// hears which servers are still starting.
	partWait = 5 * time.Second
)

// Options configures a [Gateway].
type Options struct {
	// Servers configures the connections. The gateway sets its hooks, except for
	// Untrusted, and Log, which gets all log messages of servers.
	Servers mcpkit.Options
	// SingleClient says that the gateway never has more than one client, as over
	// standard input and output. Then servers without configured roots get the
	// client's, and the client gets log messages outside of calls.
	SingleClient bool
	// Listings caches servers' lists; nil caches nothing.
	Listings *listing.Cache
	// Pins remembers the tools of servers; a tool whose definition has changed since is
	// withheld from clients. Nil withholds none.
	Pins *pin.Store
	// ReviewCommand returns the command that shows the changed tools of a server and
	// accepts them; nil means "glovebox mcp trust --tools SERVER".
	ReviewCommand func(server string) string
	// UnpinCommand returns the command that accepts all changes of a server's tools; nil
	// means "glovebox mcp trust --no-pin SERVER".
	UnpinCommand func(server string) string
	// TrustCommand returns the command that trusts a server; nil means "glovebox mcp
	// trust SERVER".
	TrustCommand func(server string) string
	// ToolsCommand returns the command that connects to a server, with the cause if that
	// fails; nil means "glovebox mcp tools SERVER".
	ToolsCommand func(server string) string
	// ToolsOnly offers clients no prompts and resources of servers. Servers are asked to list
	// them all the same: other programs use the cached listings.
	ToolsOnly bool
	// HideHost says that programs act for somebody else than the operator of this machine.
	// Texts for programs then name no paths, commands and errors of the host: they refer
	// to the operator, and the log has these.
	HideHost bool
	Log      *slog.Logger // nil discards
}

// A Gateway presents many servers as one to its clients. Its methods may be called
// concurrently.
type Gateway struct {
	manager       *mcpkit.Manager
	log           *slog.Logger
	listings      *listing.Cache
	ctx           context.Context // ends with Close
	cancel        context.CancelCauseFunc
	tasks         sync.WaitGroup
	listSlots     chan struct{}
	startSlots    chan struct{} // for servers that their commands may download first: others do not wait for them
	listTimeout   time.Duration
	singleClient  bool
	trustCommand  func(server string) string
	unpinCommand  func(server string) string
	reviewCommand func(server string) string
	toolsCommand  func(server string) string
	toolsOnly     bool
	hideHost      bool
	failedCalls   rate.Sometimes // for the log: a program can repeat a call
	pins          *pin.Store
	hashes        map[string]string // of the definitions, by server
	sole          soleClient
	serializer    callSerializer
	pending       pendingInputs
	progress      progress
	elicitations  urlElicitations
	subscriptions subscriptions
	server        *mcp.Server              // set by Register
	firstListed   chan struct{}            // closed when servers without a cached listing have been listed once
	haveTools     chan struct{}            // closed when a server has tools or firstListed is closed
	gotTools      func()                   // closes haveTools; may be called repeatedly
	listedOnce    map[string]chan struct{} // set by Register: of each of these servers, closed when it has been listed once
	registered    time.Time                // set by Register

	mu         sync.Mutex
	published  map[string]*published        // guarded by mu, by server
	refreshing map[string]*refreshState     // guarded by mu: of servers being listed
	failed     map[string]failure           // guarded by mu: servers that could not be listed or used
	tasksOnly  map[string][]string          // guarded by mu: tools that only run as tasks, by server
	names      names                        // guarded by mu: of tools
	prompts    names                        // guarded by mu
	resources  claims[mcp.Resource]         // guarded by mu
	templates  claims[mcp.ResourceTemplate] // guarded by mu
	compiled   []template                   // guarded by mu: the templates; never changed in place
	level      mcp.LoggingLevel             // guarded by mu: the most verbose of all clients
	sentLevels map[string]mcp.LoggingLevel  // guarded by mu: sent to servers, by server
	starting   map[string]*start            // guarded by mu: by server
	retrying   map[string]chan struct{}     // guarded by mu: servers that relist lists, each until its channel is closed
}

// published is the listing of a server that clients see.
type published struct {
	listing.Entry
	listed   listing.Entry // as the server listed it
	withheld []string      // names of the tools that clients do not see: see compared
	unpinned bool          // whether the tools could not be compared
	fresh    bool          // listed by this gateway, not only cached
}

// A failure is why and when a server could not be listed or used.
type failure struct {
	at         time.Time
	text       string
	forProgram string // see textFor
	refused    bool
	changed    bool // refused, because it has changed since the user trusted it
}

// due reports whether to try the server again.
func (f failure) due() bool { return f.dueAfter(retryAfter) }

// dueAfter is due with another minimum time between attempts.
func (f failure) dueAfter(pause time.Duration) bool { return f.refused || time.Since(f.at) >= pause }

// New returns a gateway. It starts no server.
func New(o Options) *Gateway {
	var servers []string
	if o.Servers.Config != nil {
		for _, def := range o.Servers.Config.Servers {
			servers = append(servers, def.Name)
		}
	}
	g := &Gateway{
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), listSlots: make(chan struct{}, maxConcurrentLists), startSlots: make(chan struct{}, maxConcurrentLists), listTimeout: listTimeout, firstListed: make(chan struct{}), haveTools: make(chan struct{}),
		singleClient: o.SingleClient, failedCalls: rate.Sometimes{First: 5, Interval: 10 * time.Second}, sole: soleClient{known: make(chan struct{})},
		published: make(map[string]*published), refreshing: make(map[string]*refreshState), failed: make(map[string]failure), tasksOnly: make(map[string][]string), names: newNames(servers), prompts: newNames(servers),
		resources: make(claims[mcp.Resource]), templates: make(claims[mcp.ResourceTemplate]), sentLevels: make(map[string]mcp.LoggingLevel), starting: make(map[string]*start), retrying: make(map[string]chan struct{}),
	}
	g.gotTools = sync.OnceFunc(func() { close(g.haveTools) })
	if g.trustCommand = o.TrustCommand; g.trustCommand == nil {
		g.trustCommand = func(server string) string { return "glovebox mcp trust " + server }
	}
	if g.reviewCommand = o.ReviewCommand; g.reviewCommand == nil {
		g.reviewCommand = func(server string) string { return "glovebox mcp trust --tools " + server }
	}
	if g.unpinCommand = o.UnpinCommand; g.unpinCommand == nil {
		g.unpinCommand = func(server string) string { return "glovebox mcp trust --no-pin " + server }
	}
	if g.toolsCommand = o.ToolsCommand; g.toolsCommand == nil {
		g.toolsCommand = func(server string) string { return "glovebox mcp tools " + server }
	}
	g.pins, g.hideHost, g.toolsOnly = o.Pins, o.HideHost, o.ToolsOnly
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.listings = o.Listings
	hear := o.Servers.Hooks.Log
	o.Servers.Hooks = mcpkit.Hooks{
		Sampling: g.sample, Elicit: g.elicit, ElicitURL: true, Roots: g.roots, Untrusted: o.Servers.Hooks.Untrusted,
		Log: func(ctx context.Context, server string, m *mcp.LoggingMessageParams) {
			if hear != nil {
				hear(ctx, server, m)
			}
			g.forwardLog(ctx, server, m)
		},
		Progress: func(_ context.Context, server string, p *mcp.ProgressNotificationParams) {
			g.progress.forward(server, p)
		},
		ListChanged:         func(_ context.Context, server, _ string) { g.refresh(server) },
		ResourceUpdated:     g.forwardUpdate,
		ElicitationComplete: func(_ context.Context, server, id string) { g.elicitations.complete(g.ctx, server, id) },
	}
	g.manager = mcpkit.New(o.Servers)
	g.hashes = make(map[string]string)
	for _, def := range g.manager.Config().Servers {
		g.hashes[def.Name] = def.Hash()
	}
	return g
}

// Capabilities returns the capabilities of a server that a gateway registers with.
func Capabilities() *mcp.ServerCapabilities {
	return &mcp.ServerCapabilities{
		Tools:     &mcp.ToolCapabilities{ListChanged: true},
		Prompts:   &mcp.PromptCapabilities{ListChanged: true},
		Resources: &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true},
		Logging:   &mcp.LoggingCapabilities{}, Completions: &mcp.CompletionCapabilities{},
	}
}

// Configure sets the handlers in the options of the server that Register will get.
func (g *Gateway) Configure(o *mcp.ServerOptions) {
	o.SubscribeHandler, o.UnsubscribeHandler, o.CompletionHandler = g.subscribe, g.unsubscribe, g.complete
}

// Register adds the cached listings to s and lists the servers without one. It leaves
// out servers that would be refused, even with a cached listing. It must be called
// once.
func (g *Gateway) Register(s *mcp.Server) {
	g.server = s
	cached := g.cachedListings()
	g.registered, g.listedOnce = time.Now(), make(map[string]chan struct{})
	var listed sync.WaitGroup
	for _, def := range g.manager.Config().Servers {
		if def.Disabled {
			continue
		}
		entry, seen := cached[def.Hash()]
		allowed := g.allowed(def.Name)
		if seen && allowed {
			g.offer(g.ctx, def.Name, entry, false) // another command may have cached a changed tool
		}
		if !entry.Complete || !allowed {
			listed.Add(1)
			once := make(chan struct{})
			g.listedOnce[def.Name] = once
			g.refreshThen(def.Name, func() {
				close(once)
				listed.Done()
			})
		}
	}
	g.tasks.Go(func() {
		listed.Wait()
		close(g.firstListed)
		g.gotTools()
	})
}

// Middleware makes list requests wait for servers without a cached listing, and records
// client messages that concern all servers.
func (g *Gateway) Middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		g.recordNotice(method, req)
		list := strings.HasSuffix(method, "/list")
		if list {
			g.recompare(ctx)
			g.retry()
		}
		uris, err := requestedResources(req)
		if err != nil {
			return nil, err
		}
		wait := list || !g.resolves(ctx, req, uris)
		if wait {
			g.awaitFirst(ctx)
		}
		if err := g.ambiguous(ctx, uris); err != nil {
			return nil, err
		}
		if r, ok := req.(*mcp.CallToolRequest); ok && !g.resolves(ctx, req, uris) {
			// A tool result, not an error: models read results.
			if why := g.whyUnavailable(ctx, r.Params.Name); why != "" {
				return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: why}}}, nil
			}
		}
		return next(ctx, method, req)
	}
}

// resolves reports whether the gateway has the tool, prompt or resources of a request
// now. It returns early if ctx ends.
func (g *Gateway) resolves(ctx context.Context, req mcp.Request, uris []string) bool {
	switch r := req.(type) {
	case *mcp.CallToolRequest:
		return r.Params == nil || g.HasTool(r.Params.Name)
	case *mcp.GetPromptRequest:
		return r.Params == nil || g.hasPrompt(r.Params.Name)
	case *mcp.CompleteRequest:
		if r.Params == nil || r.Params.Ref == nil {
			return true
		}
		_, _, ok := g.resolveRef(r.Params.Ref)
		return ok
	}
	return !slices.ContainsFunc(uris, func(uri string) bool { return ctx.Err() != nil || len(g.resourceServers(uri)) == 0 })
}

func (g *Gateway) hasPrompt(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.prompts.has(name)
}

// recordNotice records messages of the client that concern all servers.
func (g *Gateway) recordNotice(method string, req mcp.Request) {
	switch r := req.(type) {
	case *mcp.ServerRequest[*mcp.SetLoggingLevelParams]:
		if r.Params != nil {
			g.lowerLevel(r.Params.Level)
		}
	case *mcp.InitializedRequest:
		if g.singleClient {
			g.sole.set(r.Session)
		}
	case *mcp.RootsListChangedRequest:
		if !g.singleClient {
			return
		}
		for _, def := range g.manager.Config().Servers {
			if s, err := g.manager.Session(def.Name); err == nil {
				g.tasks.Go(func() {
					if err := s.RootsChanged(g.ctx); err != nil {
						g.log.Debug("notify server of changed roots", logkey.Server, s.Name(), logkey.Error, err)
					}
				})
			}
		}
	default:
		if g.singleClient && method != "initialize" && revision.IsModernRequest(req) {
			g.sole.set(nil)
		}
	}
}

// HasTool reports whether the gateway has a tool of that name now.
func (g *Gateway) HasTool(tool string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names.has(tool)
}

// ToolNames returns the names of all tools, sorted.
func (g *Gateway) ToolNames() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.names.original))
}

// Close stops all servers and waits for them.
func (g *Gateway) Close() error {
	g.cancel(errors.New("the gateway is closed"))
	err := g.manager.Close()
	g.tasks.Wait()
	return err
}
