package box

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// errParked is what callQueue.enter returns when the caller would wait for a parked call.
var errParked = errors.New("the call in progress waits for a person")

// errQueueFull is what callQueue.enter returns when too many wait.
var errQueueFull = errors.New("too many calls are waiting")

// callQueue lets a bounded number in at once and the others wait in the order in
// which they came, a bounded number of them.
type callQueue struct {
	maxQueue int
	parked   gate // open while the call that is in is parked

	mu    sync.Mutex
	free  int             // guarded by mu
	queue []chan struct{} // guarded by mu; closed when let in
}

func newCallQueue(width, maxQueue int) *callQueue { return &callQueue{free: width, maxQueue: maxQueue} }

// parkedPatience is how long a caller waits for a parked call: a person who sits at the client
// may answer at once, and some clients answer by themselves.
const parkedPatience = time.Second

// enter returns nil when the caller is in, which must then leave. It returns
// errQueueFull at once, or the cause of ctx, or errEnded when dead is closed, or errParked
// when the call that is in has been parked for a while.
func (q *callQueue) enter(ctx context.Context, dead <-chan struct{}) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	if len(q.queue) >= q.maxQueue {
		q.mu.Unlock()
		return errQueueFull
	}
	turn := make(chan struct{})
	q.queue = append(q.queue, turn)
	q.mu.Unlock()

	err := q.wait(ctx, turn, dead)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	i := slices.Index(q.queue, turn)
	if i >= 0 {
		q.queue = slices.Delete(q.queue, i, i+1)
	}
	q.mu.Unlock()
	if i < 0 { // let in meanwhile: pass it on
		q.leave()
	}
	return err
}

// wait waits until turn is closed.
func (q *callQueue) wait(ctx context.Context, turn, dead <-chan struct{}) error {
	for {
		select {
		case <-turn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-dead:
			return errEnded
		case <-q.parked.opened():
		}
		patience := time.NewTimer(parkedPatience)
		select {
		case <-turn:
			patience.Stop()
			return nil
		case <-ctx.Done():
			patience.Stop()
			return context.Cause(ctx)
		case <-dead:
			patience.Stop()
			return errEnded
		case <-q.parked.closed():
			patience.Stop()
		case <-patience.C:
			return errParked
		}
	}
}

// leave lets the next one in.
func (q *callQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.free++
		return
	}
	close(q.queue[0])
	q.queue = slices.Delete(q.queue, 0, 1)
}

// waiting returns how many wait.
func (q *callQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue)
}

// A gate is open or closed; its zero value is closed. Its methods may be called concurrently.
type gate struct {
	mu     sync.Mutex
	open   bool          // guarded by mu
	change chan struct{} // guarded by mu: closed at the next change; nil without a waiter
}

// always is a closed channel.
var always = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// opened and closed return channels that are closed once the gate is in that state.
func (g *gate) opened() <-chan struct{} { return g.is(true) }

func (g *gate) closed() <-chan struct{} { return g.is(false) }

func (g *gate) is(open bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == open {
		return always
	}
	if g.change == nil {
		g.change = make(chan struct{})
	}
	return g.change
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == open {
		return
	}
	g.open = open
	if g.change != nil {
		close(g.change)
		g.change = nil
	}
}
