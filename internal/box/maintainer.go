package box

import (
	"fmt"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// maintainer is the Manager's background work: it writes idle boxes to disk and pauses
// them, takes expired boxes out of memory, evicts when the host is short of memory, and
// cleans up the disk.
type maintainer struct {
	*env
	reg  *registry
	life *lifecycle

	wake      chan struct{} // has a token when nextCheck is earlier than run knows
	nextCheck time.Time     // guarded by reg.mu; when run calls checkIdle again
	earlyBusy bool          // guarded by reg.mu; a new box is being written for the first time
	earlyNext time.Time     // guarded by reg.mu; when the next new box may be
	unshared  bool          // guarded by reg.mu; tombstones could not be shared the last time
	learnt    os.FileInfo   // guarded by reg.mu; of the file of tombstones that learnTombstones has read; nil: none
}

// run works until the Manager ends.
func (m *maintainer) run() {
	m.sweepDisk()
	m.shareTombstones(m.base)
	tick := m.cfg().tick()
	m.reg.mu.Lock()
	m.nextCheck = time.Now().Add(tick)
	m.reg.mu.Unlock()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for swept, ticked := time.Now(), time.Now(); ; {
		select {
		case <-timer.C:
		case <-m.wake:
			timer.Reset(m.untilCheck())
			continue
		case <-m.base.Done():
			return
		}
		if time.Since(ticked) >= tick {
			ticked = time.Now()
			m.freeHostMemory()
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

// untilCheck returns the time until checkIdle has to be called.
func (m *maintainer) untilCheck() time.Duration {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	return max(0, time.Until(m.nextCheck))
}

// sweep takes expired boxes out of memory and drops old tombstones.
func (m *maintainer) sweep() {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if m.reg.phase == phaseClosed {
		return
	}
	for _, b := range m.reg.boxes {
		m.life.expireLocked(b)
	}
	m.reg.tombstones.sweep()
}

// sweepDisk removes records that are too old or too many, and those of boxes that were lost
// with a server.
func (m *maintainer) sweepDisk() {
	if !m.hibernates() {
		return
	}
	// The store calls lifecycle.remember first.
	if _, err := m.parts.Snapshots.Sweep(m.base); err != nil && m.base.Err() == nil {
		m.log.Warn("snapshots not cleaned up", logkey.Error, err)
	}
	m.reg.notify() // it held each record for a moment
}

// expireLocked takes a box out of memory if it was unused for the idle timeout, and
// reports whether it did.
func (l *lifecycle) expireLocked(b *Box) bool {
	if !l.reg.expiredLocked(b) {
		return false
	}
	l.unloadLocked(b, ReasonIdle, fmt.Sprintf("nobody used it for %s", span(l.cfg().IdleTimeout)))
	return true
}

// span writes a duration as people do: "30 min".
func span(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}
