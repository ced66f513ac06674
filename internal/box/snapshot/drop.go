package snapshot

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Consent reports whether an eviction may drop the data of a record. With now, the data go at once
// if ok is true; then the eviction calls kept if it could not remove them.
type Consent func(now bool) (kept func(), ok bool)

// AllowDrop lets evictions drop the data of the record, which only copy what the lessee has in
// memory: the record stays, without data. An eviction asks consent first. The data come back with
// the next Write, which waits for the end of the eviction.
//
// Evictions drop no data of a record that is being written or extended, nor for a record of another
// process. consent must not wait, nor call methods of the lease that wait for a Write.
func (l *Lease) AllowDrop(consent Consent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return
	}
	l.consent = consent
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if held := l.s.leases[l.id]; held != nil {
		held.drops = l
	}
}

// mayDrop reports whether the data could be dropped now.
func (l *Lease) mayDrop() bool {
	l.mu.Lock()
	consent := l.consent
	l.mu.Unlock()
	if len(l.op) > 0 {
		return false
	}
	_, ok := consent(false)
	return ok
}

// droppable returns the lease of a record whose lessee allows evictions to drop its data; nil if
// it does not, or is another process.
func (s *Store) droppable(id string) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.leases[id]; held != nil {
		return held.drops
	}
	return nil
}

// chooseCopies selects the data to drop of boxes in memory of this process (see AllowDrop) where
// the eviction of victims leaves the shortfall short, no more than needed and possibly too few.
// First go those of the requester itself, unless it needs the space for such a copy too; then those
// of the owner with the most data, as long as that owner keeps no less than the requester then has,
// so that two owners do not drop each other's in turn. Of each owner, the least recently used go
// first.
func (s *Store) chooseCopies(items, victims []*item, req *requester, short shortfall) (copies []*item) {
	if short.needsNoEviction() || short.records > 0 {
		return nil
	}
	has := map[string]int64{req.owner: req.bytes}
	var candidates []*item
	for _, it := range items {
		if it.err != nil || it.id == req.id || slices.Contains(victims, it) {
			continue
		}
		has[it.Owner] += max(it.Bytes, s.pendingOf(it))
		if it.Purpose != Box || !it.Stale || it.Bytes == 0 {
			continue
		}
		if lease := s.droppable(it.id); lease != nil && lease.mayDrop() {
			candidates = append(candidates, it)
		}
	}
	slices.SortFunc(candidates, func(a, b *item) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.id, b.id)) })
	for !short.needsNoEviction() {
		i := nextCopy(candidates, req, has)
		if i < 0 {
			break
		}
		it := candidates[i]
		candidates = slices.Delete(candidates, i, i+1)
		copies = append(copies, it)
		has[it.Owner] -= it.Bytes
		short = short.withoutDataOf([]*item{it})
	}
	return copies
}

// nextCopy returns the index of the candidate that chooseCopies takes next; -1 if there is none.
func nextCopy(candidates []*item, req *requester, has map[string]int64) int {
	next := -1
	for i, it := range candidates {
		if it.Owner == req.owner {
			if !req.copies {
				return i
			}
			continue
		}
		if has[it.Owner]-it.Bytes >= has[req.owner] && (next < 0 || has[it.Owner] > has[candidates[next].Owner]) {
			next = i
		}
	}
	return next
}

// dropCopies drops the data of items that chooseCopies has selected, and reports whether it has
// dropped all. It stops at one that has changed since, whose lessee does not consent any more, or
// that cannot be dropped, which is logged, and when ctx ends.
func (s *Store) dropCopies(ctx context.Context, copies []*item) (all bool) {
	for _, it := range copies {
		lease := s.droppable(it.id)
		if lease == nil || ctx.Err() != nil {
			return false
		}
		dropped, err := lease.drop(it)
		if err != nil {
			s.log.Warn("copy of a box in memory not dropped", logkey.Record, it.id, logkey.Error, err)
		}
		if !dropped {
			return false
		}
	}
	return true
}

func (l *Lease) drop(it *item) (dropped bool, err error) {
	select {
	case l.op <- struct{}{}:
		defer l.unlockOp()
	default: // it is being written, perhaps by a writer that waits for this eviction
		return false, nil
	}
	l.mu.Lock()
	same, consent := !l.done && l.e.Gen == it.Gen && l.e.Stale, l.consent
	l.mu.Unlock()
	if !same {
		return false, nil
	}
	kept, ok := consent(true)
	if !ok {
		return false, nil
	}
	l.s.log.Warn("copy of a box in memory dropped from the disk: other boxes need the room", logkey.Record, l.id)
	defer l.s.endWrite(l)
	gen, forgotten, err := l.forgetData()
	if !forgotten {
		kept()
	}
	if err != nil {
		return false, err
	}
	if err := syncDir(l.dir, "."); err != nil {
		return false, err
	}
	return true, l.dir.RemoveAll(dataName(gen)) // if this fails, the next Write retries
}

// forgetData describes the record as one without data, and returns the number of those that it had.
// After a crash meanwhile, the record has the data or has none. After an error it may have none
// nevertheless, as forgotten reports.
func (l *Lease) forgetData() (gen uint64, forgotten bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gen, e := l.e.Gen, l.e
	e.Gen, e.Bytes, e.Pending, e.Written = 0, 0, 0, time.Time{}
	l.s.cfg.step("forgetting")
	forgotten, err = l.writeSaved(e) // synced: it is all that says whose the record is
	if forgotten {
		l.e = e
	}
	if err != nil {
		return 0, forgotten, err
	}
	_ = l.dir.Remove(metaName) // of the data that were there
	l.s.cfg.step("forgotten")
	return gen, true, nil
}
