package agent

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// A check takes a few system calls. The less memory is left, the sooner the next
	// one: at two gigabytes a second, no process gets far over the limit in between.
	minCheck     = 10 * time.Millisecond
	maxCheck     = 250 * time.Millisecond
	fillPerCheck = 2 << 30 // bytes a second
	// afterKill is the time for a killed process to free its memory.
	afterKill = 200 * time.Millisecond
	// checkAge is how long the result of a check determines the next one.
	checkAge = time.Second
	// maxKilled bounds the remembered kills.
	maxKilled = 256
)

// memoryWatcher kills the user's largest process before the guest as a whole exceeds
// its limit, which would end everything. It checks only while something runs. A nil
// memoryWatcher does nothing.
type memoryWatcher struct {
	limit int64
	group *userGroup // nil: sum up the processes' memory
	warn  func(pid int, used int64)

	mu     sync.Mutex
	users  int           // guarded by mu; operations and processes in progress
	last   time.Time     // guarded by mu; time of the last check
	next   time.Duration // guarded by mu; from last to the next check
	timer  *time.Timer   // guarded by mu; of the next check
	armed  bool          // guarded by mu
	closed bool          // guarded by mu
	victim map[int]bool  // guarded by mu; killed processes
}

// watchMemory returns a watcher of the guest's memory, nil without a limit or where the
// guest's kernel enforces it.
func (a *agent) watchMemory(h protocol.Hello, group *userGroup, limits map[string]string) *memoryWatcher {
	limits["memory"] = "none"
	if h.MemoryMB <= 0 {
		return nil
	}
	if !a.init {
		limits["memory"] = "rlimit"
		return nil
	}
	limits["memory"] = "watcher"
	return &memoryWatcher{
		limit: int64(h.MemoryMB) * mib, group: group, victim: make(map[int]bool),
		warn: func(pid int, used int64) {
			a.log.Warn("memory limit reached, largest process killed", "pid", pid, "used", used)
		},
	}
}

// enter keeps the watcher active until leave.
func (m *memoryWatcher) enter() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users++
	if m.armed {
		return
	}
	first := 2 * minCheck
	if !m.last.IsZero() && time.Since(m.last) < checkAge {
		first = max(first, m.next) // a check is expensive compared with a short run
	}
	m.armLocked(first)
}

func (m *memoryWatcher) leave() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
}

func (m *memoryWatcher) armLocked(d time.Duration) {
	if m.armed || m.closed {
		return
	}
	m.armed = true
	if m.timer == nil {
		m.timer = time.AfterFunc(d, m.check)
		return
	}
	m.timer.Reset(d)
}

func (m *memoryWatcher) close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
}

// killed reports, once, whether the watcher killed the process.
func (m *memoryWatcher) killed(pid int) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.victim[pid]
	delete(m.victim, pid)
	return k
}

// check performs a check and schedules the next while something runs.
func (m *memoryWatcher) check() {
	used := m.group.used()
	var largest, rss int64
	if used < 0 || used > m.limit {
		var sum int64
		largest, rss, sum = largestProcess()
		if used < 0 {
			used = sum
		}
	}
	next := min(max(time.Duration(m.limit-used)*time.Second/fillPerCheck, minCheck), maxCheck)
	m.mu.Lock()
	defer m.mu.Unlock()
	if used > m.limit && rss > 0 && !m.closed {
		pid := int(largest)
		if len(m.victim) >= maxKilled {
			clear(m.victim)
		}
		m.victim[pid] = true
		unix.Kill(pid, unix.SIGKILL)
		m.warn(pid, used)
		next = afterKill
	}
	m.armed = false
	m.last, m.next = time.Now(), next
	if m.users > 0 || used > m.limit && rss > 0 {
		m.armLocked(next)
	}
}

// largestProcess returns the user's process with the most resident memory, and the sum
// of all.
func largestProcess() (pid, rss, sum int64) {
	d, err := os.Open("/proc")
	if err != nil {
		return 0, 0, 0
	}
	defer d.Close()
	names, _ := d.Readdirnames(0)
	for _, n := range names {
		p, err := strconv.ParseInt(n, 10, 32)
		if err != nil || p == int64(os.Getpid()) {
			continue
		}
		b, err := readBounded("/proc/"+n+"/statm", 256)
		f := bytes.Fields(b)
		if err != nil || len(f) < 2 {
			continue
		}
		pages, _ := strconv.ParseInt(string(f[1]), 10, 64)
		n := pages * int64(syscall.Getpagesize())
		sum += n
		if n > rss {
			pid, rss = p, n
		}
	}
	return pid, rss, sum
}
