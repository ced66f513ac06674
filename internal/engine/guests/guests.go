// Package guests implements what engines have in common: the set of living guests
// of an engine, what it does with each of them by id, and the end of a guest.
package guests

import (
	"context"
	"fmt"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
)

// Set holds the living guests of an engine by id. Create one with NewSet. All
// methods may be called concurrently.
type Set[G engine.Guest] struct {
	closing context.Context // ended by Close
	cancel  context.CancelCauseFunc
	creates sync.WaitGroup // calls of Create in progress; Add under mu while not closed

	mu     sync.Mutex
	guests map[string]*entry[G] // guarded by mu
	closed bool                 // guarded by mu
}

// entry reserves an id. Its guest is set once it has booted.
type entry[G engine.Guest] struct {
	guest  G
	booted bool
}

// NewSet returns an empty set.
func NewSet[G engine.Guest]() *Set[G] {
	s := &Set[G]{guests: make(map[string]*entry[G])}
	s.closing, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Closing is closed when Close has been called.
func (s *Set[G]) Closing() <-chan struct{} { return s.closing.Done() }

// Create reserves the id and calls boot, whose context also ends when the set is
// closed. A booted guest stays in the set until boot's release function is called,
// which frees the id; it may be called repeatedly. Errors: ErrGone after Close,
// ErrExists, the cause of ctx, or the error of boot, which has left nothing behind.
func (s *Set[G]) Create(ctx context.Context, id string, boot func(ctx context.Context, release func()) (G, error)) (G, error) {
	var none G
	if err := context.Cause(ctx); err != nil {
		return none, err
	}
	e, err := s.reserve(id)
	if err != nil {
		return none, err
	}
	defer s.creates.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.closing, func() { cancel(context.Cause(s.closing)) })()

	release := func() { s.release(id, e) }
	g, err := boot(ctx, release)
	if err != nil {
		release()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return none, err
	}
	s.mu.Lock()
	e.guest, e.booted = g, true
	s.mu.Unlock()
	return g, nil
}

func (s *Set[G]) reserve(id string) (*entry[G], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.guests[id] != nil {
		return nil, engine.ErrExists
	}
	e := new(entry[G])
	s.guests[id] = e
	s.creates.Add(1)
	return e, nil
}

var errClosed = fmt.Errorf("engine closed: %w", engine.ErrGone)

// release frees the id unless a later guest has it.
func (s *Set[G]) release(id string, e *entry[G]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guests[id] == e {
		delete(s.guests, id)
	}
}

// Get returns the living guest with the id, or ErrGone.
func (s *Set[G]) Get(id string) (G, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.guests[id]; e != nil && e.booted {
		return e.guest, nil
	}
	var none G
	return none, engine.ErrGone
}

// State returns the state of the guest with the id, as of returns it, or an error that is
// ErrGone. It implements engine.Recoverer.State.
func (s *Set[G]) State(id string, of func(G) engine.GuestState) (engine.GuestState, error) {
	g, err := s.Get(id)
	if err != nil {
		return engine.GuestState{}, fmt.Errorf("state of guest %q: %w", id, err)
	}
	return of(g), nil
}

// Detach releases the guest with the id with detach, which returns an error that is ErrGone
// for a guest that is not this engine's any more. It implements engine.Recoverer.Detach.
func (s *Set[G]) Detach(id string, detach func(G) error) error {
	g, err := s.Get(id)
	if err == nil {
		err = detach(g)
	}
	if err != nil {
		return fmt.Errorf("detach guest %q: %w", id, err)
	}
	return nil
}

// Close cancels the calls of Create in progress, waits for them and destroys all
// guests. Later calls of Create fail. It may be called repeatedly.
func (s *Set[G]) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosed)
	s.creates.Wait()

	var wait sync.WaitGroup
	s.mu.Lock()
	for _, e := range s.guests {
		wait.Go(func() { e.guest.Destroy(context.Background()) }) // cannot fail: its context does not end
	}
	s.mu.Unlock()
	wait.Wait()
}

// End is the end of one guest. Create one with NewEnd. All methods may be called
// concurrently.
type End struct {
	done chan struct{}
	exit engine.Exit // set before done is closed
}

// NewEnd returns the end of a guest that lives.
func NewEnd() *End { return &End{done: make(chan struct{})} }

// Reach records why the guest has ended and releases all that wait. Call it once,
// when nothing of the guest is left.
func (e *End) Reach(exit engine.Exit) {
	e.exit = exit
	close(e.done)
}

// Done is closed when the guest has ended.
func (e *End) Done() <-chan struct{} { return e.done }

// Reached reports whether the guest has ended.
func (e *End) Reached() bool { return Closed(e.done) }

// Closed reports whether c, to which nothing is sent, is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Wait returns why the guest has ended, also if ctx has ended too. It returns the
// cause of ctx if that ends first.
func (e *End) Wait(ctx context.Context) (engine.Exit, error) {
	if e.Reached() {
		return e.exit, nil
	}
	select {
	case <-e.done:
		return e.exit, nil
	case <-ctx.Done():
		return engine.Exit{}, context.Cause(ctx)
	}
}
