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
	// orphanTimeout bounds the search for orphans that fork meanwhile.
	orphanTimeout = 3 * time.Second
	// stopDelay is the time for SIGSTOP to take effect: the next search sees the result
	// of a fork in progress.
	stopDelay = 2 * time.Millisecond
	// orphanMinRun is the shortest run after which to check for orphans: no shorter one
	// fills the guest with processes, and the check would cost it more than it takes.
	orphanMinRun = 20 * time.Millisecond
)

// atLimit reports whether a process did not start because of the limit of processes.
func atLimit(err error) bool { return errors.Is(err, unix.EAGAIN) }

// killOrphans kills the user processes that belong to no kernel and no command in
// progress, and returns their number. It is for the case that nothing can be started
// any more, not even a program that would end them.
//
// It stops all of them before it kills the first: at the limit, stopped processes keep
// their slots, so that even a fork bomb gets no further.
func (l *launcher) killOrphans(kernel int) int {
	if l.group == nil {
		return 0
	}
	l.orphanMu.Lock()
	defer l.orphanMu.Unlock()
	killed := 0
	for end := time.Now().Add(orphanTimeout); time.Now().Before(end); {
		stopped := make(map[int]bool)
		for quiet := 0; quiet < 2 && time.Now().Before(end); {
			fresh := false
			for _, pid := range l.orphans(kernel) {
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
			time.Sleep(stopDelay)
		}
		if len(stopped) == 0 {
			break
		}
		for pid := range stopped {
			unix.Kill(pid, unix.SIGKILL)
		}
		killed += len(stopped)
		for len(l.orphans(kernel)) > 0 && time.Now().Before(end) {
			time.Sleep(stopDelay)
			if !anyOf(l.orphans(kernel), stopped) {
				break
			}
		}
	}
	if killed > 0 {
		l.a.log.Warn("limit of processes reached, killed orphans", "count", killed)
	}
	return killed
}

func anyOf(pids []int, set map[int]bool) bool {
	return slices.ContainsFunc(pids, func(pid int) bool { return set[pid] })
}

// killOrphansAtLimit is killOrphans after a run of the kernel with that process id, if
// the run has left so many processes that no further one can start. It also kills
// children of the kernel itself: its code could have ended them.
func (l *launcher) killOrphansAtLimit(kernel int) int {
	if l.group == nil || !l.group.full() {
		return 0
	}
	return l.killOrphans(kernel)
}

// orphans returns the user processes in sessions that the agent did not start or whose
// leader has ended, and those in the session of a kernel except the kernel.
func (l *launcher) orphans(kernel int) []int {
	return slices.DeleteFunc(l.group.members(), func(pid int) bool {
		sid, err := unix.Getsid(pid)
		return err != nil || l.a.reaper.owns(sid) && (sid != kernel || pid == kernel)
	})
}

// full reports whether the group is at its limit of processes and threads.
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

// members returns the processes in the group, including zombies.
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

// owns reports whether the agent started the process and has not yet waited for it.
func (r *reaper) owns(pid int) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.known[pid]
	return ok
}
