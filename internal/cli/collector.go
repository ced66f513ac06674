package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// garbageRoom is what may be allocated between two collections. What is alive
	// in a server is a few MB while a request through the SDK leaves 200 KB of
	// garbage, so that Go's default, as much again as is alive, has it collect
	// after every dozen of requests. More room than this makes no call faster,
	// since memory that has left the processor's cache is slow too.
	garbageRoom = 16 << 20
	// The bounds of the room in percent of what is alive. From garbageRoom on it
	// is Go's default; below, the runtime adds a minimum of 4 MB a hundred.
	leastPercent, mostPercent = 100, 400
)

// tuneCollector sets the garbage collector for a server that mostly moves bytes:
// a fixed room for garbage in place of a share of what is alive, so that neither
// a small server collects all the time nor a session costs a multiple of what it
// holds. It does nothing if the person says GOGC. GOMEMLIMIT holds in any case.
func tuneCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	followCollector()
}

// followCollector sets the percentage, and again after every collection.
func followCollector() {
	live := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/gc/gogc:percent"},
	}
	metrics.Read(live)
	now := live[3].Value.Uint64()
	want := collectorPercent(live[0].Value.Uint64() + live[1].Value.Uint64() + live[2].Value.Uint64())
	// Setting it stops the world for a moment.
	if max(now, want)-min(now, want) > now/8 {
		debug.SetGCPercent(int(want))
	}
	// Cleaned up after the next collection, since nothing refers to it.
	runtime.AddCleanup(&struct{ next *byte }{}, func(struct{}) { followCollector() }, struct{}{})
}

// collectorPercent is the room in percent of what a collection left alive, as the
// runtime counts it.
func collectorPercent(live uint64) uint64 {
	return min(max(100*garbageRoom/max(live, 1), leastPercent), mostPercent)
}
