package sandbox

import (
	"fmt"
	"time"
)

// reap ends idle boxes until the Manager ends.
func (m *Manager) reap() {
	t := time.NewTicker(m.cfg.CleanupInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			m.sweep()
		case <-m.base.Done():
			return
		}
	}
}

// sweep ends what is idle now and forgets old tombstones.
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

// expiredLocked reports whether nobody has used a box for the idle time-out.
func (m *Manager) expiredLocked(s *Sandbox) bool {
	return !s.busyLocked() && m.now().Sub(s.lastUsed) >= m.cfg.IdleTimeout
}

func (m *Manager) expireLocked(s *Sandbox) {
	m.condemnLocked(s, ReasonIdle, fmt.Sprintf("nobody used it for %s", span(m.cfg.IdleTimeout)))
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
