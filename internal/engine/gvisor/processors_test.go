//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// A guest with one processor sees one, and its programs together use no more than
// that on the host, with cgroups or without, before and after a pause.
func TestLimit_ProcessorTime(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("this machine has one processor, which is the limit")
	}
	e := open(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 512, PIDs: 100}
	b := create(t, e, "busy", spec)
	if got := b.ask(t, "shu nproc; grep -c ^processor /proc/cpuinfo"); got != "1\n1\n" {
		t.Errorf("the guest sees %q", got)
	}
	b.ask(t, "shu for i in 1 2 3; do sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 & done")
	for _, when := range []string{"at first", "after a pause"} {
		before, start := stats(t, e, b).CPU, time.Now()
		time.Sleep(2 * time.Second) // they compute meanwhile
		used, wall := stats(t, e, b).CPU-before, time.Since(start)
		// A busy machine makes it less. The sentry's own work, and the granularity of
		// the clock, make it a little more.
		t.Logf("%s: %v of processor time in %v", when, used, wall)
		if used > wall*5/4 {
			t.Errorf("%s: used %v of processor time in %v, want one processor at most", when, used, wall)
		}
		// Nor could it be more if the machine were not busy.
		if where := boundTo(t, b); len(where) != 1 {
			t.Errorf("%s: its programs run on the processors %v, want one", when, where)
		}
		if used < wall/50 {
			t.Errorf("%s: used %v of processor time in %v: nothing computes", when, used, wall)
		}
		for _, change := range []func() error{
			func() error { return e.Pause(t.Context(), b.ID()) },
			func() error { return e.Resume(t.Context(), b.ID()) },
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// boundTo returns the processors that programs of the guest may run on.
func boundTo(t *testing.T, b *box) []int {
	t.Helper()
	var all []int
	sentry := b.Guest.(*guest).sentry.Process.Pid
	for _, pid := range descendants(sentry) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, thread := range threads {
			var set unix.CPUSet
			tid, err := strconv.Atoi(filepath.Base(thread))
			if err != nil {
				t.Fatal(err)
			}
			if pid == sentry || unix.SchedGetaffinity(tid, &set) != nil { // it has ended
				continue
			}
			for cpu := range len(set) * 64 {
				if set.IsSet(cpu) {
					all = append(all, cpu)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func stats(t *testing.T, e *Engine, b *box) engine.Stats {
	t.Helper()
	s, err := e.Stats(t.Context(), b.ID())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Guests that run are spread over the processors, and paused ones do not count.
func TestProcessors_AreShared(t *testing.T) {
	p := &processors{load: map[int]int{2: 0, 3: 0, 5: 0, 7: 0}}
	var taken [][]int
	for range 8 {
		taken = append(taken, p.take(1, nil))
	}
	loads := func() string {
		return strings.Trim(fmt.Sprint([]int{p.load[2], p.load[3], p.load[5], p.load[7]}), "[]")
	}
	if got := loads(); got != "2 2 2 2" {
		t.Errorf("eight guests of one processor load %s", got)
	}
	if got := p.take(3, nil); len(slices.Compact(slices.Sorted(slices.Values(got)))) != 3 {
		t.Errorf("got %v, want three processors", got)
	} else {
		p.give(got)
	}
	for _, cpus := range taken {
		p.give(cpus)
	}
	if got := loads(); got != "0 0 0 0" {
		t.Errorf("no guests load %s", got)
	}
	// The choice changes only if it has become worse.
	if got := p.take(1, []int{5}); !slices.Equal(got, []int{5}) {
		t.Errorf("got %v, want the one from before", got)
	}
	if got := p.take(1, []int{5}); slices.Equal(got, []int{5}) {
		t.Error("got the one that another guest has taken meanwhile")
	}
	if p.take(4, nil) != nil || p.take(0, nil) != nil {
		t.Error("all processors, or none, are taken as a part")
	}
}
