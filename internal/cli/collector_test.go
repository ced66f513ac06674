package cli

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestCollectorPercent(t *testing.T) {
	for live, want := range map[uint64]uint64{
		0: 400, 1 << 20: 400, 4 << 20: 400, 8 << 20: 200, 16 << 20: 100, 1 << 30: 100,
	} {
		if got := collectorPercent(live); got != want {
			t.Errorf("with %d bytes alive: %d, want %d", live, got, want)
		}
	}
}

// TestCollectorFollows: the percentage falls when more is alive and rises again.
func TestCollectorFollows(t *testing.T) {
	t.Setenv("GOGC", "")
	old := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(old) })
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	settles := func(want func(uint64) bool, text string) {
		t.Helper()
		for range 500 { // 5 s: cleanups run soon after a collection
			runtime.GC()
			if want(percent()) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s: GOGC is %d", text, percent())
	}
	tuneCollector()
	ballast := make([]byte, 2*garbageRoom)
	settles(func(p uint64) bool { return p == leastPercent }, "with much alive")
	runtime.KeepAlive(ballast)
	ballast = nil
	settles(func(p uint64) bool { return p > leastPercent }, "with little alive")
}
