package box

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// crashed returns a session whose latest state is lost: its guest ended after it had been
// written to disk and called again.
func crashed(t *testing.T, f *fixture) {
	t.Helper()
	s := f.session(t, "bob", "x")
	run(t, s, "x = 1")
	if !f.life.save(t.Context(), s, f.records.writes.enter("bob")) {
		t.Fatal("the box was not written")
	}
	f.clock.add(time.Second)
	run(t, s, "x = 2")
	f.engine.last().exit <- engine.Exit{Reason: engine.ExitCrashed}
	eventually(t, "the box has ended", func() bool { return f.stateOf(s) == stateHibernated })
}

// wantReport acquires the session, and wants to learn that its latest state was lost.
func wantReport(t *testing.T, f *fixture) {
	t.Helper()
	_, lease, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Woken == nil || !lease.Woken.Behind || lease.Woken.Why == nil || lease.Woken.Why.Reason != ReasonCrashed {
		t.Errorf("after the crash: got the lease %+v, want the report of a crash", lease)
	}
	lease.Release()
	if _, lease, err = f.Session(t.Context(), "bob", SessionOptions{ID: "x"}); err != nil || lease.Woken != nil || lease.Created {
		t.Errorf("the next call: got %+v, %v; want nothing reported again", lease, err)
	}
	lease.Release()
}

// A fork, a snapshot and a rollback wake a box and cannot say what it lost: the next call
// does.
func TestLease_ReportsWhatWokeUnderAnotherCall(t *testing.T) {
	for name, wake := range map[string]func(*fixture) error{
		"fork": func(f *fixture) error {
			_, err := f.Fork(t.Context(), "bob", KindSession, "x", ForkOptions{})
			return err
		},
		"snapshot": func(f *fixture) error {
			_, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "x", SnapshotOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newSnapFixture(t, neverIdle)
			crashed(t, f)
			if err := wake(f); err != nil {
				t.Fatal(err)
			}
			wantReport(t, f)
		})
	}
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
	second := make(chan Lease, 1)
	go func() {
		_, lease, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
		if err != nil {
			t.Error(err)
		}
		second <- lease
	}()
	s := waking()
	eventually(t, "both calls wait", func() bool { f.reg.mu.Lock(); defer f.reg.mu.Unlock(); return len(s.use.pins) == 2 })
	cancel()
	wantCode(t, <-first, CodeCancelled)
	f.engine.set(nil, nil)
	close(hold)
	if lease := <-second; lease.Woken == nil || !lease.Woken.Behind {
		t.Errorf("the call that went on: got the lease %+v, want the report of a crash", lease)
	}
}

// A wake that is abandoned after the record says that the box goes on, and before any call
// reaches the box, loses nothing: the next wake reports no loss.
func TestWake_AbandonedLosesNothing(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	s := f.session(t, "bob", "x")
	run(t, s, "x = 41")
	f.evict(t, s)
	hold := make(chan struct{})
	f.engine.set(nil, hold)
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
	func() {
		f.reg.mu.Lock() // the start cannot publish the box meanwhile
		defer f.reg.mu.Unlock()
		f.engine.set(nil, nil)
		close(hold)
		eventually(t, "the record says that the box goes on", func() bool { return waking.origin.record.Meta().Live })
		for _, p := range slices.Clone(waking.use.pins) {
			f.reg.unpinLocked(p) // as the end of its call's context does
		}
	}()
	wantCode(t, <-first, CodeCancelled)
	_, lease, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if lease.Woken == nil || lease.Woken.Behind {
		t.Errorf("the next call: got the lease %+v, %+v; want a box that lost nothing", lease, lease.Woken)
	}
}
