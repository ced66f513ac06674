//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// processors shares the processors that this process may use among guests. The
// programs of a guest are bound to as many as it may use, so that they never run
// on more at the same time: the number that they see is true, and the limit holds
// where there is no cgroup. The sentry itself is not bound; what it does for the
// guest comes on top.
//
// Guests that are not paused are spread evenly. Nothing is known of other
// processes on the machine.
type processors struct {
	mu   sync.Mutex
	load map[int]int // guarded by mu; by processor, the guests that are bound to it and not paused
}

func newProcessors() *processors {
	p := &processors{load: make(map[int]int)}
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return p // the host has more processors than a CPUSet holds: do not bind
	}
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		return p // the kernel does not list the processes of a guest
	}
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			p.load[cpu] = 0
		}
	}
	return p
}

// visible returns how many processors a guest sees. Programs that see one processor may
// skip memory barriers, so an unbound guest sees at least two if the host has two.
func (p *processors) visible(l engine.Limits) int {
	host := runtime.NumCPU()
	if l.CPUs <= 0 {
		return host
	}
	n := min(host, int(math.Ceil(l.CPUs)))
	if len(p.load) == 0 { // constant
		n = min(host, max(2, n))
	}
	return n
}

// take returns the n processors with the fewest guests, or before if those have no more.
// It returns nil unless n is between 1 and the number of processors less one. The caller
// returns the processors with give.
func (p *processors) take(n int, before []int) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n <= 0 || n >= len(p.load) {
		return nil
	}
	all := make([]int, 0, len(p.load))
	for cpu := range p.load {
		all = append(all, cpu)
	}
	// Other servers on the machine begin with other processors.
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b int) int { return p.load[a] - p.load[b] })
	best := all[:n]
	if len(before) == n && p.sumLocked(before) <= p.sumLocked(best) {
		best = before
	}
	for _, cpu := range best {
		p.load[cpu]++
	}
	return slices.Clone(best)
}

func (p *processors) sumLocked(cpus []int) int {
	sum := 0
	for _, cpu := range cpus {
		sum += p.load[cpu]
	}
	return sum
}

func (p *processors) give(cpus []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cpu := range cpus {
		p.load[cpu]--
	}
}

// bind takes processors for the guest and binds its programs to them. Nothing may run in
// the guest: a thread that starts later inherits the binding from the existing threads.
func (g *guest) bind() error {
	cpus := g.e.cpus.take(g.e.cpus.visible(g.limits), g.cpus)
	if cpus == nil {
		return nil
	}
	g.bound = true
	if slices.Equal(cpus, g.cpus) {
		return nil
	}
	g.cpus = cpus
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	sentry := g.sentry.Process.Pid
	for _, pid := range descendants(sentry) {
		if pid == sentry {
			continue
		}
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue // it has ended
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("bind guest to processors %v: %w", cpus, err)
			}
		}
	}
	return nil
}

// unbind gives the guest's processors back. Its programs, which do not run, stay
// bound to them.
func (g *guest) unbind() {
	if g.bound {
		g.e.cpus.give(g.cpus)
		g.bound = false
	}
}
