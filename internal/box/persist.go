package box

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
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
	memorySeq uint64        // the use after which the memory was written; 0: never
	filesSeq  uint64        // the use after which the files were stored too; 0: never
	writtenAt time.Time     // when the memory was last written without a call in flight, or when the box was made
	took      time.Duration // how long writing it took the last time, without waits for a slot
	early     bool          // it was written soon after its first call, or that was tried

	firstInCall bool      // it was first written during a call, or that was tried
	inCall      time.Time // when the memory was last written during a call

	waiting int                // writes that wait for the one in progress
	abandon context.CancelFunc // ends the storing of files in that one, or the wait for it; nil: it does neither, or must store them

	unwritable bool      // the store accepts no record of the box
	broken     bool      // a write has failed, not for want of room in the store, and none succeeded since
	failures   int       // failed writes since the last successful one, but those of copyFailures
	full       bool      // the last write failed since the disk or the store is full
	retry      time.Time // no write begins before; zero: any time

	copyFailures int       // writes of the box while it stays in memory for which the store had no room
	retryCopy    time.Time // no such write begins before; zero: any time
	drops        uint64    // times that an eviction has dropped what the disk had of the box
	bytes        int64     // size of what was written last, also if it was dropped
}

// backoff returns how long a box is not written after so many failures before the last one.
func backoff(failures int) time.Duration {
	return min(firstBackoff<<min(failures, 10), lastBackoff)
}

// failedLocked records why the box could not be written. With live, it was to stay in memory.
func (b *Box) failedLocked(err error, live bool) {
	now := b.env.now()
	_, full := errors.AsType[*snapshot.FullError](err)
	b.disk.broken = b.disk.broken || !full // until a write succeeds
	if full && live {
		// There may be room for it once it leaves memory.
		b.disk.retryCopy = now.Add(backoff(b.disk.copyFailures))
		b.disk.copyFailures++
		return
	}
	b.disk.full = errors.Is(err, snapshot.ErrFull) || errors.Is(err, engine.ErrExhausted)
	b.disk.retry = now.Add(backoff(b.disk.failures))
	b.disk.retryCopy = b.disk.retry
	b.disk.failures++
}

// consentToDrop reports whether an eviction may drop what the disk has of the box; with now, it
// does, and calls kept if it could not. The box is in memory, can be written again, and is before it
// leaves memory.
func (b *Box) consentToDrop(now bool) (kept func(), ok bool) {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if b.state != stateReady && b.state != stateRunning && b.state != statePaused || b.disk.broken {
		return nil, false
	}
	if !now {
		return nil, true
	}
	had, at, memory, files := b.hasData, b.written, b.disk.memorySeq, b.disk.filesSeq
	b.hasData, b.written = false, time.Time{}
	b.disk.memorySeq, b.disk.filesSeq = 0, 0
	b.disk.drops++
	if retry := b.env.now().Add(firstBackoff); retry.After(b.disk.retryCopy) {
		b.disk.retryCopy = retry
	}
	drops := b.disk.drops
	return func() {
		b.reg.mu.Lock()
		defer b.reg.mu.Unlock()
		if b.disk.drops == drops && b.disk.memorySeq == 0 { // it was not written since
			b.hasData, b.written = had, at
			b.disk.memorySeq, b.disk.filesSeq = memory, files
		}
	}, true
}

// writeBackoffLocked reports whether the last write failed so recently that the next one waits.
func (b *Box) writeBackoffLocked() bool { return b.env.now().Before(b.disk.retry) }

