// Package fairslots shares a number of slots fairly between owners.
package fairslots

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// Slots limits how many pieces of work run at once on behalf of all owners, and shares
// them fairly: a free slot goes to the waiting owner who holds the fewest, and among
// those to the one whose turn was longest ago. One slot beyond the limit is for owners
// who hold none, so that one owner's work does not block all others.
//
// A holder must not wait for a box to become idle, or for its connections to end: a
// client, a program or a server decides how long that takes.
type Slots struct {
	limit int

	mu     sync.Mutex
	used   int                    // guarded by mu; at most limit+1
	count  uint64                 // guarded by mu; of turns and grants, to order them
	owners map[string]*ownerQueue // guarded by mu; of the owners who hold a slot or wait
}

// ownerQueue is what one owner has of the slots.
type ownerQueue struct {
	held  int
	last  uint64  // order of the last grant; 0: none
	queue []*Turn // in order of arrival
}

// A Turn is a place in the queue for a slot, and then the slot.
type Turn struct {
	slots   *Slots
	owner   string
	order   uint64
	granted chan struct{} // closed when the turn has a slot
	over    bool          // guarded by Slots.mu
	ready   bool          // guarded by Slots.mu; the turn may have a slot
}

// New returns slots of which limit, and one more, can be taken.
func New(limit int) *Slots { return &Slots{limit: limit, owners: map[string]*ownerQueue{}} }

// Enter joins the queue and returns at once. The caller must call Release.
func (s *Slots) Enter(owner string) *Turn {
	t := s.Reserve(owner)
	t.Start()
	return t
}

// Reserve takes a place in the queue and returns at once. The turn gets no slot before
// Start is called, and delays no other turn. The caller must call Release.
func (s *Slots) Reserve(owner string) *Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	t := &Turn{slots: s, owner: owner, order: s.count, granted: make(chan struct{})}
	if s.owners[owner] == nil {
		s.owners[owner] = &ownerQueue{}
	}
	s.owners[owner].queue = append(s.owners[owner].queue, t)
	return t
}

// Start lets a reserved turn have a slot.
func (t *Turn) Start() {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	t.ready = true
	s.grantLocked()
}

// nextLocked returns the index of the first turn that may have a slot, or -1.
func (q *ownerQueue) nextLocked() int {
	return slices.IndexFunc(q.queue, func(t *Turn) bool { return t.ready })
}

// Acquire waits for a slot. The caller must call Release, which may be called again. The
// error is the cause of ctx; then release does nothing.
func (s *Slots) Acquire(ctx context.Context, owner string) (release func(), err error) {
	t := s.Enter(owner)
	if err := t.Wait(ctx); err != nil {
		t.Release()
		return func() {}, err
	}
	return t.Release, nil
}

// Wait waits until the turn has a slot. The error is the cause of ctx.
func (t *Turn) Wait(ctx context.Context) error {
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Release gives up the slot, or the place in the queue. It may be called again.
func (t *Turn) Release() {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.over {
		return
	}
	t.over = true
	own := s.owners[t.owner]
	if i := slices.Index(own.queue, t); i >= 0 {
		own.queue = slices.Delete(own.queue, i, i+1)
	} else {
		own.held--
		s.used--
		s.grantLocked()
	}
	if own.held == 0 && len(own.queue) == 0 {
		delete(s.owners, t.owner)
	}
}

// grantLocked gives the free slots to waiting turns.
func (s *Slots) grantLocked() {
	for {
		var next *ownerQueue
		var first int // in its queue
		for _, own := range s.owners {
			i := own.nextLocked()
			if i >= 0 && (next == nil || cmp.Or(
				cmp.Compare(own.held, next.held), cmp.Compare(own.last, next.last), cmp.Compare(own.queue[i].order, next.queue[first].order)) < 0) {
				next, first = own, i
			}
		}
		if next == nil || s.used > s.limit || s.used == s.limit && next.held > 0 {
			return
		}
		t := next.queue[first]
		next.queue = slices.Delete(next.queue, first, first+1)
		next.held++
		s.used++
		s.count++
		next.last = s.count
		close(t.granted)
	}
}

// Waiting returns how many turns of an owner that may have a slot wait for one.
func (s *Slots) Waiting(owner string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.owners[owner]; own != nil {
		for _, t := range own.queue {
			if t.ready {
				n++
			}
		}
	}
	return n
}
