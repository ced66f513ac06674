package server

import (
	"context"
	"sync"
)

// A waitCounter is a counter on which goroutines can wait for zero.
type waitCounter struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	zero chan struct{} // guarded by mu: closed when n falls to zero; nil without waiters
}

func (c *waitCounter) add(d int) {
	c.mu.Lock()
	c.n += d
	if c.n == 0 && c.zero != nil {
		close(c.zero)
		c.zero = nil
	}
	c.mu.Unlock()
}

func (c *waitCounter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// wait reports whether the counter was zero before ctx ended.
func (c *waitCounter) wait(ctx context.Context) bool {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return true
	}
	if c.zero == nil {
		c.zero = make(chan struct{})
	}
	zero := c.zero
	c.mu.Unlock()
	select {
	case <-zero:
		return true
	case <-ctx.Done():
		return false
	}
}
