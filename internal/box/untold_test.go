package box

import (
	"context"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// crashed returns a session whose latest state is lost: its guest ended after it had been
// written to disk and called again.
func crashed(t *testing.T, f *fixture) {
	t.Helper()
	b := f.session(t, "bob", "x")
	run(t, b, "x = 1")
	if !f.life.writeLive(t.Context(), b, f.records.writes.Enter("bob"), func() {}) {
		t.Fatal("the box was not written")
	}
	f.clock.add(time.Second)
	run(t, b, "x = 2")
	f.engine.last().exit <- engine.Exit{Reason: engine.ExitCrashed}
	eventually(t, "the box has ended", func() bool { return f.stateOf(b) == stateHibernated })
}

// wantReport acquires the session, and wants to learn that its latest state was lost.
func wantReport(t *testing.T, f *fixture) {
	t.Helper()
	_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if hold.Woken == nil || !hold.Woken.Behind || hold.Woken.Why == nil || hold.Woken.Why.Reason != ReasonCrashed {
		t.Errorf("after the crash: got the hold %+v, want the report of a crash", hold)
	}
	hold.Release()
	if _, hold, err = f.Session(t.Context(), "bob", SessionOptions{ID: "x"}); err != nil || hold.Woken != nil || hold.Created {
		t.Errorf("the next call: got %+v, %v; want nothing reported again", hold, err)
	}
	hold.Release()
}

// boxOf returns the session in memory.
func (f *fixture) boxOf(owner Owner, id string) *Box {
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	return f.reg.boxes[key{owner, KindSession, id}]
}

// copies are the calls that copy the session x: what it lost is missing in the copy as well.
var copies = map[string]func(context.Context, *fixture) (Hold, error){
	"fork": func(ctx context.Context, f *fixture) (Hold, error) {
		_, hold, err := f.Fork(ctx, "bob", KindSession, "x", ForkOptions{})
		return hold, err
	},
	"snapshot": func(ctx context.Context, f *fixture) (Hold, error) {
		_, hold, err := f.SaveSnapshot(ctx, "bob", KindSession, "x", SnapshotOptions{})
		return hold, err
	},
}

// A fork and a snapshot that wake a box have the report of what it lost, and the next call
// has it no more.
func TestLease_OfCopyReportsWhatTheOriginalLost(t *testing.T) {
	for name, take := range copies {
		t.Run(name, func(t *testing.T) {
			f, _ := newSnapFixture(t, neverIdle)
			crashed(t, f)
			hold, err := take(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if hold.Woken == nil || !hold.Woken.Behind || hold.Woken.Why == nil || hold.Woken.Why.Reason != ReasonCrashed {
				t.Errorf("after the crash: got the hold %+v, want the report of a crash", hold)
			}
			hold.Release()
			if hold, err = take(t.Context(), f); err != nil || hold.Woken != nil || hold.Lost != nil {
				t.Errorf("the next copy: got the hold %+v, %v; want nothing reported again", hold, err)
			}
			hold.Release()
		})
	}
}

// A copy whose answer does not arrive, and one that fails, leave the report to the next call.
func TestLease_OfUndeliveredCopyLeavesTheReport(t *testing.T) {
	for name, take := range copies {
		t.Run(name, func(t *testing.T) {
			f, _ := newSnapFixture(t, neverIdle)
			crashed(t, f)
			hold, err := take(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			hold.Settle(false)
			hold.Release()
			wantReport(t, f)
		})
	}
	t.Run("refused", func(t *testing.T) {
		f, _ := newSnapFixture(t, neverIdle)
		crashed(t, f)
		_, _, err := f.Fork(t.Context(), "bob", KindSession, "x", ForkOptions{ID: "x"})
		wantCode(t, err, CodeInvalid, "exists already")
		wantReport(t, f)
	})
}

// A call that is cancelled while it wakes a box, beside another call that goes on, cannot
// say what the box lost: the other one does.
func TestLease_ReportsWhatACancelledCallWoke(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	crashed(t, f)
	hold := make(chan struct{})
	f.engine.set(nil, hold)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, _, err := f.Session(ctx, "bob", SessionOptions{ID: "x"})
		first <- err
	}()
	waking := func() *Box {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return f.reg.boxes[key{"bob", KindSession, "x"}]
	}
	eventually(t, "the box is being woken", func() bool { return waking() != nil })
	second := make(chan Hold, 1)
	go func() {
		_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
		if err != nil {
			t.Error(err)
		}
		second <- hold
	}()
	b := waking()
	eventually(t, "both calls wait", func() bool { f.reg.mu.Lock(); defer f.reg.mu.Unlock(); return len(b.use.pins) == 2 })
	cancel()
	wantCode(t, <-first, CodeCancelled)
	f.engine.set(nil, nil)
	close(hold)
	if hold := <-second; hold.Woken == nil || !hold.Woken.Behind {
		t.Errorf("the call that went on: got the hold %+v, want the report of a crash", hold)
	}
}

// A call that could not deliver the report of a loss gives it back: a later one has it, once.
func TestLease_ReportsWhatWasNotDelivered(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	crashed(t, f)
	acquire := func() Hold {
		_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return hold
	}
	first := acquire()
	if beside := acquire(); first.Woken == nil || beside.Woken != nil {
		t.Errorf("two calls at once: got the holds %+v and %+v, want the report in the first only", first, beside)
	}
	first.Settle(false)
	second := acquire()
	first.Release() // settles nothing any more
	if second.Woken == nil || !second.Woken.Behind {
		t.Errorf("the next call: got the hold %+v, want the report of a crash", second)
	}
	second.Settle(false)
	second.Release()
	wantReport(t, f)
}

// A report that no call has delivered survives that the box leaves memory, also while a
// call has it, and is not repeated once it was delivered.
func TestReport_SurvivesHibernation(t *testing.T) {
	for name, before := range map[string]func(*fixture) error{
		"during a fork": func(f *fixture) error {
			_, _, err := f.Fork(t.Context(), "bob", KindSession, "x", ForkOptions{})
			return err
		},
		"during the call": func(f *fixture) error {
			_, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newSnapFixture(t, neverIdle)
			crashed(t, f)
			if err := before(f); err != nil {
				t.Fatal(err)
			}
			f.clock.add(time.Second)
			f.evict(t, f.boxOf("bob", "x"))
			wantReport(t, f)
			f.evict(t, f.boxOf("bob", "x"))
			if _, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"}); err != nil || hold.Woken == nil || hold.Woken.Behind {
				t.Errorf("after the report: got the hold %+v, %+v, %v; want a box that lost nothing", hold, hold.Woken, err)
			}
		})
	}
}

