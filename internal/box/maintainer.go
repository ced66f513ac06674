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
func (p *maintainer) run() {
	p.sweepDisk()
	p.shareTombstones(p.base)
	tick := p.cfg().tick()
	p.reg.mu.Lock()
	p.nextCheck = time.Now().Add(tick)
	p.reg.mu.Unlock()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for swept, ticked := time.Now(), time.Now(); ; {
		select {
		case <-timer.C:
		case <-p.wake:
			timer.Reset(p.untilCheck())
			continue
		case <-p.base.Done():
			return
		}
		if time.Since(ticked) >= tick {
			ticked = time.Now()
			p.freeHostMemory()
		}
		if time.Since(swept) >= p.cfg().CleanupInterval {
			swept = time.Now()
			p.sweep()
			p.sweepDisk()
			p.shareTombstones(p.base)
		}
		timer.Reset(p.checkIdle())
	}
}

// untilCheck returns the time until checkIdle has to be called.
func (p *maintainer) untilCheck() time.Duration {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	return max(0, time.Until(p.nextCheck))
}

// sweep takes expired boxes out of memory and drops old tombstones.
func (p *maintainer) sweep() {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if p.reg.phase == phaseClosed {
		return
	}
	for _, b := range p.reg.boxes {
		p.life.expireLocked(b)
	}
	p.reg.tombstones.sweep()
}

// sweepDisk removes records that are too old or too many, and those of boxes that were lost
// with a server.
func (p *maintainer) sweepDisk() {
	if !p.hibernates() {
		return
	}
	// The store calls lifecycle.remember first.
	if _, err := p.parts.Snapshots.Sweep(p.base); err != nil && p.base.Err() == nil {
		p.log.Warn("snapshots not cleaned up", logkey.Error, err)
	}
	p.reg.notify() // it held each record for a moment
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
