package agent

import (
	"bytes"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper waits for processes that have no other parent to wait for them: orphans, which the first
// process of a guest inherits.
//
// The agent's own children are waited for by their starter. The reaper knows them
// because starting a process holds r.starting for reading until its id is registered.
type reaper struct {
	starting sync.RWMutex

	mu    sync.Mutex
	known map[int]struct{} // guarded by mu

	quit chan struct{}
	done chan struct{}
}

// busyDelay is how long the reaper leaves a known child that has ended: its waiter is
// about to reap it, and it hides others behind it.
const busyDelay = 20 * time.Millisecond

func startReaper() *reaper {
	r := &reaper{known: make(map[int]struct{}), quit: make(chan struct{}), done: make(chan struct{})}
	go r.run()
	return r
}

func (r *reaper) stop() {
	close(r.quit)
	<-r.done
}

// start runs fn, which starts a process and returns its id, and keeps the reaper from
// reaping that process until forget.
func (r *reaper) start(fn func() (pid int, err error)) (int, error) {
	if r == nil {
		return fn()
	}
	r.starting.RLock()
	defer r.starting.RUnlock()
	pid, err := fn()
	if err == nil {
		r.mu.Lock()
		r.known[pid] = struct{}{}
		r.mu.Unlock()
	}
	return pid, err
}

// forget must be called after the process has been waited for.
func (r *reaper) forget(pid int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	delete(r.known, pid)
	r.mu.Unlock()
}

func (r *reaper) run() {
	defer close(r.done)
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGCHLD)
	defer signal.Stop(sig)
	for {
		var again <-chan time.Time
		if !r.reap() {
			again = time.After(busyDelay)
		}
		select {
		case <-sig:
		case <-again:
		case <-r.quit:
			return
		}
	}
}

// reap reaps all ended orphans; false means that there may be more.
func (r *reaper) reap() bool {
	for {
		var info siginfo
		err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || info.pid == 0 {
			return true
		}
		pid := int(info.pid)
		if !r.starting.TryLock() { // waiting would block goroutines that start processes
			return false
		}
		r.mu.Lock()
		_, mine := r.known[pid]
		r.mu.Unlock()
		if !mine {
			unix.Wait4(pid, nil, unix.WNOHANG, nil) // it has ended: cannot fail
		}
		r.starting.Unlock()
		if mine {
			return false
		}
	}
}

// killRounds bounds the rounds of killAll: each ends one generation of processes.
const killRounds = 200

// killAll kills all descendants of this process, including adopted ones. The first
// process of a guest need not: everything ends with it.
func killAll() {
	for range killRounds {
		children := childrenOf(os.Getpid())
		if len(children) == 0 {
			return
		}
		for _, pid := range children {
			unix.Kill(pid, unix.SIGKILL)
		}
		for _, pid := range children {
			// A process that does not end at once is handled in the next round.
			for range 20 {
				if p, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); p != 0 || err != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// childrenOf returns the processes with the parent.
func childrenOf(parent int) []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(0)
	var pids []int
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := readBounded("/proc/"+n+"/stat", 1024)
		// The name, in parentheses, may contain anything.
		i := bytes.LastIndexByte(b, ')')
		if err != nil || i < 0 {
			continue
		}
		f := bytes.Fields(b[i+1:])
		if len(f) > 1 && string(f[1]) == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// siginfo is the beginning of the kernel's siginfo_t for a child, in a buffer of the
// full size.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	_                  [128 - 20]byte
}