// A new box in place of one that is lost keeps the report of that loss over a hibernation.
func TestReport_OfLostBoxSurvivesHibernation(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	f.session(t, "bob", "x")
	if _, err := f.Stop(t.Context(), "bob", KindSession, "x"); err != nil {
		t.Fatal(err)
	}
	b, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || hold.Lost == nil {
		t.Fatalf("after a stop: got the hold %+v, %v; want the report of a stopped box", hold, err)
	}
	hold.Settle(false)
	hold.Release()
	f.evict(t, b)
	_, hold, err = f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || hold.Woken == nil || hold.Lost == nil || hold.Lost.Reason != ReasonStopped {
		t.Errorf("after the hibernation: got the hold %+v, %v; want the report of a stopped box", hold, err)
	}
	hold.Release()
}

// Of two losses, the older state counts, and nothing that was lost is left out.
func TestReport_Including(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	crash, kill := &Tombstone{Reason: ReasonCrashed}, &Tombstone{Reason: ReasonOOM}
	rescue := &Rescue{Why: "the image is gone"}
	woken := func(hour int, why *Tombstone) *Woken {
		return &Woken{Saved: at.Add(time.Duration(hour) * time.Hour), Behind: why != nil, Why: why}
	}
	for _, c := range []struct {
		name                string
		now, earlier, want  *Woken
		earlierLost, rescue bool
	}{
		{name: "nothing lost now", now: woken(2, nil), earlier: woken(1, crash), want: woken(1, crash)},
		{name: "lost twice", now: woken(2, kill), earlier: woken(1, crash), want: woken(1, crash)},
		{name: "the same state again", now: woken(1, kill), earlier: woken(1, crash), want: woken(1, kill)},
		{name: "an earlier box", now: woken(2, kill), want: woken(2, kill), earlierLost: true},
		{name: "memory given up", now: woken(2, nil), earlier: woken(1, nil), want: woken(2, nil), rescue: true},
	} {
		earlier := &report{Woken: c.earlier}
		if c.earlierLost {
			earlier.Lost = crash
		}
		if c.rescue {
			earlier.Woken.Rescued, c.want.Rescued = rescue, rescue
		}
		stored, err := decodeReport(earlier.encode())
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := (&report{Woken: c.now}).including(stored)
		if !reflect.DeepEqual(got.Woken, c.want) || (got.Lost != nil) != c.earlierLost {
			t.Errorf("%s: got %+v and %+v, want %+v", c.name, got.Woken, got.Lost, c.want)
		}
	}
}

