package box

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// busyFraction is the fraction of one core above which a box without calls counts as
	// busy: user code left something running.
	busyFraction = 0.02
	// saveGap is how long a box must be unused before it is saved. Saving costs about
	// 0.2 s of a core, and delays a call that arrives meanwhile by less.
	saveGap = time.Second
	// A box in use is written at most every saveEvery, and at most once in saveIntervalFactor
	// times the duration of its last write: that is 1% of a core and, for a box with
	// pandas loaded, 1.5 MB of disk writes a second. It is written at least every
	// saveAtLeast.
	saveEvery          = 30 * time.Second
	saveAtLeast        = 5 * time.Minute
	saveIntervalFactor = 100
	// Calls that took saveWorth together are written in the next pause regardless of the interval, if
	// they took saveWorthFactor times as long as the last write.
	saveWorth       = 10 * time.Second
	saveWorthFactor = 20
	// A new box is written in the first pause after its first call. After a first write
	// that took t, the next first write waits earlyGap×t, so that a burst of new boxes
	// costs at most a fifth of a core, but at most earlyGapMax: a box decides how long its
	// write takes, and others' boxes wait too. None begins while boxes are being made.
	earlyGap    = 4
	earlyGapMax = 5 * time.Second
	// Calls may leave no pause. A new box is then written during one after firstInCall, and again
	// every saveAtLeast.
	firstInCall = 10 * time.Second
	// firstInCallLatest is when it is written even while boxes of others start.
	firstInCallLatest = 30 * time.Second
)

// idleState is what the maintainer knows of a box.
type idleState struct {
	maintaining bool // a goroutine of the maintainer works on the box
	load        load
}

// load is a sample of the CPU time of a box.
type load struct {
	at  time.Time
	cpu time.Duration
}

// maintains reports whether idle boxes are written to disk or paused.
func (m *maintainer) maintains() bool {
	return m.cfg().PauseAfter > 0 && (m.hibernates() || m.parts.Machines.Pauses())
}

// checkIdle writes boxes to disk that were unused for a while and use no CPU, so that little is
// lost if the server is killed, and pauses them, so that they take no CPU. New boxes are
// written soon after their first call, boxes in steady use in between, and during a call if
// there is no pause. It returns when it has to be called again; checkInLocked may make that
// earlier.
func (m *maintainer) checkIdle() (next time.Duration) {
	next = m.cfg().tick()
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if m.maintains() && m.reg.phase == phaseOpen {
		for _, b := range m.reg.boxes {
			if !b.idle.maintaining && (b.state == stateRunning || b.state == stateReady && len(b.use.pins) == 0 || b.state == statePaused) {
				next = min(next, m.maintainLocked(b))
			}
		}
	}
	next = max(next, 0)
	m.nextCheck = time.Now().Add(next)
	return next
}

