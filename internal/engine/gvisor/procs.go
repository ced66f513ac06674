//go:build linux && (amd64 || arm64)

package gvisor

import (
	"math"
	_ "unsafe" // for go:linkname

	_ "gvisor.dev/gvisor/pkg/gomaxprocs"
)

// moreProcs is gVisor's count of the processors that it has temporarily added to
// GOMAXPROCS.
//
//go:linkname moreProcs gvisor.dev/gvisor/pkg/gomaxprocs.temp
var moreProcs int

// holdProcs keeps the GOMAXPROCS that the process was started with. gVisor would raise
// it by 128 while it reads the pages of a snapshot, which may help a large machine. Here
// it would delay the start of the guest and keep megabytes for good: the Go runtime frees
// neither its data for each P nor the threads. Disk reads are concurrent anyway.
func holdProcs() {
	// gVisor refuses a change that makes the count negative.
	moreProcs = math.MinInt32
}
