package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// occupy runs code in a box until the test ends or end is called. It returns when the code runs.
func occupy(t *testing.T, b *Box) (end func()) {
	t.Helper()
	dir := t.TempDir()
	begun, done := filepath.Join(dir, "begun"), filepath.Join(dir, "done")
	result := background(t, b, fmt.Sprintf("import os, time\nopen(%q, 'w').close()\nwhile not os.path.exists(%q): time.sleep(0.01)", begun, done))
	end = sync.OnceFunc(func() {
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			t.Error(err)
		}
		result()
	})
	t.Cleanup(end)
	eventually(t, "the code runs", func() bool { _, err := os.Stat(begun); return err == nil })
	return end
}

// within fails the test if do takes longer than any work on a busy machine does.
func within(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begun, done := time.Now(), make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: %v after %v", what, err, time.Since(begun))
		}
	case <-ctx.Done():
		t.Fatalf("%s: not done after %v", what, time.Since(begun))
	}
}

// callsIn waits until a box has n calls in flight or queued.
func (f *fixture) callsIn(t *testing.T, b *Box, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the box has %d calls", n), func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return b.use.calls == n
	})
}

// unload takes a box out of memory, and waits until it has left or stays after all.
func (f *fixture) unload(ctx context.Context, b *Box) error {
	f.reg.mu.Lock()
	freed := b.unloadDone
	f.life.unloadLocked(b, ReasonEvicted, "as the test wants")
	f.reg.mu.Unlock()
	select {
	case <-freed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s := f.stateOf(b); s != stateHibernated {
		return fmt.Errorf("the box is %v", s)
	}
	return nil
}

// While snapshots wait for a busy box, they hold nothing that other owners need.
func TestSaveSnapshot_BusyBoxDelaysNoOtherOwner(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	busy, idle := f.session(t, "alice", "busy"), f.session(t, "bob", "idle")
	f.session(t, "bob", "kept")
	end := occupy(t, busy)
	n := int(writers())
	saved := make(chan error, n)
	for range n {
		go func() {
			_, err := f.saveSnapshot(context.Background(), "alice", KindSession, "busy", SnapshotOptions{})
			saved <- err
		}()
	}
	f.callsIn(t, busy, 1+n)
	within(t, "bob's idle box is written to disk", func(ctx context.Context) error { return f.unload(ctx, idle) })
	within(t, "bob's snapshot", func(ctx context.Context) error {
		_, err := f.saveSnapshot(ctx, "bob", KindSession, "kept", SnapshotOptions{})
		return err
	})
	end()
	for range n {
		if err := <-saved; err != nil {
			t.Errorf("alice's snapshot: %v", err)
		}
	}
}

// While forks wait for a busy box, they hold nothing that other owners need.
func TestFork_BusyBoxDelaysNoOtherOwner(t *testing.T) {
	n := 2 * runtime.GOMAXPROCS(0)
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxSessions = n + 2 })
	busy := f.session(t, "alice", "busy")
	end := occupy(t, busy)
	forked := make(chan error, n)
	for range n {
		go func() {
			_, err := f.fork(context.Background(), "alice", KindSession, "busy", ForkOptions{})
			forked <- err
		}()
	}
	f.callsIn(t, busy, 1+n)
	within(t, "bob's new box", func(ctx context.Context) error {
		_, hold, err := f.Session(ctx, "bob", SessionOptions{ID: "new"})
		hold.Release()
		return err
	})
	// Neither the pool nor the first writes of others wait for such forks.
	if n := f.Stats().Starting; n != 0 {
		t.Errorf("%d boxes count as starting while their forks wait for a call", n)
	}
	end()
	for range n {
		if err := <-forked; err != nil {
			t.Errorf("alice's fork: %v", err)
		}
	}
}

// Snapshots that are waiting for a busy box count towards the owner's limit, so that saving
// many at once does not exceed it.
func TestSaveSnapshot_ConcurrentSavesStayWithinTheLimit(t *testing.T) {
	const limit, saves = 3, 6
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxSnapshots = limit })
	busy := f.session(t, "alice", "busy")
	f.session(t, "bob", "idle")
	save := func(owner Owner, id string) error {
		_, err := f.saveSnapshot(context.Background(), owner, KindSession, id, SnapshotOptions{})
		return err
	}
	if err := save("alice", "busy"); err != nil {
		t.Fatal(err)
	}
	end := occupy(t, busy)
	saved := make(chan error, saves)
	for range saves {
		go func() { saved <- save("alice", "busy") }()
	}
	for range saves - (limit - 1) { // refused at once
		select {
		case err := <-saved:
			wantCode(t, err, CodeLimit)
		case <-time.After(10 * time.Second):
			t.Fatal("a snapshot over the limit waits for the box")
		}
	}
	if err := save("bob", "idle"); err != nil {
		t.Errorf("another owner's snapshot: %v", err)
	}
	end()
	for range limit - 1 {
		if err := <-saved; err != nil {
			t.Errorf("a snapshot within the limit: %v", err)
		}
	}
	list, err := f.Snapshots("alice")
	if err != nil || len(list) != limit {
		t.Fatalf("got %d snapshots, %v; want %d", len(list), err, limit)
	}
	wantCode(t, save("alice", "busy"), CodeLimit)
	if err := f.DeleteSnapshot("alice", list[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := save("alice", "busy"); err != nil {
		t.Errorf("a snapshot after one was deleted: %v", err)
	}
}

// An owner's kept snapshots leave room on disk for the boxes of another one.
func TestSaveSnapshot_LeavesRoomForBoxesOfOthers(t *testing.T) {
	f, snaps := newSnapFixture(t, neverIdle)
	snaps.set(&snaps.large, true)
	var boxes []*Box
	for i := range 3 {
		boxes = append(boxes, f.session(t, "bob", fmt.Sprint("box", i)))
	}
	f.session(t, "alice", "saved")
	var err error
	n := 0
	for ; n < 20 && err == nil; n++ {
		_, err = f.saveSnapshot(t.Context(), "alice", KindSession, "saved", SnapshotOptions{})
	}
	wantCode(t, err, CodeLimit, "your snapshots may take", "and this one takes about")
	if e, _ := errors.AsType[*Error](err); !strings.Contains(e.Hint, "delete_snapshot") {
		t.Errorf("hint: got %q", e.Hint)
	}
	if n < 2 {
		t.Errorf("alice could save %d snapshots", n-1)
	}
	for _, b := range boxes {
		within(t, "bob's box is written to disk", func(ctx context.Context) error { return f.unload(ctx, b) })
	}
	if got := len(f.List("bob", "")); got != 3 {
		t.Errorf("bob has %d boxes, want 3", got)
	}
}

// TestSaveSnapshot_LargerThanAllOfOwner: a box that is larger than what its owner may save is not
// helped by deleting others, which would be lost for nothing.
func TestSaveSnapshot_LargerThanAllOfOwner(t *testing.T) {
	f, snaps := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.MaxSaved = 1 << 20 })
	snaps.set(&snaps.large, true)
	f.session(t, "alice", "large")
	_, err := f.saveSnapshot(t.Context(), "alice", KindSession, "large", SnapshotOptions{})
	wantCode(t, err, CodeLimit, "your snapshots may take 1 MB together, and this one takes about")
	if e, _ := errors.AsType[*Error](err); strings.Contains(e.Hint, "delete_snapshot") || !strings.Contains(e.Hint, "remove files") {
		t.Errorf("hint: got %q", e.Hint)
	}
}
