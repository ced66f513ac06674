package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxTree bounds the processes that are looked at: npx has three, a browser some
// thirty.
const maxTree = 200

// lookAt looks at a program; known is false if it is gone, or is too many processes.
func lookAt(pid int) (l look, known bool) {
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		used, err := clock(tree[i])
		if err != nil && i == 0 || len(tree) > maxTree {
			return look{}, false
		}
		l.used += used // nothing, of a child that has ended meanwhile
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", tree[i]))
		for _, t := range threads {
			thread := fmt.Sprintf("/proc/%d/task/%s", tree[i], t.Name())
			l.active = l.active || active(thread)
			tree = append(tree, children(thread)...)
		}
	}
	return l, true
}

// clock is the processor time of a process. The number of its clock is made as
// clock_getcpuclockid(3) makes it; it is exact where /proc counts in 10 ms.
func clock(pid int) (time.Duration, error) {
	const ofProcess = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}

// active reports whether a thread computes, waits for a processor or for a disk.
func active(thread string) bool {
	b, _ := os.ReadFile(thread + "/stat") // nothing of one that is gone
	_, state, _ := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	return len(state) > 0 && (state[0] == 'R' || state[0] == 'D')
}

// children are those that a thread has started.
func children(thread string) (all []int) {
	b, _ := os.ReadFile(thread + "/children") // nothing of one that is gone
	for _, field := range bytes.Fields(b) {
		if child, err := strconv.Atoi(string(field)); err == nil {
			all = append(all, child)
		}
	}
	return all
}
