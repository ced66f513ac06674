package box

import (
	"context"
	"fmt"
	"testing"
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
