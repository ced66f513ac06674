// Package gateway offers many MCP servers as one: their tools under the names
// server__tool, their prompts alike, their resources under their own addresses. A
// client then needs one entry in its configuration, and each server is started when
// it is first used.
//
// What a server offers is remembered by the hash of its definition, so that a list
// starts nothing; it is asked again when the server is used, and a change is passed
// on to clients.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/offer"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

const (
	// atOnce bounds the servers that are asked what they offer at the same time:
	// each may be a program that has to be installed first.
	atOnce = 4
	// learnTimeout bounds asking one.
	learnTimeout = time.Minute
	// listWait is what a list waits for servers that nothing is known of. Those that
	// take longer are told of by a change of the list.
	listWait = 15 * time.Second
)

// Options configures a [Gateway].
type Options struct {
	// Servers is how to reach them. Its hooks for progress and changed lists are
	// the gateway's.
	Servers mcpkit.Options
	// Offers is where what servers offer is remembered; nil remembers nothing.
	Offers *offer.Store
	Log    *slog.Logger // nil discards
}

// A Gateway stands between clients of one server and many servers. Its methods may
// be called concurrently.
type Gateway struct {
	manager  *mcpkit.Manager
	log      *slog.Logger
	offers   *offer.Store
	ctx      context.Context // ends with Close
	cancel   context.CancelCauseFunc
	tasks    sync.WaitGroup
	slots    chan struct{}
	progress progress
	first    chan struct{} // closed when each server was asked once that nothing was known of

	mu      sync.Mutex
	server  *mcp.Server         // guarded by mu: nil before Register
	offered map[string]*offered // guarded by mu, by server
	names   names               // guarded by mu
}

// offered is what clients are shown of a server.
type offered struct {
	offer.Offer
	asked bool // since this gateway began
}

// New returns a gateway that has not started anything.
func New(o Options) *Gateway {
	g := &Gateway{
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), slots: make(chan struct{}, atOnce), first: make(chan struct{}),
		offered: make(map[string]*offered), names: newNames(),
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.offers = o.Offers
	o.Servers.Hooks.Progress = func(ctx context.Context, server string, p *mcp.ProgressNotificationParams) {
		g.progress.pass(ctx, server, p)
	}
	o.Servers.Hooks.ListChanged = func(_ context.Context, server, _ string) { g.learn(server) }
	g.manager = mcpkit.New(o.Servers)
	return g
}

// Capabilities are those of a server that a gateway is registered with.
func Capabilities() *mcp.ServerCapabilities {
	return &mcp.ServerCapabilities{
		Tools:     &mcp.ToolCapabilities{ListChanged: true},
		Prompts:   &mcp.PromptCapabilities{ListChanged: true},
		Resources: &mcp.ResourceCapabilities{ListChanged: true},
	}
}

// Register has a server offer what is known of the servers, and asks those that
// nothing is known of. It is called once.
func (g *Gateway) Register(s *mcp.Server) {
	g.mu.Lock()
	g.server = s
	g.mu.Unlock()
	known := g.remembered()
	var asked sync.WaitGroup
	for _, def := range g.manager.Config().Servers {
		if def.Disabled {
			continue
		}
		if o := known[def.Hash()]; o.Whole {
			g.show(def.Name, o, false)
		} else {
			asked.Add(1)
			g.learnThen(def.Name, asked.Done)
		}
	}
	g.tasks.Go(func() {
		asked.Wait()
		close(g.first)
	})
}

// Middleware has lists wait for servers that nothing is known of yet.
func (g *Gateway) Middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		wait := strings.HasSuffix(method, "/list")
		if call, ok := req.(*mcp.CallToolRequest); ok && call.Params != nil {
			wait = !g.Offers(call.Params.Name)
		}
		if wait {
			timer := time.NewTimer(listWait)
			defer timer.Stop()
			select {
			case <-g.first:
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		return next(ctx, method, req)
	}
}

// Offers reports whether a tool of that name is offered now.
func (g *Gateway) Offers(tool string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names.has(tool)
}

// Close ends all servers and returns when they are gone.
func (g *Gateway) Close() error {
	g.cancel(errors.New("the gateway is closed"))
	err := g.manager.Close()
	g.tasks.Wait()
	return err
}

func (g *Gateway) remembered() map[string]offer.Offer {
	if g.offers == nil {
		return nil
	}
	known, err := g.offers.All()
	if err != nil {
		g.log.Warn("servers are asked anew what they offer", "err", err)
	}
	return known
}

// learn asks a server in the background what it offers.
func (g *Gateway) learn(server string) { g.learnThen(server, func() {}) }

func (g *Gateway) learnThen(server string, done func()) {
	if g.ctx.Err() != nil {
		done()
		return
	}
	g.tasks.Go(func() {
		defer done()
		select {
		case g.slots <- struct{}{}:
			defer func() { <-g.slots }()
		case <-g.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeoutCause(g.ctx, learnTimeout, fmt.Errorf("no list within %v", learnTimeout))
		defer cancel()
		o, err := g.ask(ctx, server)
		if err != nil {
			g.log.Warn("server of the configuration is not offered", "server", server, "err", err)
			return
		}
		g.show(server, o, true)
		g.remember(ctx, server, o)
	})
}

// ask lists what a server offers. Of what it does not declare it is not asked.
func (g *Gateway) ask(ctx context.Context, server string) (o offer.Offer, err error) {
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
func (g *Gateway) remember(ctx context.Context, server string, o offer.Offer) {
	def := g.manager.Config().Server(server)
	if g.offers == nil || def == nil {
		return
	}
	if err := g.offers.Keep(ctx, def.Hash(), o); err != nil {
		g.log.Warn("what a server offers is forgotten with this gateway", "server", server, "err", err)
	}
}
