//go:build linux && (amd64 || arm64)

package gvisor

import (
	"math"
	"runtime"
	"runtime/debug"
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
	time.Sleep(firstScavenge)
	gctune.Follow()
	debug.SetMemoryLimit(math.MaxInt64)
	gctune.GiveBack()
}
