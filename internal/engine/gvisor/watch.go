//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// watchInterval is the interval in which the memory of guests is measured. A guest
	// can take a few hundred MiB in this time. Measuring an idle guest takes some
	// microseconds.
	watchInterval = 100 * time.Millisecond
	// maxUnmeasured is the number of intervals after which a guest ends whose memory the
	// host's kernel does not report: it would have no limit. The watcher counts intervals
	// instead of time, since the whole process may have been stopped.
	maxUnmeasured = 300
)

// watcher ends guests that exceed their memory limit where no cgroup holds them. It
// sleeps while there are none. Each guest is measured in a goroutine of its own, so that
// one whose entries in /proc cannot be read, such as while its page tables are locked,
// delays no other.
type watcher struct {
	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	measuring sync.WaitGroup // a goroutine for each guest that is being measured

	mu     sync.Mutex
	guests map[*guest]*watched // guarded by mu
}

// watched is a guest that is watched.
type watched struct {
	guest *guest
	meter memoryMeter
	late  int // guarded by watcher.mu; intervals since its measurement began; 0: it is not being measured
}

// memoryMeter measures the memory that a guest takes on the host. It is a *meter, except in
// tests.
type memoryMeter interface {
	used(limit int64) (total, kernel int64)
	close()
}

func newWatcher() *watcher {
	w := &watcher{
		wake:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
		guests: make(map[*guest]*watched),
	}
	go w.run()
	return w
}

// add watches a guest if nothing else limits its memory.
func (w *watcher) add(g *guest) {
	if g.group != nil || g.limits.MemoryMB == 0 {
		return
	}
	var gofers []int
	for _, gofer := range g.gofers {
		gofers = append(gofers, gofer.Process.Pid)
	}
	w.addMeter(g, newMeter(g.sentry.Process.Pid, gofers...))
}

func (w *watcher) addMeter(g *guest, m memoryMeter) {
	w.mu.Lock()
	w.guests[g] = &watched{guest: g, meter: m}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) remove(g *guest) {
	w.mu.Lock()
	x := w.guests[g]
	delete(w.guests, g)
	w.mu.Unlock()
	if x != nil {
		x.meter.close() // takes time: it may free all of the guest's memory
	}
}

// close ends the watch. No guest may be left.
func (w *watcher) close() {
	close(w.stop)
	<-w.done
	w.measuring.Wait()
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

// look begins to measure every guest that is not being measured, and reports whether there
// are any guests.
func (w *watcher) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for g, x := range w.guests {
		x.late++
		switch {
		case x.late == 1:
			w.measuring.Go(func() { w.measure(x) })
		case x.late == maxUnmeasured:
			g.kill(engine.ExitCrashed, fmt.Sprintf("its memory could not be measured for %v", maxUnmeasured*watchInterval))
		}
	}
	return len(w.guests) > 0
}

// measure checks one guest.
func (w *watcher) measure(x *watched) {
	limit := hostMemory(x.guest.limits)
	used, kernel := x.meter.used(limit)
	w.mu.Lock()
	defer w.mu.Unlock()
	x.late = 0
	if used <= limit || w.guests[x.guest] != x { // then another process may have its number
		return
	}
	x.guest.kill(engine.ExitOOM, fmt.Sprintf("used %d MiB with a limit of %d MiB; %d MiB of that is memory of the host's kernel, such as page tables",
		used>>20, x.guest.limits.MemoryMB, kernel>>20))
}
