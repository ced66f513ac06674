package box

import (
	"bufio"
	"cmp"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// lowShare of the host's memory, and at least lowMB, is left to others: below
	// it idle boxes go to disk before the host's kernel chooses a victim.
	lowShare = 0.05
	lowMB    = 256
)

// tight reports whether there is no memory for another machine in the pool.
func (m *Manager) tight() bool {
	if m.cfg().MaxTotalMemoryMB > 0 {
		flavor := m.cfg().DefaultFlavor.Limits().MemoryMB
		ready := 0
		for _, c := range m.Pool() {
			ready += c.Ready
		}
		m.mu.Lock()
		u := m.usageLocked()
		m.mu.Unlock()
		if u.memoryMB+(ready+1)*flavor > m.cfg().MaxTotalMemoryMB {
			return true
		}
	}
	return memoryLow()
}

// relieve gives memory back when the host runs short of it: first the pool, then
// the box that nobody has used for longest, one at a look.
func (m *Manager) relieve() {
	if !memoryLow() {
		return
	}
	if m.pool != nil {
		ctx, cancel := context.WithTimeout(m.base, destroyTimeout)
		defer cancel()
		if n := m.pool.Trim(ctx, len(m.Pool())*m.cfg().PoolSize); n > 0 {
			m.log.Warn("the host is short of memory: the pool was given up", logkey.Count, n)
			return
		}
	}
	if !m.cfg().Evict {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var idle []*Box
	for _, s := range m.boxes {
		if !s.busyLocked() {
			idle = append(idle, s)
		}
	}
	if len(idle) == 0 || m.phase != phaseOpen {
		return
	}
	s := slices.MinFunc(idle, func(a, b *Box) int { return cmp.Compare(a.use, b.use) })
	m.log.Warn("the host is short of memory: the least recently used box is taken out of it", logkey.Guest, s.guestID)
	m.unloadLocked(s, ReasonEvicted, "the host was short of memory")
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

// tickOf is how often idle boxes are looked for: often enough for the shorter of
// the two idle times.
func (c *Config) tickOf() time.Duration {
	if c.PauseAfter > 0 {
		return min(c.CleanupInterval, max(c.PauseAfter/4, 50*time.Millisecond))
	}
	return c.CleanupInterval
}
