package box

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// errQueueFull is what callQueue.enter returns when too many wait.
var errQueueFull = errors.New("too many calls are waiting")

// callQueue lets a bounded number in at once and the others wait in the order in
// which they came, a bounded number of them.
type callQueue struct {
	maxQueue int

	mu    sync.Mutex
	free  int             // guarded by mu
	queue []chan struct{} // guarded by mu; closed when let in
}

func newCallQueue(width, maxQueue int) *callQueue { return &callQueue{free: width, maxQueue: maxQueue} }

// enter returns nil when the caller is in, which must then leave. It returns
// errQueueFull at once, or the cause of ctx, or errEnded when dead is closed.
func (g *callQueue) enter(ctx context.Context, dead <-chan struct{}) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	if len(g.queue) >= g.maxQueue {
		g.mu.Unlock()
		return errQueueFull
	}
	turn := make(chan struct{})
	g.queue = append(g.queue, turn)
	g.mu.Unlock()

	var err error
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-dead:
		err = errEnded
	}
	g.mu.Lock()
	i := slices.Index(g.queue, turn)
	if i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
	g.mu.Unlock()
	if i < 0 { // let in meanwhile: pass it on
		g.leave()
	}
	return err
}

// leave lets the next one in.
func (g *callQueue) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 {
		g.free++
		return
	}
	close(g.queue[0])
	g.queue = slices.Delete(g.queue, 0, 1)
}

// waiting returns how many wait.
func (g *callQueue) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}
