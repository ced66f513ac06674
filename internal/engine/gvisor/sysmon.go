//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"strconv"
)

// sysmonSlack is the timer slack of sysmon, the monitor thread of the Go runtime, in
// nanoseconds. With the default of 50 µs, sysmon wakes every 20 µs plus slack while
// anything runs, which takes more CPU time than a short call, and a third of all CPU time
// where many boxes share few processors. The price: when system calls hold every P of the
// runtime, a runnable goroutine waits up to this much longer.
const sysmonSlack = 2_000_000

// slackenSysmon makes sysmon of this process wake less often. Best effort.
func slackenSysmon() {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return
	}
	defer dir.Close()
	// In the order of creation: the main thread starts sysmon before any other.
	threads, err := dir.Readdirnames(-1)
	if err != nil || len(threads) < 2 {
		return
	}
	// /proc/self/timerslack_ns is that of the main thread only.
	file := fmt.Sprintf("/proc/%s/timerslack_ns", threads[1])
	_ = os.WriteFile(file, []byte(strconv.Itoa(sysmonSlack)), 0)
}
