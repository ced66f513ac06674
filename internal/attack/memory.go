//go:build linux

package attack

import (
	"context"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// memoryEvery is how often the host's memory is read during an attack on it.
const memoryEvery = 20 * time.Millisecond

// memorySeconds is how long most attacks on memory last.
const memorySeconds = 4

// hostBound is how much of the host's memory a box may take, in MiB: its limit, a
// quarter more for files in memory, and what the isolation itself needs, which
// together are what the engine enforces; and noise for the other programs of the
// machine.
func hostBound(l engine.Limits) int64 {
	const agent, isolation, noise = 64, 256, 192
	m := int64(l.MemoryMB + agent)
	return m + m/4 + isolation + noise
}

// ceiling is the most that an attack on memory tries to take of the host if nothing
// stops it, in MiB. It exceeds hostBound by enough to be noticed.
func ceiling(l engine.Limits) int64 { return hostBound(l) + 256 }

// meter records the lowest available memory of the host.
type meter struct {
	before int64 // MiB
	mu     sync.Mutex
	lowest int64 // guarded by mu
	stop   chan struct{}
	wg     sync.WaitGroup
}

// availableMB returns the memory that the host has available.
func availableMB() int64 { return procKB("/proc/meminfo", "MemAvailable") >> 10 }

// steadyMB returns the memory that the host has available once it does not rise any
// more: the kernel frees the memory of ended processes in the background.
func steadyMB() int64 {
	const pause, limit, noise = 100 * time.Millisecond, 3 * time.Second, 8
	now := availableMB()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		time.Sleep(pause)
		next := availableMB()
		if next <= now+noise {
			return max(now, next)
		}
		now = next
	}
	return now
}

func newMeter() *meter {
	m := &meter{before: steadyMB(), stop: make(chan struct{})}
	m.lowest = m.before
	m.wg.Go(func() {
		tick := time.NewTicker(memoryEvery)
		defer tick.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-tick.C:
				m.mu.Lock()
				m.lowest = min(m.lowest, availableMB())
				m.mu.Unlock()
			}
		}
	})
	return m
}

// taken ends the measurement and returns how much memory was taken at most, in MiB.
func (m *meter) taken() int64 {
	close(m.stop)
	m.wg.Wait()
	return m.before - m.lowest
}

// memoryAttack runs a function of the class's guest script that takes as much of
// the host's memory as it can, and judges it by the memory that the host has
// available. Another program of the machine may take memory at the same time, so
// only the lowest of three measurements counts.
func memoryAttack(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		const measurements = 3
		lowest := int64(-1)
		for range measurements {
			taken, err := t.takeMemory(ctx, function)
			if err != nil {
				return err
			}
			if lowest < 0 || taken < lowest {
				lowest = taken
			}
			if lowest <= hostBound(small) {
				break
			}
		}
		t.mu.Lock()
		t.took = lowest
		t.mu.Unlock()
		t.check(lowest <= hostBound(small), "a box of %d MiB took %d MiB of the host's memory, more than %d, in each of %d measurements",
			small.MemoryMB, lowest, hostBound(small), measurements)
		return nil
	}
}

// takeMemory measures one run in a fresh box, which it destroys.
func (t *trial) takeMemory(ctx context.Context, function string) (int64, error) {
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return 0, err
	}
	m := newMeter()
	seconds := max(memorySeconds, t.cfg.seconds)
	err = c.attack(ctx, call{
		function: function, mayDie: true, timeout: max(scriptTimeout, time.Duration(seconds)*time.Second+nextTimeout),
		args: map[string]any{"ceiling_mb": ceiling(small) + int64(t.cfg.extraMB), "seconds": seconds},
	})
	taken := m.taken()
	c.settle(ctx)
	return taken, err
}
