package box

import (
	"context"
	"errors"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// powerTimeout bounds the pausing and resuming of a machine, which take
	// milliseconds.
	powerTimeout = 10 * time.Second
	// busyShare is the part of one core above which a box without calls counts as
	// at work: something that user code left running.
	busyShare = 0.02
	// saveGap is the pause in the use of a box that is taken for writing it, which
	// costs about 0.2 s of a core and holds up a call that comes just then for less.
	saveGap = time.Second
	// A box in use is written at most every saveEvery, and at most once in saveShare
	// times the duration of its last write: that is 1% of a core and, for a box with
	// pandas loaded, 1.5 MB of disk writes a second. It is written at least every
	// saveAtLeast.
	saveEvery   = 30 * time.Second
	saveAtLeast = 5 * time.Minute
	saveShare   = 100
	// A new box is written in the first pause after its first call. For earlyGap
	// times as long as such a write took there is none for any other box, so that a
	// burst of new boxes costs a fifth of a core for a while, and none as long as
	// boxes are being made, which earlyYield looks for again.
	earlyGap   = 4
	earlyYield = 250 * time.Millisecond
)

// load is what a box had computed at one look.
type load struct {
	at  time.Time
	cpu time.Duration
}

// rests reports whether idle boxes are written to disk and paused.
func (m *Manager) maintainsIdle() bool {
	return m.cfg().PauseAfter > 0 && (m.hibernates() || m.parts.Machines.Pauses())
}

// checkIdle lets boxes rest that nobody has used for a while and that compute
// nothing: they are written to disk, so that little is lost if the server is
// killed, and paused, so that they take no CPU. New boxes are written soon after
// their first call, boxes in steady use in between. It returns when it is to be
// called again; checkIdleInLocked may make that earlier.
func (m *Manager) checkIdle() (next time.Duration) {
	next = m.cfg().tickOf()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.maintainsIdle() && m.phase == phaseOpen {
		for _, s := range m.boxes {
			if !s.busyLocked() && !s.paused && !s.maintaining {
				next = min(next, m.idleStepLocked(s))
			}
		}
	}
	next = max(next, 0)
	m.nextCheck = time.Now().Add(next)
	return next
}

// idleStepLocked begins what is due for an idle box, and returns when something else
// may be.
func (m *Manager) idleStepLocked(s *Box) (next time.Duration) {
	next = m.cfg().tickOf()
	due := func(left time.Duration) bool {
		if left > 0 {
			next = min(next, left)
		}
		return left <= 0
	}
	begin := func(do func(*Box)) {
		s.maintaining = true
		m.wg.Go(func() { do(s) })
	}
	pause, gap := m.cfg().PauseAfter, m.cfg().PauseAfter/4
	idle, looked := m.now().Sub(s.lastUsed), !s.load.at.IsZero()
	switch {
	case !looked && due(pause-gap-idle): // to compare with when it is to be paused
		begin(m.sampleLoad)
	case looked && due(pause-idle) && due(gap-time.Since(s.load.at)):
		begin(m.idle)
	case s.savedUse == 0 && !s.early && s.worthLocked() && due(saveGap-idle) && due(m.earlyInLocked()):
		s.early, m.earlyBusy = true, true
		begin(m.saveEarly)
	case s.savedUse != s.use && due(saveGap-idle) && due(s.saveEveryLocked()-m.now().Sub(s.savedAt)):
		begin(m.save)
	}
	return next
}

// saveEveryLocked returns how long the box goes without being written while it is in
// use.
func (s *Box) saveEveryLocked() time.Duration {
	return min(max(saveEvery, saveShare*s.saveTook), saveAtLeast)
}

// worthLocked reports whether the box has anything to lose but its id.
func (s *Box) worthLocked() bool {
	return s.called || s.origin.parent != nil || s.origin.saved != ""
}

// earlyInLocked returns how long no new box is to be written.
func (m *Manager) earlyInLocked() time.Duration {
	if m.earlyBusy || m.starting.Load() > 0 {
		return earlyYield
	}
	return time.Until(m.earlyNext)
}

// checkIdleInLocked sees to it that checkIdle is called after d, or before.
func (m *Manager) checkIdleInLocked(d time.Duration) {
	at := time.Now().Add(d)
	if !at.Before(m.nextCheck) {
		return
	}
	m.nextCheck = at
	select {
	case m.wakeReaper <- struct{}{}:
	default: // it is about to see the new time
	}
}

// idleDone says that rest or save is over.
func (m *Manager) idleDone(s *Box) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.maintaining = false
	m.checkIdleInLocked(0)
}