// write updates what the disk has of a box: first its memory, which is what a client whose
// server is killed meanwhile needs, then its files, which take long if there are thousands. live
// says that the box stays in memory. turn stands in the queue of records.writes; write leaves
// it. ctx bounds the waits for a slot. write calls attempted when the memory is written, or
// that has failed.
func (l *lifecycle) write(ctx context.Context, b *Box, live bool, turn *fairslots.Turn, attempted func()) error {
	defer func() { turn.Release() }()
	if !b.writing.TryLock() {
		// Another write of the box may wait for a slot, so no caller waits while holding one.
		turn.Release()
		l.awaitWrite(b)
		turn = l.records.writes.Enter(string(b.key.owner))
	}
	defer b.writing.Unlock()
	// Without calls, user code may have run on in the background, unless the box was paused.
	quiescent := b.power.isPaused() || live && !l.parts.Machines.Pauses()
	l.reg.mu.Lock()
	// Nor does a call in flight count as a use again when its code runs on.
	clean := b.disk.memorySeq == b.use.seq && quiescent && b.use.calls == 0
	// A call in flight may be changing the files, and a later write follows it.
	leaveFiles := clean && b.disk.filesSeq == b.use.seq || live && b.use.calls > 0
	drops := b.disk.drops
	l.reg.mu.Unlock()
	record, err := l.writeMemory(ctx, b, live, clean, drops, turn)
	attempted()
	if record == nil || err != nil || leaveFiles {
		return err
	}
	// The memory of other boxes does not wait for the files of this one.
	turn.Release()
	turn = l.records.archives.Enter(string(b.key.owner))
	took := l.writeFiles(ctx, b, live, record, turn)
	if !clean {
		l.reg.mu.Lock()
		b.disk.took += took
		l.reg.mu.Unlock()
	}
	return nil
}

// awaitWrite locks b.writing when the write in progress is over, which leaves the files of the
// box to the caller if the box stays in memory.
func (l *lifecycle) awaitWrite(b *Box) {
	l.reg.mu.Lock()
	b.disk.waiting++
	if b.disk.abandon != nil {
		b.disk.abandon()
	}
	l.reg.mu.Unlock()
	b.writing.Lock()
	l.reg.mu.Lock()
	b.disk.waiting--
	l.reg.mu.Unlock()
}

// writeMemory writes the memory of a box whose writing lock the caller holds; with clean, only
// its description. drops is what they were when clean was found out. It returns the record; nil
// without an error if a live box has ended.
func (l *lifecycle) writeMemory(ctx context.Context, b *Box, live, clean bool, drops uint64, turn *fairslots.Turn) (*snapshot.Lease, error) {
	if !clean {
		if err := turn.Wait(ctx); err != nil {
			return nil, err
		}
	}
	l.reg.mu.Lock()
	gone := live && !b.state.live() // hibernate writes its last state
	seq, meta, inCall := b.use.seq, b.metaLocked(), b.use.calls > 0
	l.reg.mu.Unlock()
	if gone {
		return nil, nil
	}
	record, err := l.recordOf(b)
	if err != nil {
		l.reg.mu.Lock()
		defer l.reg.mu.Unlock()
		b.disk.unwritable = errors.Is(err, snapshot.ErrInvalid)
		b.failedLocked(err, live)
		return nil, err
	}
	meta.Stale = live
	meta.Written = record.Meta().Written
	begun := time.Now()
	if clean {
		ranOn := !live && !b.power.isPaused() // see describeLatest
		meta.Restored, meta.InCall = ranOn || record.Meta().Restored, record.Meta().InCall
		err = record.Update(meta)
	} else { // the snapshot may or may not include the effects of a call in flight
		meta.InCall = inCall
		prev, began := record.Dir(), false
		err = l.records.putMemory(ctx, record, meta, b, func(_ context.Context, dir string, room bool) {
			l.reg.mu.Lock()
			began = b.use.seq != seq
			drops = b.disk.drops // the next drop is of what is written now
			l.reg.mu.Unlock()
			if room {
				l.records.keepHome(b, prev, dir)
			}
		})
		if err == nil && began && !inCall { // the snapshot may include the effects of a call that has begun meanwhile
			meta.InCall, meta.Written = true, record.Meta().Written
			err = record.Update(meta)
		}
	}
	written, data, bytes := record.Meta().Written, record.Dir() != "", record.Bytes()
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	there := b.disk.drops == drops // it has not been dropped since
	if there {
		b.hasData, b.written = data, written
	}
	if err != nil {
		b.failedLocked(err, live)
		return nil, err
	}
	if !clean {
		if there {
			b.disk.memorySeq, b.disk.bytes = seq, bytes
		}
		b.disk.took = time.Since(begun)
		b.use.begun, b.use.worked = l.now(), 0
		if inCall {
			b.disk.inCall = l.now() // what the call does is written soon after its end
		} else {
			b.disk.writtenAt = l.now()
		}
	}
	b.disk.broken, b.disk.failures, b.disk.retry = false, 0, time.Time{}
	if there {
		b.disk.copyFailures, b.disk.retryCopy = 0, time.Time{}
	}
	return record, nil
}

