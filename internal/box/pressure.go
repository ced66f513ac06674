package box

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// lowShare of the host's memory, and at least lowMB, is left to others: below
	// it, idle boxes are written to disk before the host's kernel kills a process.
	lowShare = 0.05
	lowMB    = 256
	// memoryLook is the time between two looks at the host's memory while the pool
	// waits for it. Nothing announces memory that other programs free.
	memoryLook = time.Second
)

// waitForCapacity waits until making a machine for the pool takes nothing from others:
// no box is being made and there is memory for one more. The registry announces the end
// of a start and of a box; the host's memory has to be looked at.
func (p *reaper) waitForCapacity(ctx context.Context) error {
	for {
		changed, busy := p.busy()
		if !busy && !memoryLow() {
			return nil
		}
		var look <-chan time.Time
		if !busy {
			look = time.After(memoryLook)
		}
		select {
		case <-changed:
		case <-look:
		case <-ctx.Done():
			return fmt.Errorf("wait for room for the pool: %w", context.Cause(ctx))
		}
	}
}

// busy reports whether boxes are being made, or the configured memory is used up, and
// returns a channel that is closed when that may have changed.
func (p *reaper) busy() (changed <-chan struct{}, busy bool) {
	need := p.cfg().DefaultFlavor.Limits().MemoryMB
	for _, c := range p.life.machines.poolStats() {
		need += c.Ready * p.cfg().DefaultFlavor.Limits().MemoryMB
	}
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	limit := p.cfg().MaxTotalMemoryMB
	return p.reg.changed.wait(), p.reg.starting > 0 || limit > 0 && p.reg.usageLocked().memoryMB+need > limit
}

// relieve frees memory when the host is short of it: first the pool, then the box that
// nobody has used for longest, one at a time.
func (p *reaper) relieve() {
	if !memoryLow() {
		return
	}
	if pool := p.life.machines.pool; pool != nil {
		ctx, cancel := context.WithTimeout(p.base, destroyTimeout)
		defer cancel()
		if n := pool.Trim(ctx, len(pool.Stats())*p.cfg().PoolSize); n > 0 {
			p.log.Warn("the host is short of memory: the pool was emptied", logkey.Count, n)
			return
		}
	}
	if s := p.evictIdlest(); s != nil {
		p.log.Warn("the host is short of memory: the least recently used box is taken out of it", logkey.Guest, s.guestID)
	}
}

// memoryLow reports whether the host has little memory left; false where it does
// not tell.
var memoryLow = func() bool {
	total, available, ok := hostMemory()
	return ok && available < max(uint64(float64(total)*lowShare), lowMB<<20)
}

// hostMemory returns the host's memory in bytes.
func hostMemory() (total, available uint64, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && (total == 0 || available == 0); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch {
		case err != nil:
		case name == "MemTotal":
			total = n << 10
		case name == "MemAvailable":
			available = n << 10
		}
	}
	return total, available, total > 0 && available > 0
}
