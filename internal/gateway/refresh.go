package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

func (g *Gateway) cachedListings() map[string]listing.Entry {
	if g.listings == nil {
		return nil
	}
	known, err := g.listings.All()
	if err != nil {
		g.log.Warn("cached server listings not used", logkey.Error, err)
	}
	return known
}

// A refreshState is that of a server whose listing is being refreshed.
type refreshState struct {
	again bool     // list once more
	done  []func() // to call when the next attempt ends
}

// refresh lists a server in the background. If the server is being listed, it is listed
// once more afterwards, however often refresh was called meanwhile.
func (g *Gateway) refresh(server string) { g.refreshThen(server, nil) }

// refreshThen is refresh; it calls done, if not nil, when the next attempt ends, which may
// have begun before.
func (g *Gateway) refreshThen(server string, done func()) {
	g.mu.Lock()
	state, busy := g.refreshing[server]
	switch {
	case g.ctx.Err() != nil:
		g.mu.Unlock()
		if done != nil {
			done()
		}
		return
	case busy:
		state.again = true
	default:
		state = new(refreshState)
		g.refreshing[server] = state
	}
	if done != nil {
		state.done = append(state.done, done)
	}
	g.mu.Unlock()
	if busy {
		return
	}
	g.tasks.Go(func() {
		for g.ctx.Err() == nil {
			g.refreshOnce(server)
			if !g.endAttempt(server, state) {
				return
			}
			g.pause(relistInterval)
		}
		g.endAttempt(server, state)
	})
}

// endAttempt calls the functions that wait for the attempt that has ended. It reports
// whether to list the server once more.
func (g *Gateway) endAttempt(server string, state *refreshState) (again bool) {
	g.mu.Lock()
	again, done := state.again, state.done
	state.again, state.done = false, nil
	if !again {
		delete(g.refreshing, server)
	}
	g.mu.Unlock()
	for _, f := range done {
		f()
	}
	return again
}

// pause waits for d, or until the gateway closes.
func (g *Gateway) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.ctx.Done():
	}
}

func (g *Gateway) refreshOnce(server string) {
	if err := g.startForList(server); err != nil {
		g.markFailed(server, err)
		return
	}
	select {
	case g.listSlots <- struct{}{}:
		defer func() { <-g.listSlots }()
	case <-g.ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeoutCause(g.ctx, g.listTimeout, fmt.Errorf("no list within %v", g.listTimeout))
	defer cancel()
	o, err := g.list(ctx, server)
	if err != nil {
		g.markFailed(server, err)
		return
	}
	g.mu.Lock()
	delete(g.failed, server)
	g.mu.Unlock()
	g.offer(ctx, server, o, true)
	g.saveListing(ctx, server, o)
}

// startForList is start in a slot of its own.
func (g *Gateway) startForList(server string) error {
	s, err := g.manager.Session(server)
	if err != nil || !s.Definition().MayInstall() {
		return nil // list returns the error
	}
	select {
	case g.startSlots <- struct{}{}:
		defer func() { <-g.startSlots }()
		return g.awaitInstall(g.ctx, s)
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
}

// retry lists servers again that failed, and refused ones once they are trusted.
func (g *Gateway) retry() {
	var due []string
	g.mu.Lock()
	for server, f := range g.failed {
		if f.due() {
			due = append(due, server)
		}
	}
	g.mu.Unlock()
	for _, server := range due {
		if g.mayRetry(server) {
			g.refresh(server)
		}
	}
}

// allowed reports whether policy and trust permit a connection to the server.
func (g *Gateway) allowed(server string) bool {
	s, err := g.manager.Session(server)
	return err == nil && s.Allowed(g.ctx) == nil
}

// mayRetry reports whether a server that has failed may be tried again. If it is refused now, that
// becomes its failure: the user can do something about it.
func (g *Gateway) mayRetry(server string) bool {
	s, err := g.manager.Session(server)
	if err != nil {
		return false
	}
	err = s.Allowed(g.ctx)
	g.mu.Lock()
	known := g.failed[server]
	g.mu.Unlock()
	if err != nil && isRefusal(err) && known.text != err.Error() {
		g.markFailed(server, err)
	}
	return err == nil
}

// isRefusal reports whether err means that the server needs the user's approval. A name
// that does not resolve and a redirect are no such errors.
func isRefusal(err error) bool {
	if r, ok := errors.AsType[*outbound.Refusal](err); ok {
		return r.Reason != outbound.Unresolved && r.Reason != outbound.Redirected
	}
	return errors.Is(err, mcpkit.ErrUntrusted)
}

// markFailed records that a server could not be listed or used. It hides the tools of a
// refused server, since no call of them would succeed.
func (g *Gateway) markFailed(server string, err error) {
	if g.ctx.Err() != nil {
		return
	}
	now := failure{time.Now(), err.Error(), g.unavailableText(server, err), isRefusal(err), errors.Is(err, mcpkit.ErrChanged)}
	g.mu.Lock()
	before := g.failed[server]
	g.failed[server] = now
	g.mu.Unlock()
	if now.refused {
		g.publish(server, listing.Entry{}, false)
	}
	switch {
	case now.text == before.text:
	case now.refused:
		g.log.Warn("server not listed: trust it first", logkey.Server, server, logkey.Error, err, logkey.Command, g.trustCommand(server))
	default:
		g.log.Warn("server not available", logkey.Server, server, logkey.Error, err)
	}
}

// list lists a server's tools, prompts and resources, as far as it declares them.
func (g *Gateway) list(ctx context.Context, server string) (o listing.Entry, err error) {
	s, err := g.manager.Session(server)
	if err != nil {
		return o, err
	}
	info, err := s.Initialize(ctx)
	if err != nil {
		return o, err
	}
	o.Complete = true
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
			if isMethodNotFound(err) { // many servers declare resources without templates
				err = nil
			}
		}
	}
	return o, err
}

// isMethodNotFound reports whether the server does not implement a method.
func isMethodNotFound(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e) && e.Code == jsonrpc.CodeMethodNotFound
}

// saveListing caches a server's listing for later gateways.
func (g *Gateway) saveListing(ctx context.Context, server string, o listing.Entry) {
	def := g.manager.Config().Server(server)
	if g.listings == nil || def == nil {
		return
	}
	if err := g.listings.Put(ctx, def.Hash(), o); err != nil {
		g.log.Warn("server listing not cached", logkey.Server, server, logkey.Error, err)
	}
}
