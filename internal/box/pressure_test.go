package box

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestShortOfMemory has the least recently used box go when the host runs short of
// memory, one at a look and none that is in use.
func TestShortOfMemory(t *testing.T) {
	var low atomic.Bool
	old := memoryLow
	memoryLow = low.Load
	t.Cleanup(func() { memoryLow = old })
	f := newFixture(t, func(c *Config) { c.PauseAfter = 0 }) // so that nobody else looks meanwhile
	busy := f.session(t, "", "busy")
	for _, id := range []string{"oldest", "middle", "newest"} {
		f.session(t, "", id)
	}
	wait := background(t, busy, "import time\ntime.sleep(2)\nprint('done')")

	want := func(when string, ids ...string) {
		t.Helper()
		f.reaper.relieve()
		got := f.ids("")
		if len(got) != len(ids) {
			t.Errorf("%s: got %v, want %q", when, got, ids)
		}
		for _, id := range ids {
			if !got[id] {
				t.Errorf("%s: %q is gone", when, id)
			}
		}
	}
	want("with enough memory", "busy", "oldest", "middle", "newest")
	low.Store(true)
	want("at the first look", "busy", "middle", "newest")
	want("at the second look", "busy", "newest")
	want("at the third look", "busy")
	want("with one that is in use", "busy")
	if res, err := wait(); err != nil || res.Stdout != "done\n" {
		t.Errorf("the box in use: got %+v, %v", res, err)
	}
	low.Store(false)
	_, acq, err := f.Session(t.Context(), "", SessionOptions{ID: "oldest"})
	if err != nil {
		t.Fatal(err)
	}
	defer acq.Release()
	if acq.Lost == nil || acq.Lost.Explain(f.clock.Now().Add(time.Second)) != "it was evicted 1 second ago because the host was short of memory" {
		t.Errorf("the next call is told %+v", acq.Lost)
	}
}
