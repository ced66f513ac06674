//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// sysmonSlack is the timer slack, in ns, of sysmon, the Go runtime's monitor thread.
// sysmon wakes every 20 µs while anything runs. With Linux's default slack of 50 µs, that
// costs more CPU time than a short call, and a third of all CPU time where many boxes
// share few processors. A goroutine that waits for sysmon waits that much longer.
const sysmonSlack = 2_000_000

// slackenSysmon makes sysmon of this process wake less often. It needs CAP_SYS_NICE.
func slackenSysmon() error {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return err
	}
	defer dir.Close()
	// In start order: the main thread starts sysmon before any other.
	threads, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	if len(threads) < 2 {
		return errors.New("it does not run yet")
	}
	// /proc/self/timerslack_ns covers only the main thread.
	file := fmt.Sprintf("/proc/%s/timerslack_ns", threads[1])
	return os.WriteFile(file, []byte(strconv.Itoa(sysmonSlack)), 0)
}
