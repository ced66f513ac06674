package box

import (
	"context"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// Stop ends a box and reports whether there was one. A session ends at once, its
// running calls fail with CodeGone. For a context (id or unique name) Stop waits
// for running calls, at most Config.StopWait, refusing new ones, and never
// interrupts them: CodeStopFailed if they do not end.
func (m *Manager) Stop(ctx context.Context, owner Owner, kind Kind, id string) (bool, error) {
	op := "stop " + string(kind)
	k := key{owner, kind, id}
	for {
		b, leaving, err := m.life.stop(ctx, op, k)
		if err != nil {
			return b != nil, err
		}
		if leaving == nil {
			if was, err := m.stopHibernated(op, k); was || err != nil {
				return was, err
			}
			if adopted, err := m.adoptLeft(ctx, op, k); !adopted {
				return false, err
			}
			continue
		}
		select {
		case <-leaving:
		case <-ctx.Done():
			return true, cancelled(op, k, context.Cause(ctx))
		}
		if b != nil {
			return true, nil
		}
	}
}

// adoptLeft adopts a box whose server is gone, or that an adoption which failed has left behind
// here, so that it can be stopped. It reports whether there was one.
func (m *Manager) adoptLeft(ctx context.Context, op string, k key) (bool, error) {
	if m.parts.Fleet == nil {
		return false, nil
	}
	b, hold, err := m.acquire(ctx, search{op: op, key: k})
	if b != nil && err == nil {
		_, hold, err = b.await(ctx, op, hold)
		hold.Release()
	}
	if CodeOf(err) == CodeHeld { // another server has it, or its guest is just being freed
		return false, nil
	}
	return b != nil && err == nil, err
}

// stop ends the live box of a key; nil if there is none. leaving is closed when the box
// has left memory or, without a box, when one of that key that is being hibernated has
// left memory or stays, or one that is being adopted is there; nil if there is neither.
func (l *lifecycle) stop(ctx context.Context, op string, k key) (b *Box, leaving <-chan struct{}, err error) {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	b, err = l.reg.findLocked(op, k)
	if err != nil {
		return nil, nil, err
	}
	if b == nil {
		if hibernating := l.reg.returningLocked(k); hibernating != nil {
			leaving = hibernating.unloadDone
		}
		return nil, leaving, nil
	}
	if b.origin.adopted != nil && b.state.starting() {
		return nil, b.ready, nil // before, nothing ends its guest
	}
	if !l.hibernates() && l.expireLocked(b) {
		return nil, nil, nil
	}
	if k.kind == KindContext {
		defer l.reg.undrainBoxLocked(b)
		if err := l.reg.drainBoxLocked(ctx, op, b); err != nil {
			return b, nil, err
		}
	}
	l.terminateLocked(b, ReasonStopped, "")
	return b, b.unloadDone, nil
}

// stopHibernated removes a hibernated box.
func (m *Manager) stopHibernated(op string, k key) (bool, error) {
	r, err := m.records.find(op, k)
	switch {
	case r == nil || err != nil:
		return false, err
	case r.Leaving:
		return true, k.heldByStoppingServer(op)
	case r.Leased && !r.Own:
		return true, k.held(op)
	case r.Written.IsZero(): // there is nothing left of it
		return false, nil
	}
	err = m.parts.Snapshots.Delete(r.ID)
	m.reg.notify() // it held the record
	switch {
	case err == nil:
	case errors.Is(err, snapshot.ErrNotFound):
		return false, nil
	case errors.Is(err, snapshot.ErrLeased):
		return true, &Error{Code: CodeBusy, Op: op, Msg: fmt.Sprintf("The %s %s has just been woken", k.kind, clip(k.id, maxID)), Hint: "Stop it again.", Context: k.details()}
	default:
		return true, &Error{Code: CodeInternal, Op: op, Msg: fmt.Sprintf("Failed to remove the hibernated %s %s", k.kind, clip(k.id, maxID)), Err: err, Context: k.details()}
	}
	m.reg.addTombstone(m.reg.tombstone(endedSpec(r), ReasonStopped, ""))
	return true, nil
}
