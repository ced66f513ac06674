//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"strconv"
)

// watchSlack is by how much the thread may be late, in nanoseconds, by which the Go
// runtime of a process watches over the others. As long as anything runs it looks
// every 20 microseconds whether a system call takes long; with the 50 that Linux
// grants every thread that takes more processor time than a short call itself, and
// a third of it all where many boxes share few processors. What waits for that
// thread, a goroutine while system calls hold every processor that the runtime has,
// waits as much longer.
const watchSlack = 2_000_000

// slackenWatch makes the runtime of this process watch less often. Best effort.
func slackenWatch() {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return
	}
	defer dir.Close()
	// In the order of their beginnings: the main thread, which starts this one
	// before anything else.
	threads, err := dir.Readdirnames(-1)
	if err != nil || len(threads) < 2 {
		return
	}
	// Not below self: what is there is of the main thread only.
	file := fmt.Sprintf("/proc/%s/timerslack_ns", threads[1])
	_ = os.WriteFile(file, []byte(strconv.Itoa(watchSlack)), 0)
}
