package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/link"
)

// Stop ends a box and says whether there was one. A session ends at once, its
// running calls fail with CodeGone. For a context (id or unique name) Stop waits
// for running calls, at most Config.StopWait, refusing new ones, and never
// interrupts them: CodeStopFailed if they do not end.
func (m *Manager) Stop(ctx context.Context, owner Owner, kind Kind, id string) (bool, error) {
	op := "stop " + string(kind)
	m.mu.Lock()
	s, err := m.findLocked(op, key{owner, kind, id})
	if s != nil && m.expiredLocked(s) {
		m.expireLocked(s)
		s = nil
	}
	if s == nil || err != nil {
		m.mu.Unlock()
		return false, err
	}
	if kind == KindContext {
		if err := m.waitCallsLocked(ctx, op, s); err != nil {
			m.mu.Unlock()
			return true, err
		}
	}
	m.condemnLocked(s, ReasonStopped, "")
	m.mu.Unlock()
	select {
	case <-s.freed:
		return true, nil
	case <-ctx.Done():
		return true, s.cancelled(op, context.Cause(ctx))
	}
}

// waitCallsLocked waits until no call is under way in s, without holding mu
// meanwhile. While it waits, new calls are refused.
func (m *Manager) waitCallsLocked(ctx context.Context, op string, s *Sandbox) error {
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
	t := time.NewTimer(m.cfg.StopWait)
	defer t.Stop()
	var err error
	select {
	case <-stopped:
	case <-s.condemned:
	case <-ctx.Done():
		err = s.cancelled(op, context.Cause(ctx))
	case <-t.C:
		err = s.error(CodeStopFailed, op,
			fmt.Sprintf("Failed to stop context %s: its code still runs after %s", s.key.id, span(m.cfg.StopWait)),
			"Running code is not interrupted. Try again when it has ended.", nil)
	}
	m.mu.Lock()
	return err
}

func (m *Manager) condemn(s *Sandbox, reason Reason, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.condemnLocked(s, reason, detail)
}

// condemnLocked ends a box: from now on it is not found, its calls fail, and a
// goroutine frees what it holds. Only the first reason counts.
func (m *Manager) condemnLocked(s *Sandbox, reason Reason, detail string) {
	if s.tomb != nil || m.boxes[s.key] != s {
		return
	}
	s.tomb = &Tombstone{
		ID: s.key.id, Kind: s.key.kind, Owner: s.key.owner, Name: s.name,
		Reason: reason, Detail: detail, At: m.now(),
	}
	delete(m.boxes, s.key)
	m.dying[s] = struct{}{}
	close(s.condemned)
	for len(s.holds) > 0 {
		s.holds[0].releaseLocked()
	}
	m.settleLocked()
	if s.guest == nil { // start frees it
		s.abandon(errDead)
		return
	}
	m.ended[reason]++
	m.graves.add(s.tomb)
	level := m.log.Info
	if s.stateLocked() == StateError {
		level = m.log.Warn
	}
	level("box ended", "sandbox", s.guestID, "kind", s.key.kind, "id", s.key.id, "reason", reason, "detail", detail)
	m.wg.Go(func() { m.free(s, s.guest, s.link) })
}

// free gives back what a condemned box holds on the host.
func (m *Manager) free(s *Sandbox, guest engine.Guest, lnk *link.Link) {
	if lnk != nil {
		lnk.Close() // its error says that the guest is gone already
	}
	if guest != nil {
		ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		if err := guest.Destroy(ctx); err != nil {
			// Nothing here can do more; the engine goes on with it.
			m.log.Error("box was not freed in time", "sandbox", s.guestID, "err", err)
		}
		cancel()
	}
	m.mu.Lock()
	delete(m.dying, s)
	m.mu.Unlock()
	close(s.freed)
}
