//go:build linux && (amd64 || arm64)

package gvisor

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// firstTidy is when a sentry is tidied first: its boot or its restore, which
	// make more garbage than anything later, are over.
	firstTidy = 2 * time.Second
	// tidyEvery is the time between two looks at what has become garbage. A look
	// takes microseconds, to tidy up some milliseconds.
	tidyEvery = 30 * time.Second
	// tidyAbove is how much has to be allocated for it to be worth while.
	tidyAbove = 1 << 20
)

// tidy gives the host the memory back that this process, a sentry, does not use.
// By itself the Go runtime keeps as much as the process has ever had, for the case
// that it needs it again, which most guests never do.
func tidy() {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	last := uint64(0)
	for wait := firstTidy; ; wait = tidyEvery {
		time.Sleep(wait)
		metrics.Read(sample)
		if now := sample[0].Value.Uint64(); now-last > tidyAbove {
			debug.FreeOSMemory()
			metrics.Read(sample)
			last = sample[0].Value.Uint64()
		}
	}
}
