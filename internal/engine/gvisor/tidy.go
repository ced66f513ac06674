//go:build linux && (amd64 || arm64)

package gvisor

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/glovebox-dev/glovebox/internal/gcpace"
)

const (
	// firstTidy is when a sentry is tidied first: its boot or its restore, which
	// make more garbage than anything later, are over.
	firstTidy = 2 * time.Second
	// startMemory is how much a sentry may have before it collects garbage for the
	// first time, unless firstTidy comes before: twice what a boot or a restore
	// leaves, so that neither is held up by a collection, and less than the room
	// that there is for a sentry beside its guest's memory.
	startMemory = 40 << 20
	// tidyEvery is the time between two looks at what has become garbage. A look
	// takes microseconds, to tidy up some milliseconds.
	tidyEvery = 30 * time.Second
	// tidyAbove is how much has to be allocated for it to be worth while.
	tidyAbove = 1 << 20
)

// keepTidy gives the host the memory back that this process, a sentry, does not
// use. By itself the Go runtime keeps as much as the process has ever had, for the
// case that it needs it again, which most guests never do. And it collects garbage
// several times during a start, which waits for that.
func keepTidy() {
	runtime.MemProfileRate = 0 // nobody asks
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(startMemory)
	go tidy() // ends with the process
}

func tidy() {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	last := uint64(0)
	time.Sleep(firstTidy)
	gcpace.Follow()
	debug.SetMemoryLimit(math.MaxInt64)
	for {
		metrics.Read(sample)
		if now := sample[0].Value.Uint64(); now-last > tidyAbove {
			debug.FreeOSMemory()
			metrics.Read(sample)
			last = sample[0].Value.Uint64()
		}
		time.Sleep(tidyEvery)
	}
}