// maintainLocked begins the work that is due on a box that is idle or has calls in flight, and
// returns the time until more may be due.
func (m *maintainer) maintainLocked(b *Box) (next time.Duration) {
	next = m.cfg().tick()
	due := func(left time.Duration) bool {
		if left > 0 {
			next = min(next, left)
		}
		return left <= 0
	}
	begin := func(do func(*Box)) {
		b.idle.maintaining = true
		m.wg.Go(func() {
			defer m.finished(b)
			do(b)
		})
	}
	pause, gap := m.cfg().PauseAfter, m.cfg().PauseAfter/4
	idle, sampled := m.now().Sub(b.use.lastUsed), !b.idle.load.at.IsZero()
	writable, written := b.canHibernateLocked(), m.now().Sub(b.disk.writtenAt)
	first := writable && !b.disk.early && b.worthSavingLocked() && (b.disk.memorySeq == 0 || b.disk.firstInCall)
	switch {
	case b.state == statePaused:
		if writable && b.disk.drops > 0 && b.disk.memorySeq == 0 && len(b.use.pins) == 0 && due(b.disk.retryCopy.Sub(m.now())) {
			b.disk.retryCopy = m.now().Add(firstBackoff)
			begin(m.resumeDropped)
		}
	case b.state == stateRunning && !writable:
	case b.state == stateRunning && first && !b.disk.firstInCall:
		switch {
		case due(firstInCall-written) && m.earlyAllowedLocked(due):
			b.disk.firstInCall, m.earlyBusy = true, true
			begin(m.writeEarly)
		case due(firstInCallLatest - written): // boxes of others start all the time
			b.disk.firstInCall = true
			begin(func(b *Box) { m.writeIfDue(b) })
		}
	case b.state == stateRunning:
		if (b.disk.memorySeq == 0 || due(saveAtLeast-min(written, m.now().Sub(b.disk.inCall)))) && due(b.disk.retryCopy.Sub(m.now())) {
			begin(func(b *Box) { m.writeIfDue(b) })
		}
	case !sampled && due(pause-gap-idle): // to compare with before pausing
		begin(m.sampleLoad)
	case sampled && due(pause-idle) && due(gap-time.Since(b.idle.load.at)):
		begin(m.writeAndPause)
	case first && due(saveGap-idle) && m.earlyAllowedLocked(due):
		b.disk.early, m.earlyBusy = true, true
		begin(m.writeEarly)
	case writable && b.disk.memorySeq != b.use.seq && due(saveGap-idle) && (b.worthSavingSoonLocked() || due(b.saveEveryLocked()-written)) && due(b.disk.retryCopy.Sub(m.now())):
		begin(func(b *Box) { m.writeIfDue(b) })
	}
	return next
}

// saveEveryLocked returns the interval between writes of the box while it is in use.
func (b *Box) saveEveryLocked() time.Duration {
	return min(max(saveEvery, saveIntervalFactor*b.disk.took), saveAtLeast)
}

// worthSavingSoonLocked reports whether the calls since the last write took so long that writing
// what they did costs little beside them.
func (b *Box) worthSavingSoonLocked() bool {
	return b.use.worked >= max(saveWorth, saveWorthFactor*b.disk.took)
}

// worthSavingLocked reports whether the box has state worth saving.
func (b *Box) worthSavingLocked() bool {
	return b.use.called || b.origin.parent != nil || b.origin.snapshot != ""
}

// earlyAllowedLocked reports whether a new box may be written. It calls due with the
// time after which it may, if that is known: the ends of the write of another new box
// and of the start of the last box wake the maintainer.
func (m *maintainer) earlyAllowedLocked(due func(time.Duration) bool) bool {
	return !m.earlyBusy && m.reg.starting == 0 && due(time.Until(m.earlyNext))
}

// checkInLocked schedules checkIdle within d. The caller holds reg.mu.
func (m *maintainer) checkInLocked(d time.Duration) {
	at := time.Now().Add(d)
	if !at.Before(m.nextCheck) {
		return
	}
	m.nextCheck = at
	select {
	case m.wake <- struct{}{}:
	default: // the maintainer is about to see the new time
	}
}

// callEnded schedules checkIdle for the next pause of a box that is to be written then.
func (m *maintainer) callEnded(b *Box) {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if !b.disk.early || b.worthSavingSoonLocked() {
		m.checkInLocked(saveGap)
	}
}

// finished notes that a goroutine of the maintainer has finished its work on a box.
func (m *maintainer) finished(b *Box) {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	b.idle.maintaining = false
	m.checkInLocked(0)
}

// sampleLoad samples the CPU time of a box.
func (m *maintainer) sampleLoad(b *Box) {
	ctx, cancel := context.WithTimeout(m.base, powerTimeout)
	defer cancel()
	m.isIdle(ctx, b)
}

