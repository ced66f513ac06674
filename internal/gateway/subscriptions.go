package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// maxSubscriptions bounds the resources with subscriptions, of all clients together.
const maxSubscriptions = 1000

// subscriptions are the resources that clients subscribed to, by URI. The gateway
// subscribes to each once.
type subscriptions struct {
	mu    sync.Mutex
	byURI map[string]*subscription // guarded by mu
}

type subscription struct {
	server  string
	clients map[*mcp.ServerSession]bool
}

// subscribe subscribes a client to a resource.
func (g *Gateway) subscribe(ctx context.Context, r *mcp.SubscribeRequest) error {
	uri := r.Params.URI
	servers := g.resourceServers(uri)
	if len(servers) != 1 { // if several have it, the middleware has refused it, or one has just listed it
		return mcp.ResourceNotFoundError(uri)
	}
	server := servers[0]
	g.subscriptions.mu.Lock()
	w := g.subscriptions.byURI[uri]
	full := w == nil && len(g.subscriptions.byURI) >= maxSubscriptions && !g.pruneLocked()
	g.subscriptions.mu.Unlock()
	if full {
		return invalidRequest("%d resources have subscriptions, which is the limit", maxSubscriptions)
	}
	s, err := g.manager.Session(server)
	if err == nil {
		err = s.Subscribe(ctx, uri)
	}
	if err != nil {
		return g.rpcError(server, err)
	}
	g.subscriptions.mu.Lock()
	defer g.subscriptions.mu.Unlock()
	if g.subscriptions.byURI == nil {
		g.subscriptions.byURI = make(map[string]*subscription)
	}
	if w = g.subscriptions.byURI[uri]; w == nil {
		w = &subscription{server: server, clients: make(map[*mcp.ServerSession]bool)}
		g.subscriptions.byURI[uri] = w
	}
	if before := w.server; before != server { // another server has the resource now
		w.server = server
		g.tasks.Go(func() { g.unsubscribeUpstream(g.ctx, before, uri) })
	}
	w.clients[r.Session] = true
	return nil
}

// unsubscribe ends a client's subscription, and the one at the server after the last
// client's. It may be called for a client that is gone.
func (g *Gateway) unsubscribe(ctx context.Context, r *mcp.UnsubscribeRequest) error {
	g.subscriptions.mu.Lock()
	w := g.subscriptions.byURI[r.Params.URI]
	last := false
	if w != nil {
		delete(w.clients, r.Session)
		last = g.dropIfUnusedLocked(r.Params.URI, w)
	}
	g.subscriptions.mu.Unlock()
	if last {
		g.unsubscribeUpstream(context.WithoutCancel(ctx), w.server, r.Params.URI)
	}
	return nil
}

// forwardUpdate notifies subscribed clients of a changed resource.
func (g *Gateway) forwardUpdate(_ context.Context, server, uri string) {
	g.subscriptions.mu.Lock()
	w := g.subscriptions.byURI[uri]
	last := false
	if w != nil && w.server == server {
		w.retain(g.sessions())
		last = g.dropIfUnusedLocked(uri, w)
	}
	g.subscriptions.mu.Unlock()
	switch {
	case w == nil || w.server != server:
	case last:
		g.tasks.Go(func() { g.unsubscribeUpstream(g.ctx, server, uri) })
	default:
		// Only its own log can fail.
		_ = g.server.ResourceUpdated(g.ctx, &mcp.ResourceUpdatedNotificationParams{URI: uri})
	}
}

// pruneLocked removes subscriptions of clients that are gone, since legacy clients do
// not unsubscribe, and reports whether it removed any.
func (g *Gateway) pruneLocked() bool {
	live := g.sessions()
	unused := make(map[string]string) // URI to server
	for uri, w := range g.subscriptions.byURI {
		if w.retain(live); g.dropIfUnusedLocked(uri, w) {
			unused[uri] = w.server
		}
	}
	if len(unused) == 0 {
		return false
	}
	g.tasks.Go(func() {
		for uri, server := range unused {
			g.subscriptions.mu.Lock()
			again := g.subscriptions.byURI[uri] != nil
			g.subscriptions.mu.Unlock()
			if !again && g.ctx.Err() == nil {
				g.unsubscribeUpstream(g.ctx, server, uri)
			}
		}
	})
	return true
}

// sessions returns the sessions of connected clients.
func (g *Gateway) sessions() map[*mcp.ServerSession]bool {
	live := make(map[*mcp.ServerSession]bool)
	for session := range g.server.Sessions() {
		live[session] = true
	}
	return live
}

// retain removes clients that are not in live.
func (s *subscription) retain(live map[*mcp.ServerSession]bool) {
	maps.DeleteFunc(s.clients, func(session *mcp.ServerSession, _ bool) bool { return !live[session] })
}

// dropIfUnusedLocked removes a resource without subscribed clients and reports whether
// it did.
func (g *Gateway) dropIfUnusedLocked(uri string, w *subscription) bool {
	if len(w.clients) > 0 {
		return false
	}
	delete(g.subscriptions.byURI, uri)
	return true
}

func (g *Gateway) unsubscribeUpstream(ctx context.Context, server, uri string) {
	ctx, cancel := context.WithTimeoutCause(ctx, notifyTimeout, fmt.Errorf("no answer within %v", notifyTimeout))
	defer cancel()
	s, err := g.manager.Session(server)
	if err == nil {
		err = s.Unsubscribe(ctx, uri)
	}
	if err != nil {
		g.log.Debug("unsubscribe from a resource", logkey.Server, server, logkey.Error, err)
	}
}

// complete forwards a completion request to the server of the prompt or template.
func (g *Gateway) complete(ctx context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	server, ref, ok := g.resolveRef(r.Params.Ref)
	if !ok {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "no such prompt or resource template"}
	}
	params := &mcp.CompleteParams{Argument: r.Params.Argument, Context: r.Params.Context, Ref: ref}
	s, err := g.manager.Session(server)
	if err != nil {
		return nil, g.rpcError(server, err)
	}
	res, err := s.Complete(ctx, params)
	if err != nil {
		return nil, g.rpcError(server, err)
	}
	return res, nil
}

// resolveRef returns the server of a prompt or template, and the reference with the
// server's own name.
func (g *Gateway) resolveRef(ref *mcp.CompleteReference) (server string, own *mcp.CompleteReference, ok bool) {
	copied := *ref
	g.mu.Lock()
	defer g.mu.Unlock()
	switch ref.Type {
	case "ref/prompt":
		var of [2]string
		if of, ok = g.prompts.original[ref.Name]; ok {
			server, copied.Name = of[0], of[1]
		}
	case "ref/resource":
		server = cmp.Or(g.templates.soleServer(ref.URI), g.resources.soleServer(ref.URI))
		ok = server != ""
	}
	return server, &copied, ok
}
