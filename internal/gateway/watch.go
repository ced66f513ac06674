package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"
)

// maxWatched bounds the resources that clients together are told the changes of.
const maxWatched = 1000

// watched are the resources that clients want to be told the changes of, by address.
// Servers are asked for each once.
type watched struct {
	mu sync.Mutex
	by map[string]*watch // guarded by mu
}

type watch struct {
	server  string
	clients map[*mcp.ServerSession]bool
}

// subscribe has a client told when a resource changes.
func (g *Gateway) subscribe(ctx context.Context, r *mcp.SubscribeRequest) error {
	uri := r.Params.URI
	server, ok := g.owner(uri)
	if !ok {
		return mcp.ResourceNotFoundError(uri)
	}
	g.watched.mu.Lock()
	w := g.watched.by[uri]
	full := w == nil && len(g.watched.by) >= maxWatched && !g.sweepLocked()
	g.watched.mu.Unlock()
	if full {
		return wrong("%d resources are watched already", maxWatched)
	}
	s, err := g.manager.Session(server)
	if err == nil {
		err = s.Subscribe(ctx, uri)
	}
	if err != nil {
		return g.refusal(server, err)
	}
	g.watched.mu.Lock()
	defer g.watched.mu.Unlock()
	if g.watched.by == nil {
		g.watched.by = make(map[string]*watch)
	}
	if w = g.watched.by[uri]; w == nil {
		w = &watch{server: server, clients: make(map[*mcp.ServerSession]bool)}
		g.watched.by[uri] = w
	}
	if before := w.server; before != server { // it has become this one's meanwhile
		w.server = server
		g.tasks.Go(func() { g.unwatch(g.ctx, before, uri) })
	}
	w.clients[r.Session] = true
	return nil
}

// unsubscribe ends that. The server is told when nobody is left; it may be for a
// client that is gone already.
func (g *Gateway) unsubscribe(ctx context.Context, r *mcp.UnsubscribeRequest) error {
	g.watched.mu.Lock()
	w := g.watched.by[r.Params.URI]
	last := false
	if w != nil {
		delete(w.clients, r.Session)
		last = g.abandonedLocked(r.Params.URI, w)
	}
	g.watched.mu.Unlock()
	if last {
		g.unwatch(context.WithoutCancel(ctx), w.server, r.Params.URI)
	}
	return nil
}

// updated tells who wants to know.
func (g *Gateway) updated(_ context.Context, server, uri string) {
	g.watched.mu.Lock()
	w := g.watched.by[uri]
	last := false
	if w != nil && w.server == server {
		w.keep(g.sessions())
		last = g.abandonedLocked(uri, w)
	}
	g.watched.mu.Unlock()
	switch {
	case w == nil || w.server != server:
	case last:
		g.tasks.Go(func() { g.unwatch(g.ctx, server, uri) })
	default:
		// Only its own log can fail.
		_ = g.server.ResourceUpdated(g.ctx, &mcp.ResourceUpdatedNotificationParams{URI: uri})
	}
}

// sweepLocked forgets clients that are gone, which those of older revisions do not
// say, and reports whether that made room.
func (g *Gateway) sweepLocked() bool {
	live := g.sessions()
	left := make(map[string]string) // address to server
	for uri, w := range g.watched.by {
		if w.keep(live); g.abandonedLocked(uri, w) {
			left[uri] = w.server
		}
	}
	if len(left) == 0 {
		return false
	}
	g.tasks.Go(func() {
		for uri, server := range left {
			g.watched.mu.Lock()
			again := g.watched.by[uri] != nil
			g.watched.mu.Unlock()
			if !again && g.ctx.Err() == nil {
				g.unwatch(g.ctx, server, uri)
			}
		}
	})
	return true
}

// sessions are those of the clients that are there.
func (g *Gateway) sessions() map[*mcp.ServerSession]bool {
	live := make(map[*mcp.ServerSession]bool)
	for session := range g.server.Sessions() {
		live[session] = true
	}
	return live
}

// keep forgets clients that are not among the living.
func (w *watch) keep(live map[*mcp.ServerSession]bool) {
	maps.DeleteFunc(w.clients, func(session *mcp.ServerSession, _ bool) bool { return !live[session] })
}

// abandonedLocked forgets a resource that nobody wants to know of.
func (g *Gateway) abandonedLocked(uri string, w *watch) bool {
	if len(w.clients) > 0 {
		return false
	}
	delete(g.watched.by, uri)
	return true
}

func (g *Gateway) unwatch(ctx context.Context, server, uri string) {
	ctx, cancel := context.WithTimeoutCause(ctx, tellWait, fmt.Errorf("no answer within %v", tellWait))
	defer cancel()
	s, err := g.manager.Session(server)
	if err == nil {
		err = s.Unsubscribe(ctx, uri)
	}
	if err != nil {
		g.log.Debug("unsubscribe from a resource", "server", server, "err", err)
	}
}

// owner is the server that a resource is read from: that which lists it, or else
// that of the first template which it fits, in the order in which they are tried.
func (g *Gateway) owner(uri string) (server string, ok bool) {
	g.mu.Lock()
	server, ok = g.resources[uri]
	templates := maps.Clone(g.templates)
	g.mu.Unlock()
	if ok {
		return server, true
	}
	for _, template := range slices.Sorted(maps.Keys(templates)) {
		if t, err := uritemplate.New(template); err == nil && t.Regexp().MatchString(uri) {
			return templates[template], true
		}
	}
	return "", false
}

// complete asks the server of a prompt or template for completions.
func (g *Gateway) complete(ctx context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	server, ref, ok := g.referred(r.Params.Ref)
	if !ok {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "there is no prompt or template of that name"}
	}
	params := &mcp.CompleteParams{Argument: r.Params.Argument, Context: r.Params.Context, Ref: ref}
	s, err := g.manager.Session(server)
	if err != nil {
		return nil, g.refusal(server, err)
	}
	res, err := s.Complete(ctx, params)
	if err != nil {
		return nil, g.refusal(server, err)
	}
	return res, nil
}

// referred is the server whose prompt or template is meant, and what that calls it.
func (g *Gateway) referred(ref *mcp.CompleteReference) (server string, own *mcp.CompleteReference, ok bool) {
	copied := *ref
	g.mu.Lock()
	defer g.mu.Unlock()
	switch ref.Type {
	case "ref/prompt":
		var of [2]string
		if of, ok = g.prompts.to[ref.Name]; ok {
			server, copied.Name = of[0], of[1]
		}
	case "ref/resource":
		if server, ok = g.templates[ref.URI]; !ok {
			server, ok = g.resources[ref.URI]
		}
	}
	return server, &copied, ok
}
