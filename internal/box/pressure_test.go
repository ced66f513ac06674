package box

import (
	"sync/atomic"
	"testing"
	"time"
)

// hostMemoryLow sets whether the host is short of memory, for one test.
func hostMemoryLow(t *testing.T) *atomic.Bool {
	var low atomic.Bool
	old := memoryLow
	memoryLow = low.Load
	t.Cleanup(func() { memoryLow = old })
	return &low
}

// neverIdle keeps the maintainer from writing and pausing boxes.
func neverIdle(c *Config) { c.PauseAfter = 0 }

// wantInMemory checks which of the boxes are in memory.
func wantInMemory(t *testing.T, f *fixture, when string, boxes map[string]*Box, want ...string) {
	t.Helper()
	in := map[string]bool{}
	for _, id := range want {
		in[id] = true
	}
	for id, b := range boxes {
		f.reg.mu.Lock()
		live := b.state.live()
		f.reg.mu.Unlock()
		if live != in[id] {
			t.Errorf("%s: %s in memory: got %t, want %t", when, id, live, in[id])
		}
	}
}

func TestFreeHostMemory_EvictsBoxOfOwnerWithMostMemory(t *testing.T) {
	low := hostMemoryLow(t)
	f, _ := newSnapFixture(t, neverIdle)
	boxes := map[string]*Box{
		"small, oldest": f.session(t, "small", "oldest"),
		"big, busy":     f.session(t, "big", "busy"),
		"big, older":    f.session(t, "big", "older"),
		"big, newer":    f.session(t, "big", "newer"),
	}
	boxes["small, newest"] = f.sessionOf(t, "small", SessionOptions{ID: "newest"})
	wait := background(t, boxes["big, busy"], "import time\ntime.sleep(2)\nprint('done')")

	check := func(when string, want ...string) {
		t.Helper()
		f.maintainer.freeHostMemory()
		wantInMemory(t, f, when, boxes, want...)
	}
	check("with enough memory", "small, oldest", "big, busy", "big, older", "big, newer", "small, newest")
	low.Store(true)
	check("at the first check", "small, oldest", "big, busy", "big, newer", "small, newest")
	// Both owners have two boxes now: the least recently used one goes.
	check("at the second check", "big, busy", "big, newer", "small, newest")
	check("at the third check", "big, busy", "small, newest")
	check("at the fourth check", "big, busy")
	check("with one that is in use", "big, busy")
	if res, err := wait(); err != nil || res.Stdout != "done\n" {
		t.Errorf("the box in use: got %+v, %v", res, err)
	}
	low.Store(false)
	<-boxes["small, oldest"].unloadDone
	woken, hold, err := f.Session(t.Context(), "small", SessionOptions{ID: "oldest"})
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	if hold.Woken == nil || woken.ID() != "oldest" {
		t.Errorf("the next call on an evicted box: got %+v, want it woken", hold)
	}
}

// A box that cannot be hibernated would be lost: it stays in memory.
func TestFreeHostMemory_EndsNoBox(t *testing.T) {
	low := hostMemoryLow(t)
	f := newFixture(t, neverIdle)
	boxes := map[string]*Box{"idle": f.session(t, "owner", "idle")}
	f.clock.add(time.Minute)
	low.Store(true)
	f.maintainer.freeHostMemory()
	wantInMemory(t, f, "without hibernation", boxes, "idle")
	if st := f.Stats(); st.Evicted != 0 {
		t.Errorf("got %d boxes evicted, want none", st.Evicted)
	}
}
