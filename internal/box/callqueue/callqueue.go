// Package callqueue decides which calls of a box run at once.
package callqueue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrParked is what Queue.Enter returns when the caller would wait for a parked call.
var ErrParked = errors.New("the call in progress waits for a person")

// ErrEnded is what Queue.Enter returns when the box has ended.
var ErrEnded = errors.New("the box has ended")

// ErrFull is what Queue.Enter returns when too many wait.
var ErrFull = errors.New("too many calls are waiting")

// A Queue lets a bounded number in at once and the others wait in the order in
// which they came, a bounded number of them.
type Queue struct {
	maxQueue int
	parked   gate // open while the call that is in is parked

	mu    sync.Mutex
	free  int             // guarded by mu
	queue []chan struct{} // guarded by mu; closed when let in
}

// New returns a queue that lets width calls in at once, and maxQueue wait.
func New(width, maxQueue int) *Queue { return &Queue{free: width, maxQueue: maxQueue} }

// SetParked says whether the call that is in waits for a person.
func (q *Queue) SetParked(parked bool) { q.parked.set(parked) }

// MaxParkedWait is how long a caller waits for a parked call: a person who sits at the client
// may answer at once, and some clients answer by themselves.
const MaxParkedWait = time.Second

// Enter returns nil when the caller is in, which must then call Leave. It returns
// ErrFull at once, or the cause of ctx, or ErrEnded when dead is closed, or ErrParked
// when the call that is in has been parked for a while.
func (q *Queue) Enter(ctx context.Context, dead <-chan struct{}) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	if len(q.queue) >= q.maxQueue {
		q.mu.Unlock()
		return ErrFull
	}
	admitted := make(chan struct{})
	q.queue = append(q.queue, admitted)
	q.mu.Unlock()

	err := q.wait(ctx, admitted, dead)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	i := slices.Index(q.queue, admitted)
	if i >= 0 {
		q.queue = slices.Delete(q.queue, i, i+1)
	}
	q.mu.Unlock()
	if i < 0 { // let in meanwhile: pass it on
		q.Leave()
	}
	return err
}

// wait waits until admitted is closed.
func (q *Queue) wait(ctx context.Context, admitted, dead <-chan struct{}) error {
	for {
		select {
		case <-admitted:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-dead:
			return ErrEnded
		case <-q.parked.opened():
		}
		timeout := time.NewTimer(MaxParkedWait)
		select {
		case <-admitted:
			timeout.Stop()
			return nil
		case <-ctx.Done():
			timeout.Stop()
			return context.Cause(ctx)
		case <-dead:
			timeout.Stop()
			return ErrEnded
		case <-q.parked.closed():
			timeout.Stop()
		case <-timeout.C:
			return ErrParked
		}
	}
}

// Leave lets the next one in.
func (q *Queue) Leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.free++
		return
	}
	close(q.queue[0])
	q.queue = slices.Delete(q.queue, 0, 1)
}

// Waiting returns how many wait.
func (q *Queue) Waiting() int {
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

// closedChan is a closed channel.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// opened and closed return channels that are closed once the gate is in that state.
func (g *gate) opened() <-chan struct{} { return g.is(true) }

func (g *gate) closed() <-chan struct{} { return g.is(false) }

func (g *gate) is(open bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == open {
		return closedChan
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
