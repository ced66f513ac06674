// Package gctune sets the pace of Go's garbage collector for processes with a small
// live heap and many allocations, the server and the sentries, and returns what they do not
// use to the host.
package gctune

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

const (
	// room is the allocation between two collections. The live heap of a server or a
	// sentry is a few MB, but a request through the SDK leaves 200 KB of garbage and a
	// snapshot of a guest 15 MB: with Go's default, which doubles the live heap, they
	// would collect all the time. More room makes no call faster, since the memory is
	// not in the processor's cache any more.
	room = 16 << 20
	// Bounds of the room in percent of the live heap. The lower one is Go's default. The
	// runtime's minimum heap of 4 MB scales with the percentage.
	leastPercent, mostPercent = 100, 400
)

// Start gives the process the most room until its first collection, and does what Follow and
// [GiveBack] do from then on. A command that starts a box or asks a server ends before it has
// allocated as much, and a collection would only delay it; one that goes on has to give the
// room back as its live heap grows, and while it waits for its client. GOGC in the environment
// overrides it. Calls after the first have no effect.
func Start() {
	if os.Getenv("GOGC") == "" {
		start()
	}
}

var start = sync.OnceFunc(func() {
	debug.SetGCPercent(mostPercent)
	afterCollection(func() {
		Follow()
		go func() { // ends with the process
			awaitQuiet(allocated)
			GiveBack()
		}()
	})
})

// Follow keeps the room between collections constant for the life of the process,
// instead of a share of the live heap. A process with a large live heap uses Go's
// default. GOMEMLIMIT still applies. Follow must be called once.
func Follow() {
	live := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/gc/gogc:percent"},
	}
	metrics.Read(live)
	now := live[3].Value.Uint64()
	want := percent(live[0].Value.Uint64() + live[1].Value.Uint64() + live[2].Value.Uint64())
	// SetGCPercent stops the world.
	if max(now, want)-min(now, want) > now/8 {
		debug.SetGCPercent(int(want))
	}
	afterCollection(Follow)
}

// afterCollection calls f after the next collection.
func afterCollection(f func()) {
	// The object is unreachable. It has a pointer, so that it shares no memory with others.
	runtime.AddCleanup(&struct{ next *byte }{}, func(struct{}) { f() }, struct{}{})
}

// percent returns the room in percent of the live heap, as the runtime counts it.
func percent(live uint64) uint64 {
	return min(max(100*room/max(live, 1), leastPercent), mostPercent)
}
