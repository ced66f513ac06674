//go:build linux && (amd64 || arm64)

package gvisor

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/glovebox-dev/glovebox/internal/gctune"
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
	// lookEvery is the time between two looks at what has become garbage. A look
	// takes microseconds, to tidy up some milliseconds.
	lookEvery = 10 * time.Second
	// lookAgain is the time between two looks while there is garbage and more is
	// made: what is tidied too early has to be tidied again.
	lookAgain = time.Second
	// busyLooks is for how many of those a sentry is left alone. A busy one is
	// tidied every 40 s, and its pace of collection bounds what it has meanwhile.
	busyLooks = 30
	// tidyAbove is how much has to be allocated for it to be worth while.
	tidyAbove = 1 << 20
	// quietBelow is how much a sentry allocates at most in lookAgain if its guest
	// does nothing.
	quietBelow = 64 << 10
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
	allocated := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	time.Sleep(firstTidy)
	gctune.Follow()
	debug.SetMemoryLimit(math.MaxInt64)
	for {
		debug.FreeOSMemory()
		awaitGarbage(allocated)
	}
}

// awaitGarbage returns when tidying up has become worth while and no more garbage
// is made, or has been made for long. allocated is how much has been so far.
func awaitGarbage(allocated func() uint64) {
	for tidied := allocated(); allocated()-tidied <= tidyAbove; {
		time.Sleep(lookEvery)
	}
	for range busyLooks {
		seen := allocated()
		time.Sleep(lookAgain)
		if allocated()-seen < quietBelow {
			return
		}
	}
}
