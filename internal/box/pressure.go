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
	// lowShare of the host's memory, and at least lowMB, is kept free: below it, idle
	// boxes are hibernated before the host's kernel kills a process.
	lowShare = 0.05
	lowMB    = 256
	// memoryPoll is the poll interval of the host's memory while the pool waits for it.
	// There is no notification when other programs free memory.
	memoryPoll = time.Second
)

// waitForCapacity waits until the pool may make a machine without slowing down boxes: no
// box is being made and there is memory for one more. The registry signals the end of a
// start and of a box; the host's memory is polled.
func (m *maintainer) waitForCapacity(ctx context.Context) error {
	for {
		changed, busy := m.busy()
		if !busy && !memoryLow() {
			return nil
		}
		var poll <-chan time.Time
		if !busy {
			poll = time.After(memoryPoll)
		}
		select {
		case <-changed:
		case <-poll:
		case <-ctx.Done():
			return fmt.Errorf("wait for room for the pool: %w", context.Cause(ctx))
		}
	}
}

// busy reports whether boxes are being made, or the configured memory is used up, and
// returns a channel that is closed when that may have changed.
func (m *maintainer) busy() (changed <-chan struct{}, busy bool) {
	need := m.cfg().DefaultFlavor.Limits().MemoryMB
	for _, c := range m.life.machines.poolStats() {
		need += c.Ready * m.cfg().DefaultFlavor.Limits().MemoryMB
	}
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	limit := m.cfg().MaxTotalMemoryMB
	return m.reg.changed.wait(), m.reg.starting > 0 || limit > 0 && m.reg.usageLocked().memoryMB+need > limit
}

// freeHostMemory frees memory when the host is short of it: it empties the pool, or else
// evicts one box.
func (m *maintainer) freeHostMemory() {
	if !memoryLow() {
		return
	}
	if pool := m.life.machines.pool; pool != nil {
		ctx, cancel := context.WithTimeout(m.base, destroyTimeout)
		defer cancel()
		if n := pool.Trim(ctx, len(pool.Stats())*m.cfg().PoolSize); n > 0 {
			m.log.Warn("the host is short of memory: the pool was emptied", logkey.Count, n)
			return
		}
	}
	if b := m.evictForHost(); b != nil {
		m.log.Warn("the host is short of memory: an idle box is evicted", logkey.Guest, b.guestID, logkey.Box, b.key.id)
	}
}

// memoryLow reports whether the host is short of memory; false if that is unknown.
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
