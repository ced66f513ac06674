package server

import (
	"context"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// calls are the requests in flight.
type calls struct {
	mu      sync.Mutex
	next    uint64          // guarded by mu
	running map[uint64]call // guarded by mu
	counted gauge
}

type call struct {
	session mcp.Session // nil: none
	cancel  context.CancelCauseFunc
}

// begin notes a request until end is called. A request that is not counted is
// not waited for.
func (c *calls) begin(ctx context.Context, session mcp.Session, counted bool) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	c.next++
	id := c.next
	if c.running == nil {
		c.running = make(map[uint64]call)
	}
	c.running[id] = call{session, cancel}
	c.mu.Unlock()
	if counted {
		c.counted.add(1)
	}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		delete(c.running, id)
		c.mu.Unlock()
		if counted {
			c.counted.add(-1)
		}
	}
}

// cancel cancels the requests of the sessions that match; nil matches all.
func (c *calls) cancel(match func(mcp.Session) bool, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.running {
		if match == nil || match(r.session) {
			r.cancel(cause)
		}
	}
}
