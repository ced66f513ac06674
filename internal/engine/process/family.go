//go:build linux

package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// rlimitLocks is RLIMIT_LOCKS, which Linux has not used since 2.4.
const rlimitLocks = 10

// userHZ is the unit of times in /proc, the same on all architectures of Go.
const userHZ = 100

// family is the mark of a process and all its descendants.
type family string

// newFamily marks a process and continues it. The calling thread has started it
// traced, so that it stops before its first instruction.
func newFamily(pid int) (family, error) {
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return "", fmt.Errorf("wait for process to stop: %w", err)
	}
	if !status.Stopped() {
		return "", fmt.Errorf("process ended at its start: status %#x", uint32(status))
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, rlimitLocks, nil, &limit); err != nil {
		return "", fmt.Errorf("mark process: %w", err)
	}
	limit.Cur = min(newMark(), limit.Max)
	if err := unix.Prlimit(pid, rlimitLocks, &limit, nil); err != nil {
		return "", fmt.Errorf("mark process: %w", err)
	}
	if err := unix.PtraceDetach(pid); err != nil {
		return "", fmt.Errorf("detach from process: %w", err)
	}
	return family(strconv.FormatUint(limit.Cur, 10)), nil
}

// member is a process of a family, as read from /proc/PID/stat.
type member struct {
	pid, parent, group int
	state              byte // 'Z' zombie, 'T' stopped, ...
	cpu                time.Duration
}

// members lists the family, including zombies. It may miss processes that start
// during the scan.
func (f family) members() []member {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // a partial list is better than none
	var all []member
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || !f.has(pid) {
			continue
		}
		if m, ok := readMember(pid); ok {
			all = append(all, m)
		}
	}
	return all
}

// has reports whether the process carries the mark.
func (f family) has(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return false // it has just ended
	}
	_, rest, _ := strings.Cut(string(b), "Max file locks")
	soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return soft == string(f)
}

func readMember(pid int) (member, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return member{}, false
	}
	// The name, in parentheses, may contain anything.
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 15 {
		return member{}, false
	}
	m := member{pid: pid, state: fields[0][0]}
	m.parent, _ = strconv.Atoi(fields[1])
	m.group, _ = strconv.Atoi(fields[2])
	for _, ticks := range fields[11:15] { // its own and those of reaped children
		n, _ := strconv.ParseInt(ticks, 10, 64)
		m.cpu += time.Duration(n) * time.Second / userHZ
	}
	return m, true
}

// kill kills the family and returns when nothing is left of it. The caller reaps
// the head of the family, whose zombie does not count.
func (f family) kill(head int) {
	// Two empty scans in a row: one scan may miss a process that starts during it.
	pause := 100 * time.Microsecond
	for seen := 0; seen < 2; seen++ {
		left := 0
		for _, m := range f.members() {
			switch {
			case m.state != 'Z':
				left++
				// Killing a whole group at once prevents an escape by forking. The
				// family has created all groups of its members itself.
				if m.group > 1 {
					unix.Kill(-m.group, unix.SIGKILL)
				}
				unix.Kill(m.pid, unix.SIGKILL)
			case m.pid != head && m.parent == os.Getpid():
				left++
				unix.Wait4(m.pid, nil, unix.WNOHANG, nil)
			}
		}
		if left > 0 {
			seen = -1
			time.Sleep(pause) // the kernel reports the end of children only
			pause = min(2*pause, 10*time.Millisecond)
		}
	}
}

// signal sends SIGSTOP or SIGCONT to the family and reports whether all members
// were in the wanted state already.
func (f family) signal(sig syscall.Signal) bool {
	done := true
	for _, m := range f.members() {
		switch {
		case m.state == 'Z':
			continue
		case sig == unix.SIGCONT:
			done = done && m.state != 'T'
		case m.state == 'T':
			continue
		case m.state != 'D':
			done = false
			// A process in state D runs nothing and stops when it wakes. It may not
			// wake before the pause ends, for example during vfork, while its child is
			// stopped.
		}
		unix.Kill(m.pid, sig) // also discards a pending signal of the other kind
	}
	return done
}

// stats sums up the resource usage of the family.
func (f family) stats() engine.Stats {
	var s engine.Stats
	for _, m := range f.members() {
		s.CPU += m.cpu
		if m.state != 'Z' {
			s.Processes++
			s.MemoryBytes += memory(m.pid)
		}
	}
	return s
}

// memory returns the proportional set size of a process in bytes.
func memory(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has just ended
	}
	_, rest, _ := strings.Cut(string(b), "\nPss:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseUint(fields[0], 10, 64)
	return kib << 10
}
