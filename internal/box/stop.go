package box

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// Stop ends a box and says whether there was one. A session ends at once, its
// running calls fail with CodeGone. For a context (id or unique name) Stop waits
// for running calls, at most Config.StopWait, refusing new ones, and never
// interrupts them: CodeStopFailed if they do not end.
func (m *Manager) Stop(ctx context.Context, owner Owner, kind Kind, id string) (bool, error) {
	op := "stop " + string(kind)
	m.mu.Lock()
	s, err := m.findLocked(op, key{owner, kind, id})
	if s != nil && m.expiredLocked(s) && !m.hibernates() {
		m.expireLocked(s)
		s = nil
	}
	if s == nil || err != nil {
		m.mu.Unlock()
		if err != nil {
			return false, err
		}
		return m.stopHibernated(ctx, op, key{owner, kind, id})
	}
	if kind == KindContext {
		if err := m.waitCallsLocked(ctx, op, s); err != nil {
			m.mu.Unlock()
			return true, err
		}
	}
	m.terminateLocked(s, ReasonStopped, "")
	m.mu.Unlock()
	select {
	case <-s.freed:
		return true, nil
	case <-ctx.Done():
		return true, s.cancelled(op, context.Cause(ctx))
	}
}

// stopHibernated removes a hibernated box.
func (m *Manager) stopHibernated(ctx context.Context, op string, k key) (bool, error) {
	m.mu.Lock()
	wait := m.leavingLocked(k)
	m.mu.Unlock()
	if wait != nil {
		select {
		case <-wait.freed:
		case <-ctx.Done():
			return true, cancelled(op, k, context.Cause(ctx))
		}
	}
	r, err := find(m.onDisk(k.owner, k.kind), k)
	switch {
	case r == nil || err != nil:
		return false, err
	case r.Leased && !r.Own:
		return true, k.held(op)
	case r.Saved.IsZero(): // there is nothing left of it
		return false, nil
	}
	switch err := m.parts.Snapshots.Delete(r.ID); {
	case err == nil:
	case errors.Is(err, snapshot.ErrNotFound):
		return false, nil
	case errors.Is(err, snapshot.ErrLeased):
		return true, &Error{Code: CodeBusy, Op: op, Msg: fmt.Sprintf("The %s %s has just been woken", k.kind, clip(k.id, maxID)), Hint: "Stop it again.", Context: k.details()}
	default:
		return true, &Error{Code: CodeInternal, Op: op, Msg: fmt.Sprintf("Failed to remove the hibernated %s %s", k.kind, clip(k.id, maxID)), Err: err, Context: k.details()}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k.id = r.BoxID
	m.recordExitLocked(&Box{key: k, name: r.Name}, ReasonStopped, "")
	return true, nil
}

// leavingLocked returns the box of a key that is on its way to disk, or ends and
// has something there.
func (m *Manager) leavingLocked(k key) *Box {
	for s := range m.leaving {
		if s.key.owner == k.owner && s.key.kind == k.kind && (s.key.id == k.id || k.kind == KindContext && s.name == k.id) &&
			s.recordStays {
			return s
		}
	}
	return nil
}

// endingForGood reports whether the box of a record that this process holds has
// ended and does not come back.
func (m *Manager) endingForGood(r *snapshot.Record) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.leaving {
		if s.claim != nil && s.claim.ID() == r.ID {
			return !s.recordStays
		}
	}
	return false
}

// waitCallsLocked waits until no call is under way in s, without holding mu
// meanwhile. While it waits, new calls are refused.
func (m *Manager) waitCallsLocked(ctx context.Context, op string, s *Box) error {
	if s.calls == 0 {
		return nil
	}
	s.stopping++
	defer func() { s.stopping-- }()
	if s.stopped == nil {
		s.stopped = make(chan struct{})
	}
	stopped := s.stopped
	m.mu.Unlock()
	t := time.NewTimer(m.cfg().StopWait)
	defer t.Stop()
	var err error
	select {
	case <-stopped:
	case <-s.terminated:
	case <-ctx.Done():
		err = s.cancelled(op, context.Cause(ctx))
	case <-t.C:
		err = s.error(CodeStopFailed, op,
			fmt.Sprintf("Failed to %s %s: its code still runs after %s", op, s.key.id, span(m.cfg().StopWait)),
			"Running code is not interrupted. Try again when it has ended.", nil)
	}
	m.mu.Lock()
	return err
}

func (m *Manager) terminate(s *Box, reason Reason, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terminateLocked(s, reason, detail)
}

// terminateLocked ends a box: from now on it is not found, its calls fail, and a
// goroutine frees what it holds. Only the first reason counts.
func (m *Manager) terminateLocked(s *Box, reason Reason, detail string) {
	if s.tomb != nil || m.boxes[s.key] != s {
		return
	}
	s.tomb = &Tombstone{
		ID: s.key.id, Kind: s.key.kind, Owner: s.key.owner, Name: s.name,
		Reason: reason, Detail: detail, At: m.now(),
	}
	delete(m.boxes, s.key)
	m.leaving[s] = struct{}{}
	close(s.terminated)
	for len(s.pins) > 0 {
		s.pins[0].releaseLocked()
	}
	m.signalDrainedLocked()
	if s.machine == nil { // start frees it
		s.cancelBoot(errDead)
		return
	}
	m.ended[reason]++
	if reason == ReasonEvicted {
		m.evicted++
	}
	m.tombstones.add(s.tomb)
	level := m.log.Info
	if s.stateLocked() == StateError {
		level = m.log.Warn
	}
	level("box ended", "sandbox", s.guestID, "kind", s.key.kind, "id", s.key.id, "reason", reason, "detail", detail)
	// Of a box that broke, what was last written to disk is better than nothing.
	s.recordStays = s.stateLocked() == StateError && s.claim != nil && s.claim.Dir() != ""
	m.wg.Go(func() { m.free(s, s.recordStays) })
}

// free gives back what an ended box holds on the host. With keep its record
// stays for the next call on its id.
func (m *Manager) free(s *Box, keep bool) {
	m.discard(s.machine)
	if s.claim != nil {
		m.releaseRecord(s.claim, keep)
	}
	m.mu.Lock()
	delete(m.leaving, s)
	m.mu.Unlock()
	close(s.freed)
}
