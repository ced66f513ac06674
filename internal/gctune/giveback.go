package gctune

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// pollEvery is the interval in which a process checks how much it has allocated.
	// A check takes microseconds, a return of memory some milliseconds.
	pollEvery = 10 * time.Second
	// pollBusy is the interval while more is allocated: memory that is returned too early
	// has to be fetched again.
	pollBusy = time.Second
	// busyPolls is the number of those intervals after which a busy process returns
	// memory anyway, every 40 s. Its garbage collector bounds it in between.
	busyPolls = 30
	// giveBackAbove is the least allocation that makes a return of memory worthwhile.
	giveBackAbove = 1 << 20
	// quietBelow is the most that an idle process allocates in pollBusy.
	quietBelow = 64 << 10
)

// GiveBack returns unused memory of the process to the host: at once, and again after each
// burst of work. By default the Go runtime keeps for minutes the most that the process has
// used, which most processes never need again. GiveBack does not return.
func GiveBack() {
	for {
		debug.FreeOSMemory()
		awaitGarbage(allocated)
		awaitQuiet(allocated)
	}
}

// allocated returns the total allocation so far, in bytes.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// awaitGarbage returns when enough was allocated to make a return of memory worthwhile.
func awaitGarbage(allocated func() uint64) {
	for begun := allocated(); allocated()-begun <= giveBackAbove; {
		time.Sleep(pollEvery)
	}
}

// awaitQuiet returns when the process is quiet or has been busy for long.
func awaitQuiet(allocated func() uint64) {
	for range busyPolls {
		before := allocated()
		time.Sleep(pollBusy)
		if allocated()-before < quietBelow {
			return
		}
	}
}
