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
	// lookEvery is the time between two looks at what has become garbage. A look
	// takes microseconds, to tidy up some milliseconds. A box is tidied at the
	// second one, at the latest, after it was written to disk and paused.
	lookEvery = 10 * time.Second
	// busyLooks is at how many looks a sentry is left alone that still makes
	// garbage: soon there is more, and its pace of collection bounds that.
	busyLooks = 2
	// tidyAbove is how much has to be allocated for it to be worth while.
	tidyAbove = 1 << 20
	// quietBelow is how much a sentry allocates at most between two looks if its
	// guest does nothing.
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
	gcpace.Follow()
	debug.SetMemoryLimit(math.MaxInt64)
	debug.FreeOSMemory()
	l := looks{tidied: allocated()}
	for {
		time.Sleep(lookEvery)
		if l.due(allocated()) {
			debug.FreeOSMemory()
			l = looks{tidied: allocated()}
		}
	}
}

// looks is what is remembered of earlier looks: bytes that had been allocated
// when all was tidied and at the last look, and how many looks have found garbage
// since.
type looks struct {
	tidied, seen uint64
	found        int
}

// due reports whether it is time to tidy, at a look when so much has been
// allocated.
func (l *looks) due(allocated uint64) bool {
	quiet := allocated-l.seen < quietBelow
	l.seen = allocated
	if allocated-l.tidied <= tidyAbove {
		return false
	}
	l.found++
	return quiet || l.found > busyLooks
}
