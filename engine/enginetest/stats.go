package enginetest

import (
	"context"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

func statsTests() []test {
	return []test{
		{"guest-uses-something", needs[engine.Statser](testStats)},
		{"memory-is-counted", needs[engine.Statser](testStatsMemory)},
		{"processor-time-is-counted", needs[engine.Statser](testStatsCPU)},
		{"stats-after-destroy-are-gone", needs[engine.Statser](testStatsGone)},
	}
}

func (b *box) tryStats() (engine.Stats, error) {
	b.t.Helper()
	s := ability[engine.Statser](b.t)
	var stats engine.Stats
	err := b.t.call("stats", func(ctx context.Context) (err error) {
		stats, err = s.Stats(ctx, b.ID())
		return err
	})
	return stats, err
}

func (b *box) stats() engine.Stats {
	b.t.Helper()
	stats, err := b.tryStats()
	b.t.must("stats", err)
	return stats
}

func testStats(t *tester) {
	b := t.create(t.spec()).talk()
	if s := b.stats(); s.MemoryBytes < 100<<10 || s.MemoryBytes > 4<<30 || s.Processes < 1 || s.CPU < 0 {
		t.Errorf("a guest uses %+v", s)
	}
}

func testStatsMemory(t *tester) {
	const mib = 64
	b := t.create(t.spec()).talk().install()
	before := b.stats().MemoryBytes
	r := b.startProbe("hold", "64")
	r.says("ready")
	t.eventually("memory of a command shows", func() bool { return b.stats().MemoryBytes > before+mib*3/4<<20 })
	if after := b.stats().MemoryBytes; after > before+4*mib<<20 {
		t.Errorf("memory was %d MiB and is %d with a command that took %d", before>>20, after>>20, mib)
	}
}

func testStatsCPU(t *tester) {
	b := t.create(t.spec()).talk().install()
	before := b.stats().CPU
	b.startProbe("spin", "1").says("ready")
	t.eventually("processor time of a command shows", func() bool { return b.stats().CPU > before+200*time.Millisecond })
}

func testStatsGone(t *tester) {
	b := t.create(t.probeSpec("echo"))
	b.stats()
	t.destroy(b)
	_, err := b.tryStats()
	t.wantErr("stats after destroy", err, engine.ErrGone)
}
