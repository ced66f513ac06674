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
	// firstScavenge is the delay of the first scavenge: by then the boot or restore,
	// which make more garbage than anything later, are over.
	firstScavenge = 2 * time.Second
	// startMemory is the limit at which a sentry collects garbage before
	// firstScavenge: twice what a boot or restore leaves, so that a collection delays
	// neither, and less than a sentry's allowance beside its guest's memory.
	startMemory = 40 << 20
	// pollEvery is the interval in which a sentry checks how much it has allocated.
	// A check takes microseconds, a scavenge some milliseconds.
	pollEvery = 10 * time.Second
	// pollBusy is the interval while more is allocated: what is scavenged too early
	// has to be scavenged again.
	pollBusy = time.Second
	// busyPolls is the number of those intervals after which a busy sentry is
	// scavenged anyway, every 40 s. Its garbage collector bounds it in between.
	busyPolls = 30
	// scavengeAbove is the least allocation that makes a scavenge worthwhile.
	scavengeAbove = 1 << 20
	// quietBelow is the most that a sentry with an idle guest allocates in pollBusy.
	quietBelow = 64 << 10
)

// startScavenger returns unused memory of this process, a sentry, to the host. By
// default the Go runtime keeps the most that the process has ever used, which most
// guests never need again, and collects garbage several times during a start, which
// delays it.
func startScavenger() {
	runtime.MemProfileRate = 0 // nobody reads the profile
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(startMemory)
	go scavenge() // ends with the process
}

func scavenge() {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	allocated := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	time.Sleep(firstScavenge)
	gctune.Follow()
	debug.SetMemoryLimit(math.MaxInt64)
	for {
		debug.FreeOSMemory()
		awaitGarbage(allocated)
	}
}

// awaitGarbage returns when a scavenge is worthwhile and the sentry is quiet or has
// been busy for long. allocated returns the total allocation so far.
func awaitGarbage(allocated func() uint64) {
	for scavenged := allocated(); allocated()-scavenged <= scavengeAbove; {
		time.Sleep(pollEvery)
	}
	for range busyPolls {
		before := allocated()
		time.Sleep(pollBusy)
		if allocated()-before < quietBelow {
			return
		}
	}
}
