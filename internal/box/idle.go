package box

import (
	"context"
	"errors"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// busyShare is the part of one core above which a box without calls counts as
	// busy: user code left something running.
	busyShare = 0.02
	// saveGap is how long a box must be unused before it is saved. Saving costs about
	// 0.2 s of a core, and delays a call that arrives meanwhile by less.
	saveGap = time.Second
	// A box in use is written at most every saveEvery, and at most once in saveShare
	// times the duration of its last write: that is 1% of a core and, for a box with
	// pandas loaded, 1.5 MB of disk writes a second. It is written at least every
	// saveAtLeast.
	saveEvery   = 30 * time.Second
	saveAtLeast = 5 * time.Minute
	saveShare   = 100
	// A new box is written in the first pause after its first call. After a first write
	// that took t, the next first write waits earlyGap×t, so that a burst of new boxes
	// costs at most a fifth of a core, but at most earlyGapMax: a box decides how long its
	// write takes, and others' boxes wait too. None begins while boxes are being made.
	earlyGap    = 4
	earlyGapMax = 5 * time.Second
)

// idleState is what the maintainer knows of a box.
type idleState struct {
	working bool // a goroutine of the maintainer works on the box
	load    load
}

// load is a sample of the CPU time of a box.
type load struct {
	at  time.Time
	cpu time.Duration
}

// maintains reports whether idle boxes are written to disk or paused.
func (p *maintainer) maintains() bool {
	return p.cfg().PauseAfter > 0 && (p.hibernates() || p.parts.Machines.Pauses())
}

// checkIdle writes boxes to disk that were unused for a while and use no CPU, so that little is
// lost if the server is killed, and pauses them, so that they take no CPU. New boxes are
// written soon after their first call, boxes in steady use in between. It returns when it has
// to be called again; checkInLocked may make that earlier.
func (p *maintainer) checkIdle() (next time.Duration) {
	next = p.cfg().tick()
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if p.maintains() && p.reg.phase == phaseOpen {
		for _, b := range p.reg.boxes {
			if b.state == stateReady && len(b.use.pins) == 0 && !b.idle.working {
				next = min(next, p.maintainLocked(b))
			}
		}
	}
	next = max(next, 0)
	p.nextCheck = time.Now().Add(next)
	return next
}

// maintainLocked begins the work that is due on an idle box, and returns the time until
// more may be due.
func (p *maintainer) maintainLocked(b *Box) (next time.Duration) {
	next = p.cfg().tick()
	due := func(left time.Duration) bool {
		if left > 0 {
			next = min(next, left)
		}
		return left <= 0
	}
	begin := func(do func(*Box)) {
		b.idle.working = true
		p.wg.Go(func() {
			defer p.finished(b)
			do(b)
		})
	}
	pause, gap := p.cfg().PauseAfter, p.cfg().PauseAfter/4
	idle, sampled := p.now().Sub(b.use.lastUsed), !b.idle.load.at.IsZero()
	switch {
	case !sampled && due(pause-gap-idle): // to compare with before pausing
		begin(p.sampleLoad)
	case sampled && due(pause-idle) && due(gap-time.Since(b.idle.load.at)):
		begin(p.saveAndPause)
	case b.disk.seq == 0 && !b.disk.early && b.worthSavingLocked() && due(saveGap-idle) && p.earlyAllowedLocked(due):
		b.disk.early, p.earlyBusy = true, true
		begin(p.saveEarly)
	case b.disk.seq != b.use.seq && due(saveGap-idle) && due(b.saveEveryLocked()-p.now().Sub(b.disk.at)) && due(b.disk.retry.Sub(p.now())):
		begin(func(b *Box) { p.save(b) })
	}
	return next
}

// saveEveryLocked returns the interval between writes of the box while it is in use.
func (b *Box) saveEveryLocked() time.Duration {
	return min(max(saveEvery, saveShare*b.disk.took), saveAtLeast)
}

