package gctune

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

func TestPercent(t *testing.T) {
	for live, want := range map[uint64]uint64{
		0: 400, 1 << 20: 400, 4 << 20: 400, 8 << 20: 200, 16 << 20: 100, 1 << 30: 100,
	} {
		if got := percent(live); got != want {
			t.Errorf("with %d bytes alive: %d, want %d", live, got, want)
		}
	}
}

// TestStart: once there has been a collection, the percentage falls when more memory is
// alive, and rises again. So every command that goes on for long gives its room back.
func TestStart(t *testing.T) {
	t.Setenv("GOGC", "")
	old := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(old) })
	now := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	settles := func(want func(uint64) bool, text string) {
		t.Helper()
		collected := func() bool { // cleanups run soon after a collection
			runtime.GC()
			return want(now())
		}
		if !polltest.Soon(5*time.Second, collected) {
			t.Errorf("%s: GOGC is %d", text, now())
		}
	}
	Start()
	ballast := make([]byte, 2*room)
	settles(func(p uint64) bool { return p == leastPercent }, "with much alive")
	runtime.KeepAlive(ballast)
	ballast = nil
	settles(func(p uint64) bool { return p > leastPercent }, "with little alive")
}
