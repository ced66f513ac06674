package box

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// snapshotOf saves the state of a session of a flavor, and ends the session.
func (f *fixture) snapshotOf(t *testing.T, owner Owner, flavor Flavor) string {
	t.Helper()
	f.sessionOf(t, owner, SessionOptions{ID: "original", Flavor: flavor})
	saved, err := f.saveSnapshot(t.Context(), owner, KindSession, "original", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Stop(t.Context(), owner, KindSession, "original"); err != nil {
		t.Fatal(err)
	}
	return saved.ID
}

// memoryOf is the memory of an owner's boxes, in MB, without those that are being freed.
func (f *fixture) memoryOf(owner Owner) (mb int) {
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	for k, b := range f.reg.boxes {
		if k.owner == owner {
			mb += b.flavor.Limits().MemoryMB
		}
	}
	return mb
}

// A rollback to a larger flavor makes room as a new box does, or is refused.
func TestRollBack_StaysWithinTheMemoryOfTheOwner(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxMemoryPerOwnerMB = 4096 })
	large := f.snapshotOf(t, "alice", FlavorLarge)
	for i := range 4 {
		f.session(t, "alice", fmt.Sprint("s", i))
	}
	end := occupy(t, f.session(t, "alice", "s1"))
	_, err := f.Restore(t.Context(), "alice", KindSession, large, RestoreOptions{Into: "s0"})
	wantCode(t, err, CodeLimit, "Memory limit per user exceeded")
	b := f.session(t, "alice", "s0")
	if got := b.Info(); got.Flavor != FlavorSmall || got.State != StateReady {
		t.Errorf("after a rollback that was refused: got %+v, want the box as it was", got)
	}
	wantOut(t, b, "1+1", "2\n")
	end()
	for i := range 4 {
		if _, err := f.Restore(t.Context(), "alice", KindSession, large, RestoreOptions{Into: fmt.Sprint("s", i)}); err != nil {
			t.Errorf("rollback %d: %v", i, err)
		}
		if mb := f.memoryOf("alice"); mb > 4096 {
			t.Errorf("after rollback %d, alice's boxes have %d MB, more than the 4096 that she may have", i, mb)
		}
	}
	f.wantIDs(t, "alice", "s0", "s1", "s2", "s3")
}

// Of many rollbacks of a busy box, one waits, without a machine, and the others are refused.
func TestRollBack_OneAtATime(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxPerOwner = 1; c.MaxSessions = 2 })
	saved := f.snapshotOf(t, "alice", FlavorSmall)
	busy := f.session(t, "alice", "busy")
	f.session(t, "bob", "box")
	end := occupy(t, busy)
	const n = 12
	restored := make(chan error, n)
	for range n {
		go func() {
			_, err := f.Restore(context.Background(), "alice", KindSession, saved, RestoreOptions{Into: "busy"})
			restored <- err
		}()
	}
	for range n - 1 {
		within(t, "a rollback is refused", func(ctx context.Context) error {
			select {
			case err := <-restored:
				wantCode(t, err, CodeBusy, "is being rolled back")
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return nil
		})
	}
	if _, live, _ := f.engine.counts(); live != 2 {
		t.Errorf("%d machines while a rollback waits for a call, want 2", live)
	}
	_, err := busy.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeBusy, "is being rolled back")
	end()
	if err := <-restored; err != nil {
		t.Errorf("the rollback that waited: %v", err)
	}
	if _, _, peak := f.engine.counts(); peak > 3 {
		t.Errorf("%d machines at once for two boxes, one of which was rolled back", peak)
	}
	wantOut(t, f.session(t, "alice", "busy"), "1+1", "2\n")
}

// Fork of a box that is being rolled back returns CodeBusy, not CodeStartFailed.
func TestFork_OfBoxThatIsRolledBack(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0 })
	saved := f.snapshotOf(t, "alice", FlavorSmall)
	busy := f.session(t, "alice", "busy")
	end := occupy(t, busy)
	restored := make(chan error, 1)
	go func() {
		_, err := f.Restore(context.Background(), "alice", KindSession, saved, RestoreOptions{Into: "busy"})
		restored <- err
	}()
	eventually(t, "the rollback waits for the call", func() bool { return f.stateOf(busy) == stateDraining })
	_, _, err := f.Fork(t.Context(), "alice", KindSession, "busy", ForkOptions{})
	wantCode(t, err, CodeBusy, "is being rolled back")
	end()
	if err := <-restored; err != nil {
		t.Errorf("the rollback: %v", err)
	}
}

