package box

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// writeTimeout bounds the writing of one box to disk once it has a slot: its memory is at
// most 4 GiB, and a disk that takes longer is in trouble.
const writeTimeout = 2 * time.Minute

// After a failed write, a box is not written again for firstBackoff, and twice as long
// after each further failure, up to lastBackoff.
const (
	firstBackoff = 30 * time.Second
	lastBackoff  = 15 * time.Minute
)

// writers is how many boxes are written to disk at once: two keep a disk busy, more
// have a processor each, and each holds a copy of its pages in memory meanwhile.
func writers() int { return min(max(2, runtime.GOMAXPROCS(0)), 8) }

// diskState describes what is on disk of a box.
type diskState struct {
	seq   uint64        // the use after which the box was written; 0: never
	at    time.Time     // when that was, or when the box was made
	took  time.Duration // how long writing it took the last time
	early bool          // it was written soon after its first call, or that was tried

	never    bool      // the store accepts no record of the box
	failures int       // failed writes since the last successful one
	full     bool      // the last write failed since the disk or the store is full
	retry    time.Time // no write begins before; zero: any time
}

// failedLocked records why the box could not be written.
func (b *Box) failedLocked(err error) {
	b.disk.full = errors.Is(err, snapshot.ErrFull) || errors.Is(err, engine.ErrExhausted)
	b.disk.retry = b.env.now().Add(min(firstBackoff<<min(b.disk.failures, 10), lastBackoff))
	b.disk.failures++
}

// backoffLocked reports whether the last write failed so recently that the next one waits.
func (b *Box) backoffLocked() bool { return b.env.now().Before(b.disk.retry) }

// canHibernateLocked reports whether a box that leaves memory is written to disk, so that
// the next call on its id wakes it.
func (b *Box) canHibernateLocked() bool {
	return b.env.hibernates() && (b.record != nil || !b.disk.never)
}

// unloadLocked takes an idle box out of memory: it hibernates the box, or ends it for
// that reason where boxes are not hibernated. A box whose writing fails stays in memory.
func (l *lifecycle) unloadLocked(b *Box, reason Reason, detail string) {
	if l.beginUnloadLocked(b, reason, detail) {
		turn := l.records.writes.reserve(b.key.owner)
		l.wg.Go(func() { l.hibernate(b, turn, reason, detail) })
	}
}

// unloadAllLocked takes all boxes out of memory. Of each owner, the one used last goes
// first: a client that ends its server may kill it a second later.
func (l *lifecycle) unloadAllLocked() {
	for _, b := range l.reg.lastUsedLocked() {
		l.unloadLocked(b, ReasonShutdown, "")
	}
}

// beginUnloadLocked removes a box from the registry, and reports whether the caller
// has to hibernate it.
func (l *lifecycle) beginUnloadLocked(b *Box, reason Reason, detail string) bool {
	if !b.state.live() {
		return false
	}
	if b.state.booting() || !b.canHibernateLocked() {
		l.terminateLocked(b, reason, detail)
		return false
	}
	b.tomb = l.reg.tombstone(&b.spec, ReasonHibernated, detail)
	b.recordStays = true
	l.reg.setState(b, stateHibernating)
	l.reg.unpinAllLocked(b)
	l.reg.signalDrainedLocked()
	return true
}

// hibernate writes a box that has left the registry to disk, and frees it. A box that
// cannot be written returns to the registry, unless the Manager closes. turn is reserved:
// it has no slot while the connections of the box end.
func (l *lifecycle) hibernate(b *Box, turn *turn, reason Reason, detail string) {
	begun := time.Now()
	l.closeNetwork(b.network, b.guestID) // a connection must not end in the middle of a snapshot
	turn.start()
	// Not of the Manager's context: a server that closes hibernates.
	err := l.write(context.Background(), b, false, turn)
	took := time.Since(begun).Round(time.Millisecond)
	l.observe(b, EventHibernate, "", took, err != nil)
	if err != nil && l.keepInMemory(b, err) {
		return
	}
	l.reg.mu.Lock()
	keep := err == nil || b.data
	if err != nil {
		detail = strings.TrimPrefix(detail+", and it could not be written to disk: "+reasonOf(err), ", and ")
	}
	switch {
	case !keep:
		b.tomb, b.recordStays = l.reg.tombstone(&b.spec, reason, detail), false
		l.reg.recordExitLocked(b.tomb)
		l.reg.setState(b, stateEnding)
	case err != nil: // the disk has an earlier state, and the next call reports why
		l.reg.tombstones.add(l.reg.tombstone(&b.spec, reason, detail))
		fallthrough
	default:
		l.reg.ended[ReasonHibernated]++
	}
	if reason == ReasonEvicted {
		l.reg.evicted++
	}
	l.reg.mu.Unlock()
	switch {
	case err == nil:
		l.log.Info("box hibernated", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Reason, reason, logkey.Took, took)
	case keep:
		l.log.Warn("box hibernated as it was earlier: it could not be written to disk", logkey.Guest, b.guestID, logkey.Kind, b.key.kind,
			logkey.Box, b.key.id, logkey.Saved, b.record.Meta().Saved, logkey.Error, err)
	default:
		l.log.Warn("box ended: it could not be hibernated", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Error, err)
	}
	l.free(b, keep)
}