// writeFiles stores the files of a box whose memory was just written. With live, it leaves them to
// another write of the box that waits, or comes meanwhile. Without, none is left that would do it.
// It returns how long it took, without the wait for a slot.
func (l *lifecycle) writeFiles(ctx context.Context, b *Box, live bool, record *snapshot.Lease, turn *fairslots.Turn) (took time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.reg.mu.Lock()
	seq, left := b.disk.memorySeq, live && b.disk.waiting > 0
	if live && !left {
		b.disk.abandon = cancel
	}
	l.reg.mu.Unlock()
	if left {
		return 0
	}
	// The agent of a paused box does not answer.
	tried, full := b.power.runs() && turn.Wait(ctx) == nil && b.power.runs(), false
	if tried {
		begun := time.Now()
		_, full = errors.AsType[*snapshot.FullError](l.records.putFiles(ctx, record, b))
		took = time.Since(begun)
	}
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	b.disk.abandon = nil
	// Where the store had no room, it may have when the box leaves memory. Another failure is not
	// tried again before the next use.
	if tried && ctx.Err() == nil && seq != 0 && b.disk.memorySeq == seq && !(live && full) {
		b.disk.filesSeq = seq
	}
	return took
}

// recordOf returns the record of a box, and makes it if that failed when the box started.
func (l *lifecycle) recordOf(b *Box) (*snapshot.Lease, error) {
	l.reg.mu.Lock()
	record := b.lease
	l.reg.mu.Unlock()
	if record != nil {
		return record, nil
	}
	record, err := l.records.tryCreate(b)
	if err != nil {
		return nil, err
	}
	record.AllowDrop(b.consentToDrop)
	l.reg.mu.Lock()
	ended := !b.state.live() && b.state != stateHibernating
	if !ended {
		b.lease = record
	}
	l.reg.mu.Unlock()
	if ended { // no other code releases it
		l.records.release(record, false)
		return nil, errEnded
	}
	return record, nil
}

// metaLocked describes the box for its record. The caller sets Stale, InCall and Written.
func (b *Box) metaLocked() snapshot.Meta {
	now := b.env.now()
	return snapshot.Meta{
		Purpose: snapshot.Box, Owner: string(b.key.owner), Kind: string(b.key.kind), BoxID: b.key.id,
		Name: b.name, Description: b.desc, Interpreter: string(b.interpreter), Template: b.template, Flavor: string(b.flavor), Limits: b.limits,
		Created: b.created, Ran: b.ranLocked(), Unreported: b.unreportedLocked(),
		// By the clock as it is now: it may have been set since, and the age is computed from it.
		Used: now.Add(-now.Sub(b.use.lastUsed)),
	}
}

// writeLive writes a box that stays in memory, and reports whether that succeeded. A write
// that has begun is finished while the Manager closes: it may be all that is written of
// the box. ctx bounds the wait for a slot, for which turn stands in the queue. For attempted see
// write.
func (l *lifecycle) writeLive(ctx context.Context, b *Box, turn *fairslots.Turn, attempted func()) bool {
	l.reg.mu.Lock()
	writable := b.machine != nil && b.canHibernateLocked()
	l.reg.mu.Unlock()
	if !writable {
		turn.Release()
		return true
	}
	err := l.write(ctx, b, true, turn, attempted)
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
		turn := l.records.writes.Enter(string(b.key.owner))
		l.wg.Go(func() { l.writeLive(l.base, b, turn, func() {}) })
	}
}
