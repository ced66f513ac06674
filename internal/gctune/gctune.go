// Package gctune sets the pace of Go's garbage collector for processes that keep
// little and allocate much: the server and the sentries.
package gctune

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// room is what may be allocated between two collections. What is alive in a
	// server or a sentry is a few MB while a request through the SDK leaves 200 KB
	// of garbage, and a snapshot of a guest 15 MB, so that Go's default, as much
	// again as is alive, has it collect all the time. More room than this makes no
	// call faster, since memory that has left the processor's cache is slow too.
	room = 16 << 20
	// The bounds of the room in percent of what is alive. From room on it is Go's
	// default; below, the runtime adds a minimum of 4 MB a hundred.
	leastPercent, mostPercent = 100, 400
)

// Follow gives garbage a fixed room in place of a share of what is alive, from now
// on for as long as the process lives, so that neither a small process collects
// all the time nor what each thing it holds costs a multiple of its size. Where
// much is alive it is Go's default. A limit of memory (GOMEMLIMIT) holds in any
// case. It is called once.
func Follow() {
	live := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/gc/gogc:percent"},
	}
	metrics.Read(live)
	now := live[3].Value.Uint64()
	want := percent(live[0].Value.Uint64() + live[1].Value.Uint64() + live[2].Value.Uint64())
	// Setting it stops the world for a moment.
	if max(now, want)-min(now, want) > now/8 {
		debug.SetGCPercent(int(want))
	}
	// Cleaned up after the next collection, since nothing refers to it.
	runtime.AddCleanup(&struct{ next *byte }{}, func(struct{}) { Follow() }, struct{}{})
}

// percent is the room in percent of what a collection left alive, as the runtime
// counts it.
func percent(live uint64) uint64 {
	return min(max(100*room/max(live, 1), leastPercent), mostPercent)
}
