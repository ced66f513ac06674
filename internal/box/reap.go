package box

import (
	"errors"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// reap lets idle boxes rest, takes those out of memory that nobody has used for
// long, and cleans the disk up, until the Manager ends.
func (m *Manager) reap() {
	m.sweepDisk()
	m.shareTombstones(m.base)
	tick := m.cfg().tickOf()
	m.mu.Lock()
	m.nextCheck = time.Now().Add(tick)
	m.mu.Unlock()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for swept, ticked := time.Now(), time.Now(); ; {
		select {
		case <-timer.C:
		case <-m.wakeReaper:
			timer.Reset(m.untilCheck())
			continue
		case <-m.base.Done():
			return
		}
		if time.Since(ticked) >= tick {
			ticked = time.Now()
			m.relieve()
		}
		if time.Since(swept) >= m.cfg().CleanupInterval {
			swept = time.Now()
			m.sweep()
			m.sweepDisk()
			m.shareTombstones(m.base)
		}
		timer.Reset(m.checkIdle())
	}
}

// untilCheck returns how long it is until checkIdle is to be called.
func (m *Manager) untilCheck() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(0, time.Until(m.nextCheck))
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
	m.tombstones.sweep()
}

// sweepDisk removes what is too old or too much on disk, and remembers the boxes
// that were lost with a server.
func (m *Manager) sweepDisk() {
	if !m.hibernates() {
		return
	}
	lost, err := m.parts.Snapshots.List(func(meta *snapshot.Meta) bool { return meta.Class == snapshot.Box && meta.Saved.IsZero() })
	if err != nil {
		m.log.Warn("lost boxes not listed", logkey.Error, err)
	}
	for i := range lost {
		if !lost[i].Leased {
			m.recordLost(&lost[i])
		}
	}
	removed, err := m.parts.Snapshots.Sweep(m.base)
	if err != nil && m.base.Err() == nil {
		m.log.Warn("snapshots not cleaned up", logkey.Error, err)
	}
	for _, r := range removed {
		if r.Class == snapshot.Box {
			m.OnEvicted(r)
		}
	}
}

// recordLost removes the record of a box that was lost with its server before anything
// had been written, and remembers the box; false if somebody else has it.
func (m *Manager) recordLost(r *snapshot.Record) bool {
	claim, err := m.parts.Snapshots.Acquire(r.ID)
	if err != nil {
		return errors.Is(err, snapshot.ErrNotFound)
	}
	if claim.Dir() != "" {
		m.releaseRecord(claim, true)
		return false
	}
	m.OnEvicted(snapshot.Removed{Record: *r, Why: snapshot.Lost}) // first: nobody is to find neither
	m.releaseRecord(claim, false)
	return true
}

// OnEvicted remembers a hibernated box that is gone for good. The store of snapshots
// tells the Manager of those that it evicts.
func (m *Manager) OnEvicted(r snapshot.Removed) {
	if r.Aside != "" { // the box goes on elsewhere
		m.log.Info("earlier state of a box removed", logkey.Kind, r.Kind, logkey.Box, r.BoxID, logkey.Reason, r.Why)
		return
	}
	s := &Box{key: key{Owner(r.Owner), Kind(r.Kind), r.BoxID}, name: r.Name}
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
		m.recordExitLocked(s, reason, detail)
	}
	m.log.Info("hibernated box removed", logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Reason, reason, logkey.Detail, detail)
}

// expiredLocked reports whether nobody has used a box for the idle time-out.
func (m *Manager) expiredLocked(s *Box) bool {
	return !s.busyLocked() && m.now().Sub(s.lastUsed) >= m.cfg().IdleTimeout
}

func (m *Manager) expireLocked(s *Box) {
	m.unloadLocked(s, ReasonIdle, fmt.Sprintf("nobody used it for %s", span(m.cfg().IdleTimeout)))
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
