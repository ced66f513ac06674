package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxTree bounds the processes to examine: npx has three, a browser about thirty.
const maxTree = 200

// activityOf examines a program. known is false if the program has exited or has too
// many processes.
func activityOf(pid int) (l activity, known bool) {
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		used, err := cpuTime(tree[i])
		if err != nil && i == 0 || len(tree) > maxTree {
			return activity{}, false
		}
		l.used += used // 0 for a child that has exited meanwhile
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", tree[i]))
		for _, t := range threads {
			thread := fmt.Sprintf("/proc/%d/task/%s", tree[i], t.Name())
			l.active = l.active || active(thread)
			tree = append(tree, children(thread)...)
		}
	}
	return l, true
}

// cpuTime returns the processor time of a process. It builds the clock id like
// clock_getcpuclockid(3), because /proc counts in units of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	const ofProcess = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}

// active reports whether a thread runs, or waits for a processor or a disk.
func active(thread string) bool {
	b, _ := os.ReadFile(thread + "/stat") // empty if the thread has exited
	_, state, _ := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	return len(state) > 0 && (state[0] == 'R' || state[0] == 'D')
}

// children returns the processes that a thread has started.
func children(thread string) (all []int) {
	b, _ := os.ReadFile(thread + "/children") // empty if the thread has exited
	for _, field := range bytes.Fields(b) {
		if child, err := strconv.Atoi(string(field)); err == nil {
			all = append(all, child)
		}
	}
	return all
}