// writeEarly writes a new box for the first time. The next new box does not wait for the files of
// this one.
func (m *maintainer) writeEarly(b *Box) {
	begun := time.Now()
	over := sync.OnceFunc(func() {
		m.reg.mu.Lock()
		defer m.reg.mu.Unlock()
		m.earlyBusy, m.earlyNext = false, time.Now().Add(min(earlyGap*time.Since(begun), earlyGapMax))
		m.checkInLocked(0)
	})
	m.writeIfDueThen(b, over)
	over()
}

// writeIfDue writes a box to disk that stays in memory, and reports whether there is nothing
// left to write.
func (m *maintainer) writeIfDue(b *Box) bool { return m.writeIfDueThen(b, func() {}) }

// writeIfDueThen is writeIfDue that calls attempted when the memory is written, or that has failed. If nothing
// is written it may not call it.
func (m *maintainer) writeIfDueThen(b *Box, attempted func()) bool {
	if !m.hibernates() {
		return true
	}
	m.reg.mu.Lock()
	wait := m.now().Before(b.disk.retryCopy)
	m.reg.mu.Unlock()
	return !wait && m.life.writeLive(m.base, b, m.life.records.writes.Enter(string(b.key.owner)), attempted)
}

// writeAndPause writes an idle box to disk and pauses it.
func (m *maintainer) writeAndPause(b *Box) {
	m.reg.mu.Lock()
	seq, unsaved := b.use.seq, b.disk.memorySeq != b.use.seq
	m.reg.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.base, powerTimeout)
	defer cancel()
	if !m.isIdle(ctx, b) {
		// A box that computes is not paused, but without calls nothing else would write it.
		if unsaved {
			m.writeIfDue(b)
		}
		return
	}
	if !m.writeIfDue(b) {
		return
	}
	if m.parts.Machines.Pauses() {
		if err := b.pause(m.base, seq); err != nil && !b.ended() {
			m.log.Warn("idle box not paused", logkey.Guest, b.guestID, logkey.Error, err)
		}
	}
}

// resumeDropped resumes a paused box of which evictions have dropped what the disk had, so that it
// is written and paused as any idle box is.
func (m *maintainer) resumeDropped(b *Box) {
	if _, err := b.power.resume(m.base, b.machine, powerTimeout, b.clearQuiescent); err != nil {
		m.log.Warn("paused box not resumed to be written", logkey.Guest, b.guestID, logkey.Error, err)
		return
	}
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if b.state == statePaused {
		m.reg.setState(b, stateReady)
		b.idle.load, b.disk.retryCopy = load{}, time.Time{}
	}
}

// isIdle samples the CPU time of the box, and reports whether it used almost none since
// the last sample and transfers no data. After the first sample it reports false.
func (m *maintainer) isIdle(ctx context.Context, b *Box) bool {
	m.reg.mu.Lock()
	seq := b.use.seq
	m.reg.mu.Unlock()
	stats, err := b.machine.Stats(ctx)
	active := b.network.active()
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if b.use.seq != seq {
		return false // a call used the CPU time
	}
	if active && m.now().Sub(b.use.lastUsed) < activeNetwork {
		b.idle.load = load{at: time.Now(), cpu: stats.CPU}
		return false
	}
	now, last := time.Now(), b.idle.load
	if err != nil {
		// An engine that does not measure cannot show that the box is busy. Any other
		// error comes from the end of the box or of a host in trouble.
		b.idle.load.at = now
		return errors.Is(err, engine.ErrUnsupported)
	}
	b.idle.load = load{at: now, cpu: stats.CPU}
	if last.at.IsZero() {
		return false
	}
	return (stats.CPU - last.cpu).Seconds() <= busyFraction*now.Sub(last.at).Seconds()
}

// tick is the interval of the checks for idle boxes: short enough for the shorter of the
// two idle times.
func (c *Config) tick() time.Duration {
	if c.PauseAfter > 0 {
		return min(c.CleanupInterval, max(c.PauseAfter/4, 50*time.Millisecond))
	}
	return c.CleanupInterval
}