// TestFork_KeepsTheBoxWhileItWaits: a fork that waits for room keeps its box in memory, also after
// a call in the box has begun and ended.
func TestFork_KeepsTheBoxWhileItWaits(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { neverIdle(c); c.MaxPerOwner = 2 })
	f.session(t, "alice", "other")
	parent := f.session(t, "alice", "parent")
	hold := make(chan struct{})
	snaps.mu.Lock()
	snaps.hold = hold
	snaps.mu.Unlock()
	forked := make(chan error, 1)
	go func() {
		_, err := f.fork(context.Background(), "alice", KindSession, "parent", ForkOptions{ID: "copy"})
		forked <- err
	}()
	eventually(t, "the fork waits for the room of the other box", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return len(f.reg.waiting) == 1 && len(f.reg.freeing) == 1
	})
	run(t, parent, "1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, _, err := f.Session(ctx, "alice", SessionOptions{ID: "new"}) // cancelled, if it evicts the parent
	close(hold)
	wantCode(t, err, CodeLimit)
	if err := <-forked; err != nil {
		t.Errorf("the fork: %v", err)
	}
	f.wantStates(t, "alice", map[string]State{"parent": StateReady, "copy": StateReady, "other": StateHibernated})
}

// A rollback briefly takes the memory of two machines, and both count.
func TestRollBack_CountsBothMachines(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxTotalMemoryMB = 2048 })
	saved := f.snapshotOf(t, "alice", FlavorSmall)
	f.session(t, "alice", "box")
	end := occupy(t, f.session(t, "bob", "box"))
	_, err := f.Restore(t.Context(), "alice", KindSession, saved, RestoreOptions{Into: "box"})
	wantCode(t, err, CodeLimit, "Memory limit exceeded", "takes memory twice")
	end()
	if _, err := f.Restore(t.Context(), "alice", KindSession, saved, RestoreOptions{Into: "box"}); err != nil {
		t.Errorf("with an idle box beside it: %v", err)
	}
	if _, _, peak := f.engine.counts(); peak > 2 {
		t.Errorf("%d machines at once, which have more than the 2048 MB of all boxes", peak)
	}
	f.wantIDs(t, "bob", "box")
}

// heldMB returns the memory of the flavors of an owner's boxes in memory.
func (f *fixture) heldMB(owner Owner) int {
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	return f.reg.usageLocked().ownersMB[owner]
}

// TestRollBack_OwnersLimit: a rollback to a snapshot of a larger flavor does not leave its owner with
// more memory than it may have, if the box that was to make room for it returns.
func TestRollBack_OwnersLimit(t *testing.T) {
	for set, limit := range map[string]func(*Config){
		"half of the server's": func(c *Config) { c.Halves, c.MaxTotalMemoryMB = true, 8192 },
		"memory":               func(c *Config) { c.MaxMemoryPerOwnerMB, c.MaxTotalMemoryMB = 4096, 8192 },
	} {
		t.Run(set, func(t *testing.T) {
			f, snaps := newSnapFixture(t, func(c *Config) { neverIdle(c); limit(c) })
			f.sessionOf(t, "alice", SessionOptions{ID: "m", Flavor: FlavorLarge})
			saved, err := f.saveSnapshot(t.Context(), "alice", KindSession, "m", SnapshotOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Stop(t.Context(), "alice", KindSession, "m"); err != nil {
				t.Fatal(err)
			}
			f.session(t, "alice", "x")
			for i := range 3 {
				f.session(t, "alice", fmt.Sprint("y", i))
			}
			snaps.set(&snaps.failWrite, true) // as where the store is full
			_, err = f.Restore(t.Context(), "alice", KindSession, saved.ID, RestoreOptions{Into: "x"})
			wantCode(t, err, CodeLimit, "Memory limit per user exceeded")
			eventually(t, "her boxes are back", func() bool { return f.heldMB("alice") == 4096 })
			snaps.set(&snaps.failWrite, false)
		})
	}
}

// TestRollBack_HibernatesWhileTheOldMachineEnds: a box that leaves memory right after it was rolled
// back wakes as it was, while what it was rolled back from is still being freed.
func TestRollBack_HibernatesWhileTheOldMachineEnds(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	old := f.session(t, "alice", "x")
	saved, err := f.saveSnapshot(t.Context(), "alice", KindSession, "x", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !f.maintainer.writeIfDue(old) {
		t.Fatal("not written")
	}
	stuck := f.engine.holdLast()
	b, err := f.Restore(t.Context(), "alice", KindSession, saved.ID, RestoreOptions{Into: "x"})
	if err != nil {
		t.Fatal(err)
	}
	f.evict(t, b)
	f.reg.mu.Lock()
	_, freeing := f.reg.freeing[old]
	f.reg.mu.Unlock()
	if !freeing {
		t.Fatal("the old machine is freed already")
	}
	again, hold, err := f.Session(t.Context(), "alice", SessionOptions{ID: "x"})
	close(stuck)
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	if hold.Woken == nil || hold.Woken.Behind {
		t.Errorf("the next call: got %+v, want the box that was rolled back", hold)
	}
	if again == b || again == old {
		t.Error("the box was not written")
	}
}
