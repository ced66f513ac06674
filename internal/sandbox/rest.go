package sandbox

import (
	"context"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// powerTimeout bounds the pausing and resuming of a machine, which take
	// milliseconds.
	powerTimeout = 10 * time.Second
	// busyShare is the part of one core above which a box without calls counts as
	// at work: something that user code left running.
	busyShare = 0.02
	// saveEvery is how long a box in steady use may go without being written to
	// disk, and saveGap the pause in its use that is taken for it: writing costs
	// about 0.2 s of a core, and holds up a call that comes just then for less.
	saveEvery = 5 * time.Minute
	saveGap   = time.Second
)

// load is what a box had computed at one look.
type load struct {
	at  time.Time
	cpu time.Duration
}

// rests reports whether idle boxes are written to disk and paused.
func (m *Manager) rests() bool {
	return m.cfg().PauseAfter > 0 && (m.hibernates() || m.parts.Machines.Pauses())
}

// restIdle lets boxes rest that nobody has used for a while and that compute
// nothing: they are written to disk, so that little is lost if the server is
// killed, and paused, so that they take no CPU. Boxes in steady use are written
// in between.
func (m *Manager) restIdle() {
	if !m.rests() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != phaseOpen {
		return
	}
	for _, s := range m.boxes {
		if s.busyLocked() || s.paused || s.resting {
			continue
		}
		idle := m.now().Sub(s.lastUsed)
		switch {
		case idle >= m.cfg().PauseAfter:
			s.resting = true
			m.wg.Go(func() { m.rest(s) })
		case idle >= saveGap && s.savedUse != s.use && m.now().Sub(s.savedAt) >= saveEvery:
			s.resting = true
			m.wg.Go(func() { m.save(s) })
		}
	}
}

// rested says that rest or save is over.
func (m *Manager) rested(s *Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.resting = false
}

// save writes a living box to disk.
func (m *Manager) save(s *Sandbox) {
	defer m.rested(s)
	m.saveNow(s)
}

// saveNow is save; it reports whether there is nothing left to write.
func (m *Manager) saveNow(s *Sandbox) bool {
	if s.claim == nil || !m.hibernates() {
		return true
	}
	ctx, cancel := context.WithTimeout(m.base, writeTimeout)
	defer cancel()
	if m.writes.Acquire(ctx, 1) != nil {
		return false
	}
	err := m.write(ctx, s, true)
	m.writes.Release(1)
	if err != nil && ctx.Err() == nil && !s.ended() {
		m.log.Warn("box not written to disk", "sandbox", s.guestID, "err", err)
	}
	return err == nil
}

func (m *Manager) rest(s *Sandbox) {
	defer m.rested(s)
	m.mu.Lock()
	use, unsaved, looked := s.use, s.savedUse != s.use, !s.load.at.IsZero()
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.base, powerTimeout)
	defer cancel()
	if !m.looksIdle(ctx, s) {
		// What goes on computing is not paused, but without calls it would never
		// have been written either.
		if looked && unsaved {
			m.saveNow(s)
		}
		return
	}
	if !m.saveNow(s) {
		return
	}
	if m.parts.Machines.Pauses() {
		if err := s.pause(m.base, use); err != nil && !s.ended() {
			m.log.Warn("idle box not paused", "sandbox", s.guestID, "err", err)
		}
	}
}

// looksIdle reports whether the box has computed next to nothing since the last
// look. The first look cannot tell.
func (m *Manager) looksIdle(ctx context.Context, s *Sandbox) bool {
	st, ok := engine.As[engine.Statser](s.machine.Guest)
	if !ok {
		return true
	}
	stats, err := st.Stats(ctx)
	if err != nil {
		return false // it ends, or the host is in trouble
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, last := time.Now(), s.load
	s.load = load{at: now, cpu: stats.CPU}
	if last.at.IsZero() {
		return false
	}
	return (stats.CPU - last.cpu).Seconds() <= busyShare*now.Sub(last.at).Seconds()
}

// pause stops the box in its tracks, unless a call has come since the given use:
// also one that is over, since what it did is not on disk yet.
func (s *Sandbox) pause(ctx context.Context, use uint64) error {
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
func (s *Sandbox) resume(ctx context.Context, op string) error {
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
func (s *Sandbox) ended() bool {
	select {
	case <-s.condemned:
		return true
	default:
		return false
	}
}
