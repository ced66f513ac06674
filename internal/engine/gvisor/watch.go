//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// watchInterval is the interval in which the memory of guests is measured. A guest can
// take a few hundred MiB in this time. Measuring an idle guest takes some microseconds.
const watchInterval = 100 * time.Millisecond

// watcher ends guests that exceed their memory limit where no cgroup holds them. It
// sleeps while there are none.
type watcher struct {
	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	guests map[*guest]*meter // guarded by mu

	round []watched // the guests of one round; used by run only
}

type watched struct {
	guest *guest
	meter *meter // used by run only
}

func newWatcher() *watcher {
	w := &watcher{
		wake:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
		guests: make(map[*guest]*meter),
	}
	go w.run()
	return w
}

// add watches a guest if nothing else limits its memory.
func (w *watcher) add(g *guest) {
	if g.group != nil || g.limits.MemoryMB == 0 {
		return
	}
	gofer := 0
	if g.gofer != nil {
		gofer = g.gofer.Process.Pid
	}
	w.mu.Lock()
	w.guests[g] = newMeter(g.sentry.Process.Pid, gofer)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) remove(g *guest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m := w.guests[g]; m != nil {
		m.close()
		delete(w.guests, g)
	}
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
	w.round = w.round[:0]
	for g, m := range w.guests {
		w.round = append(w.round, watched{g, m})
	}
	w.mu.Unlock()
	for _, x := range w.round {
		used, kernel := x.meter.used(hostMemory(x.guest.limits))
		if used <= hostMemory(x.guest.limits) {
			continue
		}
		w.mu.Lock()
		if _, ok := w.guests[x.guest]; ok { // otherwise another process may have its number
			x.guest.kill(engine.ExitOOM, fmt.Sprintf("used %d MiB with a limit of %d MiB; %d MiB of that is memory of the host's kernel, such as page tables",
				used>>20, x.guest.limits.MemoryMB, kernel>>20))
		}
		w.mu.Unlock()
	}
	clear(w.round)
	return len(w.round) > 0
}