// keepInMemory puts a box that could not be written to disk back into the registry, so that
// nothing of it is lost, and reports whether it did: it does not once the Manager is closed.
func (l *lifecycle) keepInMemory(b *Box, cause error) bool {
	l.reg.mu.Lock()
	record := b.record
	l.reg.mu.Unlock()
	if record != nil && !record.Meta().Live { // the write failed in its last step
		meta := record.Meta()
		meta.Live = true
		if err := record.Update(meta); err != nil {
			l.log.Warn("record not updated", logkey.Record, record.ID(), logkey.Error, err)
		}
	}
	paused := b.power.isPaused()
	b.network.reopen() // closed again with the box
	l.reg.mu.Lock()
	if l.reg.phase == phaseClosed {
		l.reg.mu.Unlock()
		return false
	}
	retry, failures, died := b.disk.retry, b.disk.failures, b.died
	if died != nil && b.endedForQuota(b.tomb) {
		died.Detail = b.revised + ", and when it was to be written to disk for that, " + died.Detail
	}
	b.tomb, b.recordStays, b.died = nil, false, nil
	if paused {
		l.reg.setState(b, statePaused)
	} else {
		l.reg.setState(b, stateReady)
	}
	if died != nil {
		l.terminateLocked(b, died.Reason, died.Detail)
	}
	l.reg.mu.Unlock()
	l.log.Warn("box stays in memory: it could not be written to disk", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id,
		logkey.Failures, failures, logkey.Retry, retry.Sub(l.now()).Round(time.Second), logkey.Error, cause)
	return true
}

// write updates what the disk has of a box. live says that the box stays in memory. turn
// stands in the queue of records.writes; write leaves it. ctx bounds the wait for the slot.
func (l *lifecycle) write(ctx context.Context, b *Box, live bool, turn *turn) error {
	defer func() { turn.leave() }()
	if !b.writing.TryLock() {
		// Another write of the box may wait for a slot, so no caller waits while holding one.
		turn.leave()
		b.writing.Lock()
		turn = l.records.writes.enter(b.key.owner)
	}
	defer b.writing.Unlock()
	// Without calls, user code may have run on in the background, unless the box was paused.
	still := b.power.isPaused() || live && !l.parts.Machines.Pauses()
	l.reg.mu.Lock()
	clean := b.disk.seq == b.use.seq && still
	l.reg.mu.Unlock()
	if !clean {
		if err := turn.wait(ctx); err != nil {
			return err
		}
	}
	l.reg.mu.Lock()
	gone := live && !b.state.live() // hibernate writes its last state
	seq, meta := b.use.seq, b.metaLocked()
	l.reg.mu.Unlock()
	if gone {
		return nil
	}
	record, err := l.recordOf(b)
	if err != nil {
		l.reg.mu.Lock()
		defer l.reg.mu.Unlock()
		b.disk.never = errors.Is(err, snapshot.ErrInvalid)
		b.failedLocked(err)
		return err
	}
	meta.Live = live
	meta.Saved = record.Meta().Saved
	begun := time.Now()
	if clean {
		meta.Restored = record.Meta().Restored
		err = record.Update(meta)
	} else { // the snapshot may or may not include the effects of a call in flight
		err = l.records.write(ctx, record, meta, b)
	}
	saved, data := record.Meta().Saved, record.Dir() != ""
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	b.data, b.saved = data, saved
	if err != nil {
		b.failedLocked(err)
		return err
	}
	if !clean {
		b.disk.seq, b.disk.at, b.disk.took = seq, l.now(), time.Since(begun)
	}
	b.disk.failures, b.disk.retry = 0, time.Time{}
	return nil
}

// recordOf returns the record of a box, and makes it if that failed when the box started.
func (l *lifecycle) recordOf(b *Box) (*snapshot.Lease, error) {
	l.reg.mu.Lock()
	record := b.record
	l.reg.mu.Unlock()
	if record != nil {
		return record, nil
	}
	record, err := l.records.tryCreate(b)
	if err != nil {
		return nil, err
	}
	l.reg.mu.Lock()
	ended := !b.state.live() && b.state != stateHibernating
	if !ended {
		b.record = record
	}
	l.reg.mu.Unlock()
	if ended { // no other code releases it
		l.records.release(record, false)
		return nil, errEnded
	}
	return record, nil
}

// metaLocked describes the box for its record. The caller sets Live and Saved.
func (b *Box) metaLocked() snapshot.Meta {
	now := b.env.now()
	return snapshot.Meta{
		Class: snapshot.Box, Owner: string(b.key.owner), Kind: string(b.key.kind), BoxID: b.key.id,
		Name: b.name, Description: b.desc, Template: string(b.template), Named: b.named, Flavor: string(b.flavor), Limits: b.limits,
		Created: b.created, Ran: b.ranLocked(), Unreported: b.unreportedLocked(),
		// By the clock as it is now: it may have been set since, and age goes by it.
		Used: now.Add(-now.Sub(b.use.lastUsed)),
	}
}

// save writes a box that stays in memory, and reports whether that succeeded. A write
// that has begun is finished while the Manager closes: it may be all that is written of
// the box. ctx bounds the wait for a slot, for which turn stands in the queue.
func (l *lifecycle) save(ctx context.Context, b *Box, turn *turn) bool {
	l.reg.mu.Lock()
	writable := b.machine != nil && b.canHibernateLocked()
	l.reg.mu.Unlock()
	if !writable {
		turn.leave()
		return true
	}
	err := l.write(ctx, b, true, turn)
	if err != nil && !b.ended() && ctx.Err() == nil {
		l.log.Warn("box not written to disk", logkey.Guest, b.guestID, logkey.Error, err)
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
	for _, b := range l.reg.lastUsedLocked() {
		turn := l.records.writes.enter(b.key.owner)
		l.wg.Go(func() { l.save(l.base, b, turn) })
	}
}