// look notes what a box has computed.
func (m *Manager) sampleLoad(s *Box) {
	defer m.idleDone(s)
	ctx, cancel := context.WithTimeout(m.base, powerTimeout)
	defer cancel()
	m.isIdle(ctx, s)
}

// saveEarly writes a new box for the first time.
func (m *Manager) saveEarly(s *Box) {
	defer m.idleDone(s)
	begun := time.Now()
	m.saveNow(s)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.earlyBusy, m.earlyNext = false, time.Now().Add(earlyGap*time.Since(begun))
}

// save writes a living box to disk.
func (m *Manager) save(s *Box) {
	defer m.idleDone(s)
	m.saveNow(s)
}

// saveNow is save; it reports whether there is nothing left to write.
func (m *Manager) saveNow(s *Box) bool {
	if s.claim == nil || !m.hibernates() {
		return true
	}
	if m.writes.Acquire(m.base, 1) != nil {
		return false
	}
	defer m.writes.Release(1)
	return m.writeLive(s)
}

// writeLive writes a box that goes on, and reports whether that went well. What it
// has begun it also finishes while the Manager closes: it may be all that is written
// of the box. The caller has a turn of m.writes.
func (m *Manager) writeLive(s *Box) bool {
	m.mu.Lock()
	there := s.machine != nil && s.claim != nil
	m.mu.Unlock()
	if !there {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := m.write(ctx, s, true)
	if err != nil && !s.ended() {
		m.log.Warn("box not written to disk", logkey.Guest, s.guestID, logkey.Error, err)
	}
	return err == nil
}

func (m *Manager) idle(s *Box) {
	defer m.idleDone(s)
	m.mu.Lock()
	use, unsaved := s.use, s.savedUse != s.use
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.base, powerTimeout)
	defer cancel()
	if !m.isIdle(ctx, s) {
		// What goes on computing is not paused, but without calls it would never
		// have been written either.
		if unsaved {
			m.saveNow(s)
		}
		return
	}
	if !m.saveNow(s) {
		return
	}
	if m.parts.Machines.Pauses() {
		if err := s.pause(m.base, use); err != nil && !s.ended() {
			m.log.Warn("idle box not paused", logkey.Guest, s.guestID, logkey.Error, err)
		}
	}
}

// isIdle reports whether the box has computed next to nothing since the last
// look. The first look cannot tell.
func (m *Manager) isIdle(ctx context.Context, s *Box) bool {
	m.mu.Lock()
	use := s.use
	m.mu.Unlock()
	stats, err := s.machine.Stats(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.use != use {
		return false // and what it computed is the call's
	}
	now, last := time.Now(), s.load
	if err != nil {
		// An engine that does not measure cannot show that the box is busy. Any other
		// error comes from the end of the box or of a host in trouble.
		s.load.at = now
		return errors.Is(err, engine.ErrUnsupported)
	}
	s.load = load{at: now, cpu: stats.CPU}
	if last.at.IsZero() {
		return false
	}
	return (stats.CPU - last.cpu).Seconds() <= busyShare*now.Sub(last.at).Seconds()
}

// pause stops the box in its tracks, unless a call has come since the given use:
// also one that is over, since what it did is not on disk yet.
func (s *Box) pause(ctx context.Context, use uint64) error {
	s.power.Lock()
	defer s.power.Unlock()
	s.m.mu.Lock()
	if s.tomb != nil || s.busyLocked() || s.use != use || s.paused {
		s.m.mu.Unlock()
		return nil
	}
	s.paused = true
	s.m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, powerTimeout)
	defer cancel()
	err := s.machine.Pause(ctx)
	if err != nil {
		s.m.mu.Lock()
		s.paused = false
		s.m.mu.Unlock()
	}
	return err
}

// resume lets a paused box go on. The caller has counted a call, so that it is
// not paused again.
func (s *Box) resume(ctx context.Context, op string) error {
	s.power.Lock()
	defer s.power.Unlock()
	if !s.paused {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, powerTimeout)
	defer cancel()
	if err := s.machine.Resume(ctx); err != nil {
		if s.ended() {
			return s.goneNow(op, err)
		}
		if ctx.Err() != nil {
			return s.cancelled(op, context.Cause(ctx))
		}
		return s.error(CodeInternal, op, "The box could not be resumed", "Try again.", err)
	}
	s.m.mu.Lock()
	s.paused = false
	s.load = load{}
	s.m.mu.Unlock()
	return nil
}

// ended reports whether the box has ended.
func (s *Box) ended() bool {
	select {
	case <-s.terminated:
		return true
	default:
		return false
	}
}