// The largest report fits into a record.
func TestReport_FitsIntoRecord(t *testing.T) {
	long := strings.Repeat("\"\\", 500)
	tomb := &Tombstone{ID: long[:maxID], Name: long[:maxName], Owner: Owner(long[:256]), Kind: KindSession, Reason: ReasonDisk, Detail: long, At: time.Now()}
	f, _ := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	f.reg.mu.Lock()
	b.report = &report{Lost: tomb, Woken: &Woken{Saved: time.Now(), Behind: true, Why: tomb, Rescued: &Rescue{Why: long, NoFiles: long, Examples: []string{long}, SnapshotID: "aside"}}}
	f.reg.mu.Unlock()
	f.evict(t, b)
	_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || hold.Lost == nil || hold.Woken == nil || !hold.Woken.Behind || hold.Woken.Why == nil || hold.Woken.Rescued == nil || hold.Woken.Rescued.SnapshotID != "aside" {
		t.Errorf("got the hold %+v, %v; want the whole report", hold, err)
	}
	hold.Release()
}

// A wake that is abandoned after the record says that the box goes on, and before any call
// reaches the box, loses nothing: the next wake reports no loss.
func TestWake_AbandonedLosesNothing(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	run(t, b, "x = 41")
	f.evict(t, b)
	blocked := make(chan struct{})
	f.engine.set(nil, blocked)
	first := make(chan error, 1)
	go func() {
		_, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
		first <- err
	}()
	var waking *Box
	eventually(t, "the box is being woken", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		waking = f.reg.boxes[key{"bob", KindSession, "x"}]
		return waking != nil
	})
	// Until then, the start needs the mutex itself.
	eventually(t, "the start waits for its machine", f.engine.holds)
	func() {
		f.reg.mu.Lock() // the start cannot publish the box meanwhile
		defer f.reg.mu.Unlock()
		f.engine.set(nil, nil)
		close(blocked)
		eventually(t, "the record says that the box goes on", func() bool { return waking.origin.record.Meta().Stale })
		for _, p := range slices.Clone(waking.use.pins) {
			f.reg.unpinLocked(p) // as the end of its call's context does
		}
	}()
	wantCode(t, <-first, CodeCancelled)
	again, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	if !again.origin.restored {
		t.Error("the random numbers of the box would repeat those of the machine that was abandoned")
	}
	if hold.Woken == nil || hold.Woken.Behind {
		t.Errorf("the next call: got the hold %+v, %+v; want a box that lost nothing", hold, hold.Woken)
	}
}

// TestReport_CreatedByACancelledCall: a call in a session that an earlier call made, whose answer
// did not arrive, is not told that the session is new if code has run in it.
func TestReport_CreatedByACancelledCall(t *testing.T) {
	for name, ran := range map[string]bool{"after code ran": true, "before it ran": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			b, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
			if err != nil || !hold.Created {
				t.Fatalf("the first call: got the hold %+v, %v", hold, err)
			}
			if ran {
				run(t, b, "x = 1")
			} else if _, err := b.ReadFile(t.Context(), ReadRequest{Path: "/missing"}, io.Discard); err == nil {
				t.Error("a missing file was read")
			}
			hold.Settle(false)
			hold.Release()
			_, hold, err = f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
			if err != nil || hold.Created == ran {
				t.Errorf("the next call: got the hold %+v, %v; want created %t", hold, err, !ran)
			}
			hold.Release()
		})
	}
}