// worthSavingLocked reports whether the box has state worth saving.
func (b *Box) worthSavingLocked() bool {
	return b.use.called || b.origin.parent != nil || b.origin.snapshot != ""
}

// earlyAllowedLocked reports whether a new box may be written. It calls due with the
// time after which it may, if that is known: the ends of the write of another new box
// and of the start of the last box wake the maintainer.
func (p *maintainer) earlyAllowedLocked(due func(time.Duration) bool) bool {
	return !p.earlyBusy && p.reg.starting == 0 && due(time.Until(p.earlyNext))
}

// checkInLocked schedules checkIdle within d. The caller holds reg.mu.
func (p *maintainer) checkInLocked(d time.Duration) {
	at := time.Now().Add(d)
	if !at.Before(p.nextCheck) {
		return
	}
	p.nextCheck = at
	select {
	case p.wake <- struct{}{}:
	default: // the maintainer is about to see the new time
	}
}

// callEnded schedules checkIdle for the next pause of a box that was not written yet.
func (p *maintainer) callEnded(b *Box) {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if !b.disk.early {
		p.checkInLocked(saveGap)
	}
}

// finished notes that a goroutine of the maintainer has finished its work on a box.
func (p *maintainer) finished(b *Box) {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	b.idle.working = false
	p.checkInLocked(0)
}

// sampleLoad samples the CPU time of a box.
func (p *maintainer) sampleLoad(b *Box) {
	ctx, cancel := context.WithTimeout(p.base, powerTimeout)
	defer cancel()
	p.isIdle(ctx, b)
}

// saveEarly writes a new box for the first time.
func (p *maintainer) saveEarly(b *Box) {
	begun := time.Now()
	p.save(b)
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	p.earlyBusy, p.earlyNext = false, time.Now().Add(min(earlyGap*time.Since(begun), earlyGapMax))
}

// save writes a box to disk that stays in memory, and reports whether there is nothing
// left to write.
func (p *maintainer) save(b *Box) bool {
	if !p.hibernates() {
		return true
	}
	p.reg.mu.Lock()
	wait := b.backoffLocked()
	p.reg.mu.Unlock()
	return !wait && p.life.save(p.base, b, p.life.records.writes.enter(b.key.owner))
}

// saveAndPause writes an idle box to disk and pauses it.
func (p *maintainer) saveAndPause(b *Box) {
	p.reg.mu.Lock()
	seq, unsaved := b.use.seq, b.disk.seq != b.use.seq
	p.reg.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.base, powerTimeout)
	defer cancel()
	if !p.isIdle(ctx, b) {
		// A box that computes is not paused, but without calls nothing else would write it.
		if unsaved {
			p.save(b)
		}
		return
	}
	if !p.save(b) {
		return
	}
	if p.parts.Machines.Pauses() {
		if err := b.pause(p.base, seq); err != nil && !b.ended() {
			p.log.Warn("idle box not paused", logkey.Guest, b.guestID, logkey.Error, err)
		}
	}
}

// isIdle samples the CPU time of the box, and reports whether it used almost none since
// the last sample and transfers no data. After the first sample it reports false.
func (p *maintainer) isIdle(ctx context.Context, b *Box) bool {
	p.reg.mu.Lock()
	seq := b.use.seq
	p.reg.mu.Unlock()
	stats, err := b.machine.Stats(ctx)
	active := b.network.active()
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if b.use.seq != seq {
		return false // a call used the CPU time
	}
	if active && p.now().Sub(b.use.lastUsed) < activeNetwork {
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
	return (stats.CPU - last.cpu).Seconds() <= busyShare*now.Sub(last.at).Seconds()
}

// tick is the interval of the checks for idle boxes: short enough for the shorter of the
// two idle times.
func (c *Config) tick() time.Duration {
	if c.PauseAfter > 0 {
		return min(c.CleanupInterval, max(c.PauseAfter/4, 50*time.Millisecond))
	}
	return c.CleanupInterval
}
