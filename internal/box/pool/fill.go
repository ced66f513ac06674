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
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// minDelay and maxDelay bound the backoff after a failure, which doubles each time.
	minDelay, maxDelay = time.Second, time.Minute
	// calm is the time without a failure after which the backoff starts anew.
	calm = 2 * maxDelay
	// maxIdle bounds the filler's wait: Config.Now may be another clock than the
	// timer's.
	maxIdle = time.Minute
	// makeTimeout bounds Config.Make. It takes well under a second, but the first
	// instance of a template may wait until the template is built.
	makeTimeout = 5 * time.Minute
	// yieldTimeout is how long the replacement of an expired instance waits for memory
	// beside it; then the expired one ends first.
	yieldTimeout = time.Minute
	// exitWait is how long to wait for the engine's exit reason after the connection to
	// the agent is lost.
	exitWait = 2 * time.Second
)

// fill creates instances until the pool is closed.
func (p *Pool) fill() {
	for p.base.Err() == nil {
		c, idle := p.next()
		if c != nil {
			p.add(c)
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

// next selects the class to create an instance of: round-robin, classes with too few
// instances before those with an expired one. If there is nothing to do, chosen is nil
// and idle says how long to wait.
func (p *Pool) next() (chosen *class, idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle = maxIdle
	if p.taking > 0 {
		return nil, idle // Take has priority
	}
	now := p.cfg.Now()
	for i := range p.classes {
		c := p.classes[(p.turn+i)%len(p.classes)]
		short := len(c.ready) < p.cfg.Size
		due := c.retry
		if old := c.expiry(p.cfg.MaxAge); !short && old.After(due) {
			due = old
		}
		if wait := due.Sub(now); wait > 0 {
			idle = min(idle, wait)
		} else if chosen == nil || short && len(chosen.ready) >= p.cfg.Size {
			chosen = c
		}
	}
	if chosen != nil {
		p.turn = (slices.Index(p.classes, chosen) + 1) % len(p.classes)
	}
	return chosen, idle
}

// expiry returns when the oldest instance reaches MaxAge.
func (c *class) expiry(maxAge time.Duration) time.Time {
	if len(c.ready) == 0 {
		return time.Time{}
	}
	return c.ready[0].born.Add(maxAge)
}

// add creates an instance of a class. If the class is full, it replaces the oldest.
func (p *Pool) add(c *class) {
	p.mu.Lock()
	c.making = true
	replace := len(c.ready) >= p.cfg.Size
	p.mu.Unlock()
	begun := p.cfg.Now()
	m, err := p.make(c.id, replace)
	switch {
	case err == nil:
		p.put(c, m, p.cfg.Now().Sub(begun))
	case replace && errors.Is(err, engine.ErrExhausted):
		p.evictOldest(c)
	default:
		p.fail(c, err)
	}
}

// make creates a machine after Yield. ErrExhausted means that there is no room for it.
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
		ctx, cancel = context.WithTimeoutCause(ctx, yieldTimeout, fmt.Errorf("no room within %s: %w", yieldTimeout, engine.ErrExhausted))
		defer cancel()
	}
	err := p.cfg.Yield(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// put adds a new machine to its class.
func (p *Pool) put(c *class, m *machine.Machine, took time.Duration) {
	p.logReady(c, m, took)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.making = false
	if p.closed {
		p.freeLocked(m)
		return
	}
	watching, unwatch := context.WithCancel(p.base)
	mb := &instance{Machine: m, born: p.cfg.Now(), unwatch: unwatch}
	c.ready = append(c.ready, mb)
	c.made++
	p.wg.Go(func() { p.watch(watching, c, mb) })
	for len(c.ready) > p.cfg.Size {
		p.retire(p.removeLocked(c, 0))
	}
	p.changeLocked()
}

// logReady logs a new instance before others can take it. If the class is full with it,
// the streak of failures ends.
func (p *Pool) logReady(c *class, m *machine.Machine, took time.Duration) {
	p.mu.Lock()
	ready := min(len(c.ready)+1, p.cfg.Size)
	full, first, failures := ready == p.cfg.Size, !c.filled, c.streak
	if full {
		c.filled, c.streak, c.warned, c.cause = true, 0, false, nil
	}
	p.mu.Unlock()
	log := p.cfg.Log.With(logkey.Interpreter, c.id.Interpreter, logkey.Flavor, c.id.Flavor, logkey.Size, p.cfg.Size)
	level := slog.LevelInfo
	if !first { // later ones accompany every box that starts
		level = slog.LevelDebug
	}
	log.Log(p.base, level, "pool instance is ready", logkey.Guest, m.ID, logkey.Ready, ready, logkey.Took, took.Round(time.Millisecond))
	if full && first {
		log.Info("pool is full", logkey.Failures, failures, logkey.Took, p.cfg.Now().Sub(c.begun).Round(time.Millisecond))
	} else if full && failures > 0 {
		log.Info("pool is full again", logkey.Failures, failures)
	}
}

// evictOldest ends the oldest instance of a full class because its replacement does not
// fit beside it.
func (p *Pool) evictOldest(c *class) {
	p.mu.Lock()
	c.making = false
	var gone <-chan error
	if len(c.ready) >= p.cfg.Size { // else one was taken, or the pool is closed
		gone = p.retire(p.removeLocked(c, 0))
	}
	p.mu.Unlock()
	if gone != nil {
		<-gone // fill creates the replacement next
	}
}

// fail records a failed attempt to create an instance.
func (p *Pool) fail(c *class, err error) {
	p.mu.Lock()
	c.making = false
	if p.closed {
		p.mu.Unlock()
		return
	}
	c.failed++
	p.failLocked(c, err)
	level := slog.LevelDebug
	if !c.warned {
		c.warned = true
		level = slog.LevelWarn
	}
	wait := c.retry.Sub(p.cfg.Now())
	p.changeLocked()
	p.mu.Unlock()
	p.cfg.Log.Log(p.base, level, "pool instance could not be created, retrying", logkey.Interpreter, c.id.Interpreter, logkey.Flavor, c.id.Flavor,
		logkey.Error, err, logkey.Retry, wait.Round(time.Millisecond))
}

// failLocked records a failure and sets the time of the next attempt. Failures during a
// backoff do not extend it: a host in trouble ends all instances at once.
func (p *Pool) failLocked(c *class, cause error) {
	now := p.cfg.Now()
	c.streak++
	c.cause = cause
	if now.Before(c.retry) {
		return
	}
	if now.Sub(c.failedAt) > calm {
		c.delay = 0
	}
	c.delay = min(max(2*c.delay, minDelay), maxDelay)
	c.failedAt, c.retry = now, now.Add(c.delay)
}

// watch waits for the end of an instance. The engine does not notice an agent that is
// gone, but the connection does; while an instance is paused, only the engine notices.
func (p *Pool) watch(ctx context.Context, c *class, m *instance) {
	waiting, cancel := context.WithCancel(p.base)
	defer cancel()
	ended := make(chan error, 1)
	p.wg.Go(func() {
		if exit, err := m.Guest.Wait(waiting); err == nil {
			ended <- exitError(exit)
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
	if i := slices.Index(c.ready, m); i >= 0 { // else it was taken
		p.removeLocked(c, i)
		p.recordLossLocked(c, m, cause)
	}
}

// recordLossLocked counts an instance that ended while it waited. In the background it
// logs the engine's reason and frees the machine.
func (p *Pool) recordLossLocked(c *class, m *instance, cause error) {
	c.lost++
	p.failLocked(c, fmt.Errorf("instance %s ended while it waited: %w", m.ID, cause))
	p.changeLocked()
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.base, exitWait)
		defer cancel()
		if exit, err := m.Guest.Wait(ctx); err == nil {
			cause = exitError(exit)
		}
		p.cfg.Log.Warn("pool instance ended while it waited, replacing it", logkey.Guest, m.ID,
			logkey.Interpreter, c.id.Interpreter, logkey.Flavor, c.id.Flavor, logkey.Error, cause)
		p.retire(m)
	})
}

// maxDetail bounds the part of the engine's exit detail that is logged.
const maxDetail = 200

// exitError converts an exit to an error.
func exitError(exit engine.Exit) error {
	text := string(exit.Reason)
	if exit.Reason == engine.ExitExited {
		text = fmt.Sprintf("agent ended with code %d", exit.Code)
	}
	if d := strings.TrimSpace(exit.Detail); d != "" {
		text += ": " + d[:min(len(d), maxDetail)]
	}
	return errors.New(text)
}
