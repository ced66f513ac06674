package loglimit

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimit_CountsOmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(3)
		if !l.Full() {
			t.Error("a new Limit has used lines")
		}
		for i := range 3 {
			if omitted, ok := l.Allow(); !ok || omitted != 0 {
				t.Errorf("line %d: %t after %d omitted, want a line", i, ok, omitted)
			}
		}
		for range 7 {
			if _, ok := l.Allow(); ok {
				t.Error("more lines than the burst")
			}
		}
		time.Sleep(Interval)
		if omitted, ok := l.Allow(); !ok || omitted != 7 {
			t.Errorf("after an interval: %t after %d omitted, want a line after 7", ok, omitted)
		}
		if n := l.Take(); n != 0 {
			t.Errorf("%d omitted after a line that counted them", n)
		}
		if _, ok := l.Allow(); ok {
			t.Error("two lines in one interval")
		}
		if time.Sleep(3*Interval - time.Nanosecond); l.Full() {
			t.Error("the burst is back too early")
		}
		if time.Sleep(time.Nanosecond); !l.Full() {
			t.Error("the burst does not come back")
		}
		if omitted, ok := l.Allow(); !ok || omitted != 1 {
			t.Errorf("later: %t after %d omitted, want a line after 1", ok, omitted)
		}
	})
}

// TestLimit_Concurrent checks that each line is either logged or counted as omitted, once.
func TestLimit_Concurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(5)
		var logged, omitted atomic.Int64
		allow := func() {
			if n, ok := l.Allow(); ok {
				logged.Add(1)
				omitted.Add(n)
			}
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					allow()
				}
			})
		}
		wg.Wait()
		time.Sleep(Interval)
		allow()
		if logged.Load() != 6 || omitted.Load() != 795 {
			t.Errorf("of 801 lines, %d were logged and %d omitted, want 6 and 795", logged.Load(), omitted.Load())
		}
	})
}

func TestTable_SourcesAreSeparate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[string](2, 10)
		allow := func(want bool, wantOmitted int64, sources ...string) {
			t.Helper()
			if omitted, ok := table.Allow(sources...); ok != want || omitted != wantOmitted {
				t.Errorf("line about %q: %t after %d omitted, want %t after %d", sources, ok, omitted, want, wantOmitted)
			}
		}
		allow(true, 0, "a", "b")
		allow(true, 0, "a", "b")
		allow(false, 0, "a", "b")
		allow(false, 0, "b")
		// b has no line left, and does not hide that of c.
		allow(true, 2, "b", "c")
		allow(true, 0, "c")
		allow(false, 0, "c")
		time.Sleep(Interval)
		allow(true, 1, "a")
		allow(true, 1, "c")
		allow(false, 0, "a")
		allow(false, 0, "a", "c")
		time.Sleep(Interval)
		allow(true, 2, "a", "c") // the greatest of their numbers
	})
}

func TestTable_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 100
		table := NewTable[int](1, size)
		for i := range 3 * size {
			table.Allow(i)
		}
		if n := table.Len(); n != size {
			t.Errorf("%d sources are remembered, want %d", n, size)
		}
		if _, ok := table.Allow(3*size - 1); ok {
			t.Error("a recent source was forgotten")
		}
		if _, ok := table.Allow(0); !ok {
			t.Error("a forgotten source does not begin anew")
		}
	})
}
