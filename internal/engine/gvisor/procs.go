//go:build linux && (amd64 || arm64)

package gvisor

import (
	"math"
	_ "unsafe" // for go:linkname

	_ "gvisor.dev/gvisor/pkg/gomaxprocs"
)

// moreProcs is gVisor's count of the processors that it has added to GOMAXPROCS
// for a while.
//
//go:linkname moreProcs gvisor.dev/gvisor/pkg/gomaxprocs.temp
var moreProcs int

// holdProcs keeps GOMAXPROCS as the process was started with it. gVisor would
// raise it by 128 while it reads the pages of a snapshot, which a large machine
// may gain from. Here that takes processor time from the start of the guest, and
// megabytes for good: the Go runtime frees neither what it has for each processor
// nor the threads. Reads that wait for a disk are many at a time all the same.
func holdProcs() {
	// What makes the count negative is refused.
	moreProcs = math.MinInt32
}
