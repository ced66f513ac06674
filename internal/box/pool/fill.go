package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

const (
	// minDelay and maxDelay bound the pause after a failure, which doubles with
	// each: soon enough for what passes, rare enough for what does not.
	minDelay, maxDelay = time.Second, time.Minute
	// calm is how long nothing fails before the delays begin anew.
	calm = 2 * maxDelay
	// lookEvery is how often the filler looks at the clock at least, which may be
	// another one than the timer's.
	lookEvery = time.Minute
	// makeTimeout bounds the making of one member: it takes well under a second,
	// but the first of a template may have to wait until that is built.
	makeTimeout = 5 * time.Minute
	// roomTimeout is how long a member that is too old waits for room for its
	// successor beside it, before it makes room itself.
	roomTimeout = time.Minute
	// verdictWait is how long the engine has to say why a guest ended once its
	// link is lost.
	verdictWait = 2 * time.Second
)

// fill makes members until the pool is closed.
func (p *Pool) fill() {
	for p.base.Err() == nil {
		s, idle := p.next()
		if s != nil {
			p.add(s)
			continue
		}
		t := time.NewTimer(idle)
		select {
		case <-p.wake:
		case <-t.C:
		case <-p.base.Done():
		}
		t.Stop()
	}
}

// next chooses, in turn, a class that wants a member now: one that is short of
// them before one whose oldest is too old. If there is none it says for how long.
func (p *Pool) next() (chosen *shelf, idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle = lookEvery
	if p.taking > 0 {
		return nil, idle // who waits for a member comes first
	}
	now := p.cfg.Now()
	for i := range p.shelves {
		s := p.shelves[(p.turn+i)%len(p.shelves)]
		short := len(s.members) < p.cfg.Size
		due := s.retry
		if old := s.expiry(p.cfg.MaxAge); !short && old.After(due) {
			due = old
		}
		if wait := due.Sub(now); wait > 0 {
			idle = min(idle, wait)
		} else if chosen == nil || short && len(chosen.members) >= p.cfg.Size {
			chosen = s
		}
	}
	if chosen != nil {
		p.turn = (slices.Index(p.shelves, chosen) + 1) % len(p.shelves)
	}
	return chosen, idle
}

// expiry says when the oldest member is too old.
func (s *shelf) expiry(maxAge time.Duration) time.Time {
	if len(s.members) == 0 {
		return time.Time{}
	}
	return s.members[0].born.Add(maxAge)
}

// add makes a member and puts it on its shelf. If that is full, its oldest member
// leaves.
func (p *Pool) add(s *shelf) {
	p.mu.Lock()
	s.making = true
	replace := len(s.members) >= p.cfg.Size
	p.mu.Unlock()
	begun := p.cfg.Now()
	m, err := p.make(s.class, replace)
	switch {
	case err == nil:
		p.put(s, m, p.cfg.Now().Sub(begun))
	case replace && errors.Is(err, engine.ErrExhausted):
		p.makeRoom(s)
	default:
		p.fail(s, err)
	}
}

// make makes a machine once the pool may. ErrExhausted says that there is no room
// for it.
func (p *Pool) make(c Class, replace bool) (*machine.Machine, error) {
	if err := p.yield(replace); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(p.base, makeTimeout, fmt.Errorf("not done within %s", makeTimeout))
	defer cancel()
	m, err := p.cfg.Make(ctx, c)
	if err != nil {
		return nil, err
	}
	if p.cfg.Pause {
		if err := m.Pause(ctx); err != nil {
			return nil, errors.Join(err, p.free(m))
		}
	}
	return m, nil
}

