package box

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// writeTimeout bounds the writing of one box to disk: its memory is at most 4 GiB,
// and a disk that takes longer is in trouble.
const writeTimeout = 2 * time.Minute

// writers is how many boxes are written to disk at once: two keep a disk busy, more
// have a processor each, and each holds a copy of its pages in memory meanwhile.
func writers() int64 { return int64(min(max(2, runtime.GOMAXPROCS(0)), 8)) }

// diskState describes what is on disk of a box.
type diskState struct {
	seq   uint64        // the use after which the box was written; 0: never
	at    time.Time     // when that was, or when the box was made
	took  time.Duration // how long writing it took the last time
	early bool          // it was written soon after its first call, or that was tried
}

// canHibernateLocked reports whether a box that leaves memory can be written to disk, so
// that the next call on its id wakes it.
func (b *Box) canHibernateLocked() bool { return b.record != nil && b.env.hibernates() }

// unloadLocked takes an idle box out of memory: it hibernates the box, or ends it for
// that reason where it cannot be hibernated.
func (l *lifecycle) unloadLocked(s *Box, reason Reason, detail string) {
	if l.beginUnloadLocked(s, reason, detail) {
		l.wg.Go(func() {
			l.eachInOrder(context.Background(), []*Box{s}, func(s *Box) { l.hibernate(s, reason, detail) })
		})
	}
}

// unloadAllLocked takes all boxes out of memory. The one used last goes first: a
// client that ends its server may kill it a second later.
func (l *lifecycle) unloadAllLocked() {
	var boxes []*Box
	for _, s := range l.reg.lastUsedLocked() {
		if l.beginUnloadLocked(s, ReasonShutdown, "") {
			boxes = append(boxes, s)
		}
	}
	l.wg.Go(func() {
		l.eachInOrder(context.Background(), boxes, func(s *Box) { l.hibernate(s, ReasonShutdown, "") })
	})
}

// beginUnloadLocked removes a box from the registry, and reports whether the caller
// has to hibernate it.
func (l *lifecycle) beginUnloadLocked(s *Box, reason Reason, detail string) bool {
	if !s.state.live() {
		return false
	}
	if s.state.booting() || !s.canHibernateLocked() {
		l.terminateLocked(s, reason, detail)
		return false
	}
	s.tomb = l.reg.tombstone(s.key, s.name, ReasonHibernated, detail)
	s.recordStays = true
	if reason == ReasonEvicted {
		l.reg.evicted++
	}
	l.reg.setState(s, stateHibernating)
	l.reg.unpinAllLocked(s)
	l.reg.signalDrainedLocked()
	return true
}

// eachInOrder calls do for each box, in this order and for as many at once as may be
// written to disk. It returns when all calls have begun, or ctx ends.
func (l *lifecycle) eachInOrder(ctx context.Context, boxes []*Box, do func(*Box)) {
	for _, s := range boxes {
		if l.records.writes.Acquire(ctx, 1) != nil {
			return
		}
		l.wg.Go(func() {
			defer l.records.writes.Release(1)
			do(s)
		})
	}
}

// hibernate writes a box that has left the registry to disk, and frees it. The caller
// holds a slot of records.writes.
func (l *lifecycle) hibernate(s *Box, reason Reason, detail string) {
	begun := time.Now()
	// Not of the Manager's context: a server that closes hibernates.
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := l.write(ctx, s, false)
	l.reg.mu.Lock()
	keep := err == nil || s.data
	if err != nil {
		detail = strings.TrimPrefix(detail+", and it could not be written to disk: "+reasonOf(err), ", and ")
	}
	switch {
	case !keep:
		s.tomb, s.recordStays = l.reg.tombstone(s.key, s.name, reason, detail), false
		l.reg.recordExitLocked(s.tomb)
		l.reg.setState(s, stateEnding)
	case err != nil: // the disk has an earlier state, and the next call reports why
		l.reg.tombstones.add(l.reg.tombstone(s.key, s.name, reason, detail))
		fallthrough
	default:
		l.reg.ended[ReasonHibernated]++
	}
	l.reg.mu.Unlock()
	took := time.Since(begun).Round(time.Millisecond)
	l.observe(s, EventHibernate, "", took, !keep)
	switch {
	case err == nil:
		l.log.Info("box hibernated", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Reason, reason, logkey.Took, took)
	case keep:
		l.log.Warn("box hibernated as it was earlier: it could not be written to disk", logkey.Guest, s.guestID, logkey.Kind, s.key.kind,
			logkey.Box, s.key.id, logkey.Saved, s.record.Meta().Saved, logkey.Error, err)
	default:
		l.log.Warn("box ended: it could not be hibernated", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Error, err)
	}
	l.wg.Go(func() { l.free(s, keep) }) // the next one need not wait for that
}

// write updates what the disk has of a box. live says that the box stays in memory.
func (l *lifecycle) write(ctx context.Context, s *Box, live bool) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if live && s.ended() { // hibernate writes its last state
		return nil
	}
	// Without calls, user code may have run on in the background, unless the box was paused.
	still := s.power.isPaused() || live && !l.parts.Machines.Pauses()
	l.reg.mu.Lock()
	seq, clean := s.use.seq, s.disk.seq == s.use.seq && still
	meta := s.metaLocked()
	l.reg.mu.Unlock()
	meta.Live = live
	meta.Saved = s.record.Meta().Saved
	if clean {
		return s.record.Update(meta)
	}
	begun := time.Now()
	// The snapshot may or may not include the effects of a call in flight.
	err := l.records.write(ctx, s.record, meta, s)
	saved := s.record.Meta().Saved
	data := s.record.Dir() != ""
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	s.data, s.saved = data, saved
	if err == nil {
		s.disk.seq, s.disk.at, s.disk.took = seq, l.now(), time.Since(begun)
	}
	return err
}

// metaLocked describes the box for its record. The caller sets Live and Saved.
func (b *Box) metaLocked() snapshot.Meta {
	now := b.env.now()
	return snapshot.Meta{
		Class: snapshot.Box, Owner: string(b.key.owner), Kind: string(b.key.kind), BoxID: b.key.id,
		Name: b.name, Description: b.desc, Template: string(b.template), Flavor: string(b.flavor),
		Created: b.created, Ran: b.ranLocked(),
		// By the clock as it is now: it may have been set since, and age goes by it.
		Used: now.Add(-now.Sub(b.use.lastUsed)),
	}
}

// writeLive writes a box that stays in memory, and reports whether that succeeded. A
// write that has begun is finished while the Manager closes: it may be all that is
// written of the box. The caller holds a slot of records.writes.
func (l *lifecycle) writeLive(s *Box) bool {
	l.reg.mu.Lock()
	recorded := s.machine != nil && s.record != nil
	l.reg.mu.Unlock()
	if !recorded {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := l.write(ctx, s, true)
	if err != nil && !s.ended() {
		l.log.Warn("box not written to disk", logkey.Guest, s.guestID, logkey.Error, err)
	}
	return err == nil
}

// flush begins to write all boxes to disk, the last used first, if calls are in flight.
func (l *lifecycle) flush() {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	if !l.hibernates() || l.reg.phase == phaseClosed || l.reg.callsLocked() == 0 {
		return
	}
	boxes := l.reg.lastUsedLocked()
	l.wg.Go(func() {
		l.eachInOrder(l.base, boxes, func(s *Box) { l.writeLive(s) })
	})
}
