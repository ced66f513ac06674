package box

import (
	"context"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// restless reports whether the maintainer checks the boxes again and again once the clock has
// advanced by d.
func (f *fixture) restless(d time.Duration) bool {
	f.clock.add(d)
	checks := 0
	for range 5 {
		f.maintainer.checkIdle()
		polltest.Soon(time.Second, func() bool {
			f.reg.mu.Lock()
			defer f.reg.mu.Unlock()
			for _, b := range f.reg.boxes {
				if b.idle.maintaining {
					return false
				}
			}
			return true
		})
		if f.maintainer.untilCheck() == 0 {
			checks++
		}
	}
	return checks > 2
}

// A box that is not written to disk costs the maintainer nothing, in a call or after one.
func TestCheckIdle_BoxThatIsNotWritten(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "bob", "x")
	end, err := b.begin(t.Context(), "run code")
	if err != nil {
		t.Fatal(err)
	}
	if f.restless(saveAtLeast) {
		t.Error("during a call the maintainer does not rest")
	}
	end()
	if f.restless(saveEvery) {
		t.Error("after a call the maintainer does not rest")
	}
}

// A parked box, whose calls wait for the host, is not written again and again, and is written once
// more when its code has run on.
func TestSave_ParkedCall(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "bob", "x")
	end, err := b.begin(t.Context(), "run code")
	if err != nil {
		t.Fatal(err)
	}
	rest, err := b.resumeForCall(t.Context(), "run code")
	if err != nil {
		t.Fatal(err)
	}
	written := func() int {
		snaps.mu.Lock()
		defer snaps.mu.Unlock()
		return snaps.writes
	}
	if f.restless(firstInCall) || written() != 1 {
		t.Errorf("the first call: %d writes, want 1", written())
	}
	p := &parker{box: b}
	p.park() // the code has run on before
	if f.restless(saveAtLeast) {
		t.Error("while the call is parked the maintainer does not rest")
	}
	if n := written(); n != 2 {
		t.Errorf("%d writes after the call has run on and is parked, want 2", n)
	}
	p.unpark()
	p.park()
	if err := f.life.write(context.Background(), b, true, f.records.writes.Enter("bob"), func() {}); err != nil {
		t.Fatal(err)
	}
	if n := written(); n != 3 {
		t.Errorf("%d writes after the call has run on and is parked again, want 3", n)
	}
	p.unpark()
	rest()
	end()
}

// The effects of a call are on disk soon after its end, also if the box was written during it.
func TestSave_SoonAfterLongCall(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "bob", "x")
	for _, long := range []time.Duration{firstInCall, saveAtLeast} {
		end, err := b.begin(t.Context(), "run code")
		if err != nil {
			t.Fatal(err)
		}
		f.restless(long)
		snaps.mu.Lock()
		during := snaps.writes
		snaps.mu.Unlock()
		end()
		f.reg.mu.Lock()
		f.maintainer.earlyNext = time.Time{}
		f.reg.mu.Unlock()
		f.restless(saveGap)
		snaps.mu.Lock()
		after := snaps.writes
		snaps.mu.Unlock()
		if after != during+1 {
			t.Errorf("a call of %v: %d writes during it, %d a second after it", long, during, after)
		}
	}
}

// Calls that took long are written in the next pause, also if the box was written a moment before
// them and its interval is long.
func TestSave_SoonAfterWork(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "bob", "x")
	written := func() int {
		snaps.mu.Lock()
		defer snaps.mu.Unlock()
		return snaps.writes
	}
	for _, call := range []struct {
		took time.Duration
		want int // writes
	}{{time.Second, 1}, {saveWorth / 2, 1}, {saveWorth / 2, 2}, {time.Second, 2}} {
		end, err := b.begin(t.Context(), "run code")
		if err != nil {
			t.Fatal(err)
		}
		f.clock.add(call.took)
		end()
		f.restless(saveGap)
		if n := written(); n != call.want {
			t.Errorf("after a call of %v: %d writes, want %d", call.took, n, call.want)
		}
	}
}

// A record says that a call was in flight also if that call has begun while the box was written.
func TestSave_CallBeginsMeanwhile(t *testing.T) {
	f, snaps := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	for _, begins := range []bool{false, true, false} {
		hold := make(chan struct{})
		snaps.mu.Lock()
		snaps.hold = hold
		before := snaps.writes
		snaps.mu.Unlock()
		written := make(chan error, 1)
		go func() {
			written <- f.life.write(context.Background(), b, true, f.records.writes.Enter("bob"), func() {})
		}()
		eventually(t, "the memory is being written", func() bool {
			snaps.mu.Lock()
			defer snaps.mu.Unlock()
			return snaps.writes > before
		})
		end := func() {}
		if begins {
			var err error
			if end, err = b.begin(t.Context(), "run code"); err != nil {
				t.Fatal(err)
			}
		}
		close(hold)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		end()
		if r, err := f.records.find("test", b.key); err != nil || r.InCall != begins || r.Written.IsZero() || !r.Stale {
			t.Errorf("a call begins meanwhile: %v: got %+v; error %v", begins, r, err)
		}
		f.reg.mu.Lock()
		f.reg.touchLocked(b)
		f.reg.mu.Unlock()
	}
}

// A call that begins while a box is written without room for its files is noted as in flight.
func TestWrite_CallBeginsWithoutRoomForFiles(t *testing.T) {
	f, snaps := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.MaxBytes = largeSnapshot / 2 })
	b := f.session(t, "bob", "x")
	first, second := make(chan struct{}), make(chan struct{})
	writes := func() int { snaps.mu.Lock(); defer snaps.mu.Unlock(); return snaps.writes }
	set := func(large bool, hold chan struct{}) {
		snaps.mu.Lock()
		snaps.large, snaps.hold = large, hold
		snaps.mu.Unlock()
	}
	before := writes()
	set(true, first)
	written := make(chan error, 1)
	go func() {
		written <- f.life.write(context.Background(), b, true, f.records.writes.Enter("bob"), func() {})
	}()
	eventually(t, "the write with the files begins", func() bool { return writes() == before+1 })
	set(false, second)
	close(first)
	eventually(t, "the write without them begins", func() bool { return writes() == before+2 })
	end, err := b.begin(t.Context(), "run code")
	if err != nil {
		t.Fatal(err)
	}
	close(second)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	end()
	if r, err := f.records.find("test", b.key); err != nil || !r.InCall || r.Written.IsZero() {
		t.Errorf("got %+v; error %v", r, err)
	}
}

// While boxes of others start all the time, a new box is written during a long call nonetheless.
func TestWrite_FirstInCallWhileOthersStart(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "bob", "x")
	f.reg.mu.Lock()
	f.reg.starting = 1 // a start of another owner, one after the other
	f.reg.mu.Unlock()
	end, err := b.begin(t.Context(), "run code")
	if err != nil {
		t.Fatal(err)
	}
	f.restless(firstInCallLatest + time.Second)
	snaps.mu.Lock()
	n := snaps.writes
	snaps.mu.Unlock()
	if n == 0 {
		t.Errorf("no write in a call of %v", firstInCallLatest+time.Second)
	}
	end()
	f.reg.mu.Lock()
	f.reg.starting = 0
	f.reg.mu.Unlock()
}
