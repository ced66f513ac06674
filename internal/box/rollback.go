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
	old, hold, err := m.existing(ctx, search{op: op, key: k})
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	sp.key, sp.name, sp.desc, sp.created = old.key, old.name, old.desc, old.created
	sp.origin.rollBack = true
	if sp.limits, err = narrower(op, sp.limits, old.limits); err != nil { // an earlier state widens nothing
		return nil, err
	}
	b := m.life.newBox(sp)
	defer b.cancelStart(nil)
	if err := m.life.replace(ctx, op, old, b); err != nil {
		return nil, err
	}
	return b, nil
}

// replace makes b and puts it in the place of old, which is unharmed if that fails.
func (l *lifecycle) replace(ctx context.Context, op string, old, b *Box) error {
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
	err := l.reg.drainBoxLocked(ctx, op, old)
	defer l.reg.undrainBoxLocked(old)
	if err != nil {
		return err
	}

	timeout := fmt.Errorf("timeout: the box did not start within %s", span(l.cfg().StartTimeout))
	caller := ctx
	ctx, cancel := context.WithTimeoutCause(b.startCtx, l.cfg().StartTimeout, timeout)
	defer cancel()
	defer context.AfterFunc(caller, func() { b.cancelStart(context.Cause(caller)) })()
	if err := l.admitReplacementLocked(ctx, op, old, b); err != nil {
		return err
	}
	defer l.reg.changed.broadcast()
	defer delete(l.reg.replacements, b)

	l.reg.waitForRoomLocked(b)
	l.reg.mu.Unlock()
	begun := time.Now()
	made, err := l.makeMachine(ctx, op, b, old)
	if err == nil {
		made.lease = l.records.create(b)
	}
	made.noteData(b)
	cause := err
	l.reg.mu.Lock()
	switch {
	case err != nil && caller.Err() != nil:
		err = b.cancelled(op, context.Cause(caller))
	case err != nil:
		err = l.startErrorLocked(op, b, err)
	case old.tomb != nil:
		err = old.goneLocked(op)
	case l.reg.phase == phaseClosed:
		err = l.reg.openLocked(op)
	}
	if err != nil {
		l.reg.mu.Unlock()
		if code := CodeOf(err); code != CodeCancelled && code != CodeLimit && code != CodeBusy && code != CodeGone && code != CodeNotReady {
			l.log.Error("box not rolled back", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Source, made.source, logkey.Error, cause)
		}
		if made.machine != nil {
			l.discardMachine(made)
		}
		if made.lease != nil {
			l.records.release(made.lease, false)
		}
		l.reg.mu.Lock()
		return err
	}
	if i := old.undelivered; i != nil && i.Changed != "" { // a rollback does not undo calls of tools
		b.undelivered = i
	}
	l.terminateLocked(old, ReasonRolledBack, "")
	l.reg.touchLocked(b)
	l.publishLocked(b, made)
	l.wg.Go(func() {
		l.observe(b, EventStart, made.source, time.Since(begun), false)
		l.log.Info("box rolled back", logkey.Guest, b.guestID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Flavor, b.flavor,
			logkey.Took, time.Since(begun).Round(time.Millisecond))
	})
	return nil
}

// admitReplacementLocked reserves memory for b, which will replace old, once no other box
// of the owner is being replaced. It releases mu while it waits.
func (l *lifecycle) admitReplacementLocked(ctx context.Context, op string, old, b *Box) error {
	for l.reg.replacesLocked(b.key.owner) {
		if err := l.reg.waitChangeLocked(ctx); err != nil {
			return b.cancelled(op, err)
		}
	}
	switch err := l.reg.openLocked(op); {
	case old.tomb != nil:
		return old.goneLocked(op)
	case err != nil:
		return err
	}
	if err := l.evictLocked(op, b, old); err != nil {
		return err
	}
	l.reg.replacements[b] = old
	return nil
}

// replacesLocked reports whether a box of the owner is being replaced.
func (r *registry) replacesLocked(owner Owner) bool {
	for b := range r.replacements {
		if b.key.owner == owner {
			return true
		}
	}
	return false
}
