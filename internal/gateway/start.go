package gateway

import (
	"context"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A start is the start of a server whose command may download it first.
type start struct {
	done chan struct{} // closed when the server runs or has failed
	err  error         // valid after done is closed
}

// awaitInstall starts a server whose command may download it first, and waits until it runs. If
// ctx ends, the start continues: a package manager that is killed while it installs a package
// can leave a cache with which the package never starts again. For all other servers it does
// nothing: requests start them.
func (g *Gateway) awaitInstall(ctx context.Context, s *mcpkit.Session) error {
	if !s.Definition().MayInstall() {
		return nil
	}
	g.mu.Lock()
	one := g.starting[s.Name()]
	if one == nil {
		one = &start{done: make(chan struct{})}
		g.starting[s.Name()] = one
		g.tasks.Go(func() {
			_, one.err = s.Initialize(g.ctx) // bounded by the session's limits
			g.mu.Lock()
			delete(g.starting, s.Name())
			g.mu.Unlock()
			close(one.done)
		})
	}
	g.mu.Unlock()
	defer awaitsStart(ctx, s.Name())()
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
