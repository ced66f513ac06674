package server

import (
	"context"
	"sync"
)

// A gauge is a counter on which goroutines can wait for zero.
type gauge struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	zero chan struct{} // guarded by mu: closed when n falls to zero; nil without waiters
}

func (g *gauge) add(d int) {
	g.mu.Lock()
	g.n += d
	if g.n == 0 && g.zero != nil {
		close(g.zero)
		g.zero = nil
	}
	g.mu.Unlock()
}

func (g *gauge) value() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// wait reports whether the gauge was zero before ctx ended.
func (g *gauge) wait(ctx context.Context) bool {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return true
	}
	if g.zero == nil {
		g.zero = make(chan struct{})
	}
	zero := g.zero
	g.mu.Unlock()
	select {
	case <-zero:
		return true
	case <-ctx.Done():
		return false
	}
}
