//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// watchInterval is how often memory is looked at: a guest can take a few hundred
// MiB in this time, and a look costs a few microseconds per guest.
const watchInterval = 100 * time.Millisecond

// watcher ends guests that go over their memory limit where no cgroup holds them.
// It sleeps while there are none.
type watcher struct {
	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	guests map[*guest]*memoryFile // guarded by mu
}

func newWatcher() *watcher {
	w := &watcher{
		wake:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
		guests: make(map[*guest]*memoryFile),
	}
	go w.run()
	return w
}

// add watches a guest if nothing else limits its memory.
func (w *watcher) add(g *guest) {
	if g.group != nil || g.limits.MemoryMB == 0 {
		return
	}
	w.mu.Lock()
	w.guests[g] = findMemoryFile(g.sentry.Process.Pid)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) remove(g *guest) {
	w.mu.Lock()
	delete(w.guests, g)
	w.mu.Unlock()
}

func (w *watcher) close() {
	close(w.stop)
	<-w.done
}

func (w *watcher) run() {
	defer close(w.done)
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		if !w.look() {
			ticker.Stop()
			select {
			case <-w.wake:
				ticker.Reset(watchInterval)
			case <-w.stop:
				return
			}
		}
		select {
		case <-ticker.C:
		case <-w.stop:
			return
		}
	}
}

// look checks every guest and reports whether there are any.
func (w *watcher) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for g, file := range w.guests {
		limit := hostMemory(g.limits)
		if used := file.used(); used > limit {
			g.kill(engine.ExitOOM, fmt.Sprintf("used %d MiB with a limit of %d MiB", used>>20, g.limits.MemoryMB))
		}
	}
	return len(w.guests) > 0
}

// memoryFile finds out cheaply how much memory a guest has: what its kernel keeps
// guest memory in, a file in memory, and what that kernel takes for itself.
type memoryFile struct {
	pid int
	fd  string // path of the sentry's descriptor of the file, "" if not found
}

func findMemoryFile(pid int) *memoryFile {
	m := &memoryFile{pid: pid}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return m // the sentry has ended; used sees nothing then
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "/memfd:runsc-memory") {
			m.fd = path
		}
	}
	return m
}

// bytes returns how much of the file is in use.
func (m *memoryFile) bytes() uint64 {
	var st unix.Stat_t
	if m.fd == "" || unix.Stat(m.fd, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}

// used returns the memory in bytes.
func (m *memoryFile) used() int64 {
	used := int64(m.bytes())
	// size resident shared ..., in pages; shared is what lies in files.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.pid))
	if err != nil {
		return used
	}
	if f := strings.Fields(string(b)); len(f) > 2 {
		resident, _ := strconv.ParseInt(f[1], 10, 64)
		shared, _ := strconv.ParseInt(f[2], 10, 64)
		used += (resident - shared) * int64(os.Getpagesize())
	}
	return used
}
