package box

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// rollBack replaces the box of a key by the one that sp describes. It refuses new calls
// meanwhile, and waits for those in flight before it makes the machine. Of each owner, one
// box at a time is rolled back, so that an owner has at most one machine too many.
func (m *Manager) rollBack(ctx context.Context, op string, k key, sp spec) (*Box, error) {
	old, lease, err := m.existing(ctx, op, k)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	sp.key, sp.name, sp.desc, sp.created = old.key, old.name, old.desc, old.created
	sp.origin.rollBack = true
	if sp.limits, err = narrower(op, sp.limits, old.limits); err != nil { // an earlier state widens nothing
		return nil, err
	}
	s := m.life.newBox(sp)
	defer s.cancelBoot(nil)
	if err := m.life.replace(ctx, op, old, s); err != nil {
		return nil, err
	}
	return s, nil
}

// replace makes s and puts it in the place of old, which is unharmed if that fails.
func (l *lifecycle) replace(ctx context.Context, op string, old, s *Box) error {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	switch err := l.reg.openLocked(op); {
	case err != nil:
		return err
	case old.use.replacing:
		return old.error(CodeBusy, op, fmt.Sprintf("The %s %s is being rolled back by another call", old.key.kind, old.key.id), "Try again in a moment.", nil)
	}
	l.wg.Add(1) // Close waits
	defer l.wg.Done()
	old.use.replacing = true
	defer func() { old.use.replacing = false }()
	err := l.reg.drainLocked(ctx, op, old)
	defer l.reg.undrainLocked(old)
	if err != nil {
		return err
	}

	timeout := fmt.Errorf("timeout during creation: no answer within %s", span(l.cfg().StartTimeout))
	caller := ctx
	ctx, cancel := context.WithTimeoutCause(s.bootCtx, l.cfg().StartTimeout, timeout)
	defer cancel()
	defer context.AfterFunc(caller, func() { s.cancelBoot(context.Cause(caller)) })()
	if err := l.admitReplacementLocked(ctx, op, old, s); err != nil {
		return err
	}
	defer l.reg.changed.broadcast()
	defer delete(l.reg.replacements, s)

	l.reg.waitForRoomLocked(s)
	l.reg.mu.Unlock()
	begun := time.Now()
	b, err := l.boot(ctx, op, s, old)
	if err == nil {
		b.record = l.records.create(s)
	}
	b.noteData()
	l.reg.mu.Lock()
	switch {
	case err != nil && caller.Err() != nil:
		err = s.cancelled(op, context.Cause(caller))
	case err != nil:
		err = l.startErrorLocked(op, s, err)
	case old.tomb != nil:
		err = old.goneLocked(op)
	case l.reg.phase == phaseClosed:
		err = l.reg.openLocked(op)
	}
	if err != nil {
		l.reg.mu.Unlock()
		if b.machine != nil {
			l.discardBooted(b)
		}
		if b.record != nil {
			l.records.release(b.record, false)
		}
		l.reg.mu.Lock()
		return err
	}
	l.terminateLocked(old, ReasonRolledBack, "")
	l.reg.touchLocked(s)
	l.publishLocked(s, b)
	l.wg.Go(func() {
		l.observe(s, EventStart, b.source, time.Since(begun), false)
		l.log.Info("box rolled back", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Flavor, s.flavor,
			logkey.Took, time.Since(begun).Round(time.Millisecond))
	})
	return nil
}

// admitReplacementLocked reserves memory for s, which is to replace old, once no other box
// of the owner is being replaced. It releases mu while it waits.
func (l *lifecycle) admitReplacementLocked(ctx context.Context, op string, old, s *Box) error {
	for l.reg.replacesLocked(s.key.owner) {
		changed := l.reg.changed.wait()
		l.reg.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		l.reg.mu.Lock()
		if ctx.Err() != nil {
			return s.cancelled(op, context.Cause(ctx))
		}
	}
	switch err := l.reg.openLocked(op); {
	case old.tomb != nil:
		return old.goneLocked(op)
	case err != nil:
		return err
	}
	if err := l.evictLocked(op, s, old); err != nil {
		return err
	}
	l.reg.replacements[s] = old
	return nil
}

// replacesLocked reports whether a box of the owner is being replaced.
func (r *registry) replacesLocked(owner Owner) bool {
	for s := range r.replacements {
		if s.key.owner == owner {
			return true
		}
	}
	return false
}