func (p *Pool) yield(replace bool) error {
	if p.cfg.Yield == nil {
		return nil
	}
	ctx := p.base
	if replace {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, roomTimeout, fmt.Errorf("no room within %s: %w", roomTimeout, engine.ErrExhausted))
		defer cancel()
	}
	err := p.cfg.Yield(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// put puts a new machine on its shelf.
func (p *Pool) put(s *shelf, m *machine.Machine, took time.Duration) {
	p.tell(s, m, took)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.making = false
	if p.closed {
		p.freeLocked(m)
		return
	}
	watching, forget := context.WithCancel(p.base)
	mb := &member{Machine: m, born: p.cfg.Now(), forget: forget}
	s.members = append(s.members, mb)
	s.made++
	p.wg.Go(func() { p.watch(watching, s, mb) })
	for len(s.members) > p.cfg.Size {
		p.retire(p.removeLocked(s, 0))
	}
	p.changeLocked()
}

// tell logs that a machine is about to be put on its shelf, so that the log has
// it before others act on it; if the shelf is full with it, a streak of failures
// ends.
func (p *Pool) tell(s *shelf, m *machine.Machine, took time.Duration) {
	p.mu.Lock()
	ready := min(len(s.members)+1, p.cfg.Size)
	full, first, failures := ready == p.cfg.Size, !s.filled, s.streak
	if full {
		s.filled, s.streak, s.warned, s.cause = true, 0, false, nil
	}
	p.mu.Unlock()
	log := p.cfg.Log.With("template", s.class.Template, "flavor", s.class.Flavor, "size", p.cfg.Size)
	level := slog.LevelInfo
	if !first { // what comes later comes with every box that starts
		level = slog.LevelDebug
	}
	log.Log(p.base, level, "pool member is ready: proven by a run", "sandbox", m.ID, "ready", ready, "took", took.Round(time.Millisecond))
	if full && first {
		log.Info("pool is full", "failures", failures, "took", p.cfg.Now().Sub(s.begun).Round(time.Millisecond))
	} else if full && failures > 0 {
		log.Info("pool is full again", "failures", failures)
	}
}

// makeRoom ends the oldest member of a full class because there is no room for
// its successor beside it.
func (p *Pool) makeRoom(s *shelf) {
	p.mu.Lock()
	s.making = false
	var gone <-chan error
	if len(s.members) >= p.cfg.Size { // else one was taken, or the pool is closed
		gone = p.retire(p.removeLocked(s, 0))
	}
	p.mu.Unlock()
	if gone != nil {
		<-gone // the successor is made next
	}
}

// fail counts a member that could not be made.
func (p *Pool) fail(s *shelf, err error) {
	p.mu.Lock()
	s.making = false
	if p.closed {
		p.mu.Unlock()
		return
	}
	s.failed++
	p.failLocked(s, err)
	level := slog.LevelDebug
	if !s.warned {
		s.warned = true
		level = slog.LevelWarn
	}
	wait := s.retry.Sub(p.cfg.Now())
	p.changeLocked()
	p.mu.Unlock()
	p.cfg.Log.Log(p.base, level, "pool member could not be made: it is tried again", "template", s.class.Template, "flavor", s.class.Flavor,
		"err", err, "in", wait.Round(time.Millisecond))
}

// failLocked counts a failure and sets when the class is tried again. Failures
// during a delay do not make it longer: a host in trouble ends all members at
// once.
func (p *Pool) failLocked(s *shelf, cause error) {
	now := p.cfg.Now()
	s.streak++
	s.cause = cause
	if now.Before(s.retry) {
		return
	}
	if now.Sub(s.failedAt) > calm {
		s.delay = 0
	}
	s.delay = min(max(2*s.delay, minDelay), maxDelay)
	s.failedAt, s.retry = now, now.Add(s.delay)
}

// watch waits for the end of a member. The link tells of what the engine does
// not see, an agent that is gone; while a member is paused only the engine can
// tell.
func (p *Pool) watch(ctx context.Context, s *shelf, m *member) {
	waiting, cancel := context.WithCancel(p.base)
	defer cancel()
	ended := make(chan error, 1)
	p.wg.Go(func() {
		if exit, err := m.Guest.Wait(waiting); err == nil {
			ended <- verdict(exit)
		}
	})
	var cause error
	select {
	case <-ctx.Done():
		return
	case cause = <-ended:
	case <-m.Agent.Done():
		cause = m.Agent.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(s.members, m); i >= 0 { // else somebody has taken it
		p.removeLocked(s, i)
		p.mournLocked(s, m, cause)
	}
}

// mournLocked counts a member that has ended while it waited. In the background,
// it is logged with what the engine has to say, and freed.
func (p *Pool) mournLocked(s *shelf, m *member, cause error) {
	s.lost++
	p.failLocked(s, fmt.Errorf("member %s ended while it waited: %w", m.ID, cause))
	p.changeLocked()
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.base, verdictWait)
		defer cancel()
		if exit, err := m.Guest.Wait(ctx); err == nil {
			cause = verdict(exit)
		}
		p.cfg.Log.Warn("pool member ended while it waited: it is replaced", "sandbox", m.ID,
			"template", s.class.Template, "flavor", s.class.Flavor, "err", cause)
		p.retire(m)
	})
}

// maxDetail bounds what a log line quotes of an engine's words.
const maxDetail = 200

// verdict is an exit as an error.
func verdict(exit engine.Exit) error {
	text := string(exit.Reason)
	if exit.Reason == engine.ExitExited {
		text = fmt.Sprintf("its agent ended with code %d", exit.Code)
	}
	if d := strings.TrimSpace(exit.Detail); d != "" {
		text += ": " + d[:min(len(d), maxDetail)]
	}
	return errors.New(text)
}
