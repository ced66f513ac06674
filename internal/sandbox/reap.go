package sandbox

import (
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/snapshot"
)

// reap lets idle boxes rest, takes those out of memory that nobody has used for
// long, and cleans the disk up, until the Manager ends.
func (m *Manager) reap() {
	m.sweepDisk()
	m.shareGraves(m.base)
	t := time.NewTicker(m.cfg().tickOf())
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-t.C:
			m.restIdle()
			m.relieve()
			if time.Since(last) >= m.cfg().CleanupInterval {
				last = time.Now()
				m.sweep()
				m.sweepDisk()
				m.shareGraves(m.base)
			}
		case <-m.base.Done():
			return
		}
	}
}

// sweep takes out of memory what is idle now and forgets old tombstones.
func (m *Manager) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase == phaseClosed {
		return
	}
	for _, s := range m.boxes {
		if m.expiredLocked(s) {
			m.expireLocked(s)
		}
	}
	m.graves.sweep()
}

// sweepDisk removes what is too old or too much on disk, and remembers the boxes
// that were lost with a server.
func (m *Manager) sweepDisk() {
	if !m.hibernates() {
		return
	}
	removed, err := m.parts.Snapshots.Sweep(m.base)
	if err != nil && m.base.Err() == nil {
		m.log.Warn("snapshots not cleaned up", "err", err)
	}
	for _, r := range removed {
		if r.Class == snapshot.Box {
			m.Lose(r)
		}
	}
}

// Lose remembers a hibernated box that is gone for good. The store of snapshots
// tells the Manager of those that it evicts.
func (m *Manager) Lose(r snapshot.Removed) {
	if r.Aside != "" { // the box goes on elsewhere
		m.log.Info("earlier state of a box removed", "kind", r.Kind, "id", r.BoxID, "why", r.Why)
		return
	}
	s := &Sandbox{key: key{Owner(r.Owner), Kind(r.Kind), r.BoxID}, name: r.Name}
	reason, detail := ReasonUnreadable, "its record on disk was damaged"
	switch r.Why {
	case snapshot.Lost:
		reason, detail = ReasonHostRestart, "the server was killed before the box had been written to disk"
	case snapshot.Age:
		reason, detail = ReasonIdle, "nobody had used it since it was hibernated"
	case snapshot.Quota:
		reason, detail = ReasonEvicted, "the disk that hibernated boxes may use was full"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[s.key] == nil {
		m.buryLocked(s, reason, detail)
	}
	m.log.Info("hibernated box removed", "kind", s.key.kind, "id", s.key.id, "reason", reason, "detail", detail)
}

// expiredLocked reports whether nobody has used a box for the idle time-out.
func (m *Manager) expiredLocked(s *Sandbox) bool {
	return !s.busyLocked() && m.now().Sub(s.lastUsed) >= m.cfg().IdleTimeout
}

func (m *Manager) expireLocked(s *Sandbox) {
	m.retireLocked(s, ReasonIdle, fmt.Sprintf("nobody used it for %s", span(m.cfg().IdleTimeout)))
}

// span writes a duration as people do: "30 minutes".
func span(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}
