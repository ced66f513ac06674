package box

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// This file takes boxes out of memory. A box that leaves memory is written to its record, a directory
// of the snapshot store on disk, so that the next call on its id wakes it; a box that cannot be
// written ends, and leaves a tombstone in memory, from which the next call on its id learns why.
// While this process has the box, it holds a lease of the record, so that no other process removes
// or wakes it (package snapshot). Each write takes a slot of those that owners share fairly (package
// fairslots).

// canHibernateLocked reports whether a box that leaves memory is written to disk, so that
// the next call on its id wakes it.
func (b *Box) canHibernateLocked() bool {
	return b.env.hibernates() && (b.lease != nil || !b.disk.unwritable)
}

// unloadLocked takes a box out of memory: it hibernates the box, or ends it with
// the reason if it cannot be hibernated. A box whose writing fails stays in memory.
func (l *lifecycle) unloadLocked(b *Box, reason Reason, detail string) {
	resumes := b.state == statePaused && b.disk.filesSeq == 0
	if l.beginUnloadLocked(b, reason, detail) {
		slot := l.records.writes.Reserve(string(b.key.owner))
		if !b.network.connected() && !resumes { // or the goroutine that runs first would have the first slot
			slot.Start()
		}
		l.wg.Go(func() { l.hibernate(b, slot, reason, detail) })
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
	if b.state.starting() || !b.canHibernateLocked() {
		l.terminateLocked(b, reason, detail)
		return false
	}
	// keepInMemory clears these if the box cannot be written.
	b.tomb = l.reg.tombstone(&b.spec, ReasonHibernated, detail)
	b.recordStays = true
	l.reg.setState(b, stateHibernating)
	l.reg.unpinAllLocked(b)
	l.reg.signalDrainedLocked()
	return true
}

// hibernate writes a box that has left the registry to disk, and frees it. A box that
// cannot be written returns to the registry, unless the Manager closes. If slot has not
// started, it takes a slot only after the connections of the box are closed and the box is resumed.
func (l *lifecycle) hibernate(b *Box, slot *fairslots.Turn, reason Reason, detail string) {
	begun := time.Now()
	l.closeNetwork(b.network, b.guestID) // a connection must not end in the middle of a snapshot
	latest := l.resumeForFiles(b)
	slot.Start()
	// Not of the Manager's context: a server that closes hibernates.
	err := l.write(context.Background(), b, false, slot, func() {})
	if err != nil && latest {
		err = l.describeLatest(b)
	}
	took := time.Since(begun).Round(time.Millisecond)
	l.observe(b, EventHibernate, "", took, err != nil)
	if err != nil && l.keepInMemory(b, err) {
		return
	}
	if errors.Is(err, snapshot.ErrFull) {
		err = l.writeAfterOthers(b)
	}
	l.reg.mu.Lock()
	ended := err != nil && !b.hasData // nothing of it is on disk
	if err != nil {
		why := strings.TrimPrefix(detail+", and it could not be written to disk: "+reasonOf(err), ", and ")
		tomb := l.reg.tombstone(&b.spec, reason, why)
		if ended {
			b.tomb, b.recordStays = tomb, false
			l.reg.addTombstoneLocked(tomb)
			l.reg.setState(b, stateEnding)
		} else { // the next call reports why it finds an earlier state
			l.reg.tombstones.add(tomb)
		}
	}
	if !ended {
		l.reg.ended[ReasonHibernated]++
	}
	if reason == ReasonEvicted {
		l.reg.evicted++
	}
	l.reg.mu.Unlock()
	log := l.log.With(logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id)
	switch {
	case err == nil:
		log.Info("box hibernated", logkey.Reason, reason, logkey.Took, took)
	case ended:
		log.Warn("box ended: it could not be hibernated", logkey.Error, err)
	default:
		log.Warn("box hibernated as it was earlier: it could not be written to disk", logkey.Saved, b.lease.Meta().Written, logkey.Error, err)
	}
	l.free(b, !ended)
}

// resumeForFiles resumes a paused box that leaves memory and of which the disk has no files: its
// agent stores them. Where that fails, the box is written without. It reports whether it resumed a
// box of whose memory the disk had the latest state.
func (l *lifecycle) resumeForFiles(b *Box) (latest bool) {
	l.reg.mu.Lock()
	stored := b.disk.filesSeq != 0
	latest = b.hasData && b.disk.memorySeq == b.use.seq && b.use.calls == 0
	b.idle.load = load{}
	l.reg.mu.Unlock()
	if stored {
		return false
	}
	latest = latest && b.power.isPaused() // one that may be paused may have run on
	// Not of the Manager's context: a server that closes hibernates.
	resumed, err := b.power.resume(context.Background(), b.machine, powerTimeout, b.clearQuiescent)
	if err != nil {
		l.log.Warn("paused box not resumed to store its files", logkey.Guest, b.guestID, logkey.Error, err)
	}
	return resumed && latest
}

// describeLatest marks the record of a box as up to date. resumeForFiles has resumed the box, writing
// it again has failed, and no call has used it since the disk got its memory.
func (l *lifecycle) describeLatest(b *Box) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	l.reg.mu.Lock()
	drops := b.disk.drops
	l.reg.mu.Unlock()
	_, err := l.writeMemory(context.Background(), b, false, true, drops, nil)
	return err
}

// writeAfterOthers writes a box for which the store had no room when the Manager closed. The store
// evicts no record of a box in memory, however much its owner has. It can once the others have left
// memory. Boxes without room are written one at a time, those of the owner with the fewest first.
func (l *lifecycle) writeAfterOthers(b *Box) error {
	l.reg.mu.Lock()
	l.reg.short[b] = struct{}{}
	l.reg.changed.broadcast()
	for l.reg.nextShortLocked() != b {
		_ = l.reg.waitChangeLocked(context.Background()) // each of the others is written within a bound
	}
	l.reg.mu.Unlock()
	err := l.write(context.Background(), b, false, l.records.writes.Enter(string(b.key.owner)), func() {})
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	delete(l.reg.short, b)
	l.reg.changed.broadcast()
	return err
}

// nextShortLocked returns the box of short that is written next; nil while others leave memory.
func (r *registry) nextShortLocked() (next *Box) {
	if len(r.short) < len(r.freeing) {
		return nil
	}
	has := map[Owner]int{}
	for b := range r.short {
		has[b.key.owner]++
	}
	for b := range r.short {
		if next == nil || cmp.Or(cmp.Compare(has[b.key.owner], has[next.key.owner]), cmp.Compare(next.use.seq, b.use.seq)) < 0 {
			next = b
		}
	}
	return next
}

// keepInMemory puts a box that could not be written to disk back into the registry, so that
// nothing of it is lost, and reports whether it did: it does not once the Manager is closed.
func (l *lifecycle) keepInMemory(b *Box, cause error) bool {
	l.reg.mu.Lock()
	record := b.lease
	l.reg.mu.Unlock()
	if record != nil && !record.Meta().Stale { // the write failed in its last step
		meta := record.Meta()
		meta.Stale = true
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
		died.Detail = b.quotaDetail + ", and when it was to be written to disk for that, " + died.Detail
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
