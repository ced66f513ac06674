package box

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// slots limits how many pieces of work run at once on behalf of all owners, and shares
// them fairly: a free slot goes to the waiting owner who holds the fewest, and among
// those to the one whose turn was longest ago. One slot beyond the limit is for owners
// who hold none, so that one owner's work does not block all others.
//
// A holder must not wait for a box to become idle, or for its connections to end: a
// client, a program or a server decides how long that takes.
type slots struct {
	limit int

	mu     sync.Mutex
	used   int                   // guarded by mu; at most limit+1
	count  uint64                // guarded by mu; of turns and grants, to order them
	owners map[Owner]*ownerQueue // guarded by mu; of the owners who hold a slot or wait
}

// ownerQueue is what one owner has of the slots.
type ownerQueue struct {
	held  int
	last  uint64  // order of the last grant; 0: none
	queue []*turn // in order of arrival
}

// turn is a place in the queue for a slot, and then the slot.
type turn struct {
	slots   *slots
	owner   Owner
	order   uint64
	granted chan struct{} // closed when the turn has a slot
	over    bool          // guarded by slots.mu
	ready   bool          // guarded by slots.mu; the turn may have a slot
}

func newSlots(limit int) *slots { return &slots{limit: limit, owners: map[Owner]*ownerQueue{}} }

// enter joins the queue and returns at once. The caller must call release.
func (s *slots) enter(owner Owner) *turn {
	t := s.reserve(owner)
	t.start()
	return t
}

// reserve takes a place in the queue and returns at once. The turn gets no slot before
// start is called, and delays no other turn. The caller must call release.
func (s *slots) reserve(owner Owner) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	t := &turn{slots: s, owner: owner, order: s.count, granted: make(chan struct{})}
	if s.owners[owner] == nil {
		s.owners[owner] = &ownerQueue{}
	}
	s.owners[owner].queue = append(s.owners[owner].queue, t)
	return t
}

// start lets a reserved turn have a slot.
func (t *turn) start() {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	t.ready = true
	s.grantLocked()
}

// nextLocked returns the index of the first turn that may have a slot, or -1.
func (q *ownerQueue) nextLocked() int {
	return slices.IndexFunc(q.queue, func(t *turn) bool { return t.ready })
}

// acquire waits for a slot. The caller must call release, which may be called again. The
// error is the cause of ctx; then release does nothing.
func (s *slots) acquire(ctx context.Context, owner Owner) (release func(), err error) {
	t := s.enter(owner)
	if err := t.wait(ctx); err != nil {
		t.release()
		return func() {}, err
	}
	return t.release, nil
}

// wait waits until the turn has a slot. The error is the cause of ctx.
func (t *turn) wait(ctx context.Context) error {
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release gives up the slot, or the place in the queue. It may be called again.
func (t *turn) release() {
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
func (s *slots) grantLocked() {
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
