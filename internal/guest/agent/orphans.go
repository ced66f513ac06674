package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// leftoverTime bounds how long processes are hunted that fork while they are.
	leftoverTime = 3 * time.Second
	// settle is how long a process that was told to stop may go on: a fork under
	// way is seen in the look after it.
	settle = 2 * time.Millisecond
	// crowding is the least that code runs which fills the guest with processes;
	// after shorter runs nobody looks, which would cost them more than they take.
	crowding = 20 * time.Millisecond
)

// atLimit reports whether a process did not start because there are too many.
func atLimit(err error) bool { return errors.Is(err, unix.EAGAIN) }

// endLeftovers kills the user's processes that belong to no kernel and no
// command that is under way, and returns how many there were. It is for the
// moment in which nothing can be started any more, not even what would end
// them.
//
// It stops them all before it kills the first: at the limit those that are
// stopped hold their places, so that even what forks as fast as it can gets no
// further.
func (l *launcher) endLeftovers(kernel int) int {
	if l.group == nil {
		return 0
	}
	l.hunt.Lock()
	defer l.hunt.Unlock()
	killed := 0
	for end := time.Now().Add(leftoverTime); time.Now().Before(end); {
		stopped := make(map[int]bool)
		for quiet := 0; quiet < 2 && time.Now().Before(end); {
			fresh := false
			for _, pid := range l.leftovers(kernel) {
				if !stopped[pid] {
					unix.Kill(pid, unix.SIGSTOP)
					stopped[pid], fresh = true, true
				}
			}
			if fresh {
				quiet = 0
				continue
			}
			quiet++
			time.Sleep(settle)
		}
		if len(stopped) == 0 {
			break
		}
		for pid := range stopped {
			unix.Kill(pid, unix.SIGKILL)
		}
		killed += len(stopped)
		for len(l.leftovers(kernel)) > 0 && time.Now().Before(end) {
			time.Sleep(settle)
			if !anyOf(l.leftovers(kernel), stopped) {
				break
			}
		}
	}
	if killed > 0 {
		l.a.log.Warn("limit of processes reached, those left behind were killed", "count", killed)
	}
	return killed
}

func anyOf(pids []int, set map[int]bool) bool {
	return slices.ContainsFunc(pids, func(pid int) bool { return set[pid] })
}

// endCrowd is endLeftovers after a run of the kernel with that process, if the
// run has left so many processes behind that no further one can start. What the
// kernel has started itself ends, too: its code had its chance to end it.
func (l *launcher) endCrowd(kernel int) int {
	if l.group == nil || !l.group.full() {
		return 0
	}
	return l.endLeftovers(kernel)
}

// leftovers are the user's processes in sessions that the agent did not start
// or whose head has ended, and those in the session of a kernel but itself.
func (l *launcher) leftovers(kernel int) []int {
	return slices.DeleteFunc(l.group.members(), func(pid int) bool {
		sid, err := unix.Getsid(pid)
		return err != nil || l.a.reaper.owns(sid) && (sid != kernel || pid == kernel)
	})
}

// full reports whether the group has as many processes and threads as it may.
func (g *userGroup) full() bool {
	read := func(file string) (int, error) {
		b, err := os.ReadFile(filepath.Join(g.path, file))
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(string(bytes.TrimSpace(b)))
	}
	most, err := read("pids.max")
	if err != nil {
		return false // "max": there is no limit
	}
	now, err := read("pids.current")
	return err == nil && now >= most
}

// members are the processes in the group, zombies included.
func (g *userGroup) members() []int {
	b, err := os.ReadFile(filepath.Join(g.path, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range bytes.Fields(b) {
		if pid, err := strconv.Atoi(string(f)); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// owns reports whether the process was started by the agent and not yet waited
// for.
func (r *reaper) owns(pid int) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.known[pid]
	return ok
}
