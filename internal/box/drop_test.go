package box

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// bytesOf returns the size of the data that the disk has of a box.
func (f *fixture) bytesOf(t *testing.T, b *Box) int64 {
	t.Helper()
	list, err := f.parts.Snapshots.List(func(m *snapshot.Meta) bool { return m.Purpose == snapshot.Box && m.BoxID == b.key.id })
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, r := range list {
		bytes += r.Bytes
	}
	return bytes
}

// fillStore makes a store with room for three boxes, which alice's have, woken from the disk and not
// used since the wake, and a box of bob's that the disk has nothing of.
func fillStore(t *testing.T) (f *fixture, alice []*Box, bob *Box) {
	t.Helper()
	return fillStoreWith(t, neverIdle)
}

// fillStoreWith is fillStore with another configuration.
func fillStoreWith(t *testing.T, change func(*Config)) (f *fixture, alice []*Box, bob *Box) {
	t.Helper()
	f, snaps := newSnapFixtureWith(t, func(c *Config) { change(c); c.MaxPerOwner = 0 },
		func(c *snapshot.Config) { c.MaxBytes, c.MaxSaved = 3*largeSnapshot+largeSnapshot/2, 2*largeSnapshot })
	snaps.set(&snaps.large, true)
	for i := range 3 {
		id := fmt.Sprint("a", i)
		f.evict(t, f.session(t, "alice", id))
		alice = append(alice, f.session(t, "alice", id))
		f.clock.add(time.Second)
	}
	return f, alice, f.session(t, "bob", "b")
}

// TestDrop_OthersCopyIsWritten: boxes in memory of one owner that fill the store leave room for a
// copy of another owner's box. The copy that gives way is that of a box that is written again when
// it leaves memory, though nothing used it since it woke.
func TestDrop_OthersCopyIsWritten(t *testing.T) {
	f, alice, bob := fillStore(t)
	if !f.maintainer.writeIfDue(bob) {
		t.Fatal("bob's box was not written while it is in memory")
	}
	if f.bytesOf(t, bob) == 0 || f.bytesOf(t, alice[0]) != 0 || f.bytesOf(t, alice[1]) == 0 || f.bytesOf(t, alice[2]) == 0 {
		t.Errorf("the disk has %d bytes of bob's box, and %d, %d and %d of alice's, want that her least recently used gave way",
			f.bytesOf(t, bob), f.bytesOf(t, alice[0]), f.bytesOf(t, alice[1]), f.bytesOf(t, alice[2]))
	}
	if err := f.pauseNow(t, alice[0]); err != nil {
		t.Fatal(err)
	}
	// Her box is not written while it stays in memory, and may leave it.
	if f.maintainer.writeIfDue(alice[0]) {
		t.Error("alice's box was written in place of others' that stay in memory")
	}
	f.reg.mu.Lock()
	evictable := alice[0].evictableLocked()
	f.reg.mu.Unlock()
	if !evictable {
		t.Error("a box without room for a copy may not leave memory")
	}
	f.evict(t, alice[0]) // paused and unused, it would be on disk as it is
	if got := f.stateOf(alice[0]); got != stateHibernated || f.bytesOf(t, alice[0]) < largeSnapshot {
		t.Errorf("alice's box is %v with %d bytes on disk, want it hibernated", got, f.bytesOf(t, alice[0]))
	}
	if f.bytesOf(t, bob) == 0 {
		t.Error("it left memory in place of bob's copy")
	}
}

// TestDrop_OthersSaveAndHibernate: boxes in memory of one owner that fill the store neither keep
// another owner's box in memory nor refuse a snapshot of it.
func TestDrop_OthersSaveAndHibernate(t *testing.T) {
	f, alice, bob := fillStore(t)
	saved, err := f.saveSnapshot(t.Context(), "bob", KindSession, "b", SnapshotOptions{})
	if err != nil {
		t.Fatalf("save a snapshot of bob's box: %v", err)
	}
	if err := f.DeleteSnapshot("bob", saved.ID); err != nil {
		t.Fatal(err)
	}
	f.evict(t, bob)
	if got := f.stateOf(bob); got != stateHibernated {
		t.Errorf("bob's box is %v, want it hibernated", got)
	}
	for _, b := range alice {
		wantOut(t, b, "print(1)", "1\n")
	}
}

// TestDrop_Consent: the data of a box stay while it leaves memory, or could not be written, and go
// otherwise, also those of a record that was made after the box. A write that has ended does not
// count on data that have gone since.
func TestDrop_Consent(t *testing.T) {
	f, alice, bob := fillStore(t)
	b := alice[0]
	f.reg.mu.Lock()
	first := b.lease
	b.lease = nil
	f.reg.mu.Unlock()
	f.records.release(first, false)
	f.maintainer.writeIfDue(b)
	for _, o := range alice[1:] { // used after it
		wantOut(t, o, "print(1)", "1\n")
		f.maintainer.writeIfDue(o)
	}
	if f.bytesOf(t, b) == 0 || !f.maintainer.writeIfDue(bob) || f.bytesOf(t, b) != 0 {
		t.Errorf("the disk has %d bytes of alice's box and %d of bob's", f.bytesOf(t, b), f.bytesOf(t, bob))
	}

	for what, change := range map[string]func() (undo func()){
		"leaves memory": func() func() {
			f.reg.setState(b, stateHibernating)
			return func() { f.reg.setState(b, stateReady) }
		},
		"could not be written": func() func() {
			b.failedLocked(errors.New("as the test wants"), false)
			return func() { b.disk.broken, b.disk.failures = false, 0 }
		},
	} {
		f.reg.mu.Lock()
		undo := change()
		f.reg.mu.Unlock()
		if _, ok := b.consentToDrop(true); ok {
			t.Errorf("data of a box that %s may be dropped", what)
		}
		f.reg.mu.Lock()
		undo()
		f.reg.mu.Unlock()
	}
	if _, ok := b.consentToDrop(false); !ok || b.disk.drops != 1 {
		t.Errorf("a question about data has dropped them: %d drops", b.disk.drops)
	}
}

// TestDrop_Paused: a paused box whose copy was dropped resumes, so that it is written and paused as
// idle boxes are once there is room, and has its files on disk when it leaves memory, also if it
// leaves before, and when the server stops.
func TestDrop_Paused(t *testing.T) {
	for when, leave := range map[string]func(t *testing.T, f *fixture, b *Box){
		"idle for long": func(t *testing.T, f *fixture, b *Box) {
			f.clock.add(firstBackoff)
			f.maintainer.checkIdle()
			eventually(t, "it resumes", func() bool { return f.stateOf(b) == stateReady && !b.power.isPaused() })
			if !f.maintainer.writeIfDue(b) || f.bytesOf(t, b) < largeSnapshot {
				t.Errorf("the disk has %d bytes of it again", f.bytesOf(t, b))
			}
			if err := f.pauseNow(t, b); err != nil {
				t.Fatal(err)
			}
			f.evict(t, b)
		},
		"evicted at once": func(t *testing.T, f *fixture, b *Box) { f.evict(t, b) },
		"server stops": func(t *testing.T, f *fixture, b *Box) {
			if err := f.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(when, func(t *testing.T) {
			f, alice, bob := fillStoreWith(t, func(c *Config) { c.PauseAfter, c.IdleTimeout = time.Minute, 24*time.Hour })
			b := alice[0]
			if err := f.pauseNow(t, b); err != nil {
				t.Fatal(err)
			}
			if !f.maintainer.writeIfDue(bob) || f.bytesOf(t, b) != 0 {
				t.Fatalf("the disk has %d bytes of alice's paused box, and %d of bob's", f.bytesOf(t, b), f.bytesOf(t, bob))
			}
			if _, err := f.Stop(t.Context(), "bob", KindSession, "b"); err != nil {
				t.Fatal(err)
			}
			leave(t, f, b)
			record, err := f.records.find("test", b.key)
			if err != nil || record == nil {
				t.Fatalf("its record: %v, %v", record, err)
			}
			if _, err := f.homeOf(t, record.ID); err != nil {
				t.Errorf("its files are not on disk: %v", err)
			}
		})
	}
}

// TestDrop_ServerKilled: the next server reports the loss of a box whose copy was dropped.
func TestDrop_ServerKilled(t *testing.T) {
	f, alice, bob := fillStore(t)
	c, err := f.CreateContext(t.Context(), "alice", ContextOptions{Name: "named"})
	if err != nil {
		t.Fatal(err)
	}
	if !f.maintainer.writeIfDue(bob) || f.bytesOf(t, alice[0]) != 0 {
		t.Fatal("no drop")
	}
	record, err := f.records.find("test", alice[1].key)
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := f.parts.Snapshots.Peek(record.ID)
	if err != nil {
		t.Fatal(err)
	}
	after := filepath.Join(t.TempDir(), "store")
	if out, err := exec.Command("cp", "-a", "--sparse=always", filepath.Join(dir, "../../.."), after).CombinedOutput(); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	next, _ := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.Dir = after })
	_, hold, err := next.Session(t.Context(), "alice", SessionOptions{ID: "a0"})
	if err != nil || !hold.Created || hold.Lost == nil {
		t.Errorf("the next call on it: got %+v, %v", hold, err)
	}
	hold.Release()
	for _, id := range []string{c.ID(), "named"} {
		_, _, err = next.Context(t.Context(), "alice", id)
		wantCode(t, err, CodeNotFound, "killed")
	}
	_, hold, err = next.Session(t.Context(), "alice", SessionOptions{ID: "a1"})
	if err != nil || hold.Woken == nil {
		t.Errorf("a box whose copy is there: got %+v, %v", hold, err)
	}
	hold.Release()
}

// TestDrop_ExpectsWokenBox: what the disk had of a woken box before a drop is the estimate of its next write.
func TestDrop_ExpectsWokenBox(t *testing.T) {
	f, alice, bob := fillStore(t)
	if !f.maintainer.writeIfDue(bob) || f.bytesOf(t, alice[0]) != 0 {
		t.Fatal("no drop")
	}
	if got := f.records.expected(alice[0]); got < largeSnapshot {
		t.Errorf("a write of alice's box is expected to take %d bytes", got)
	}
}

// TestDrop_AfterFailedHibernation: an owner whose boxes found no room when they were to leave memory
// does not keep their copies from giving way to others'.
func TestDrop_AfterFailedHibernation(t *testing.T) {
	f, alice, bob := fillStore(t)
	for _, b := range alice {
		f.reg.mu.Lock()
		b.failedLocked(&snapshot.FullError{Missing: 1}, false)
		f.reg.mu.Unlock()
	}
	if !f.maintainer.writeIfDue(bob) {
		t.Error("bob's box was not written: alice's copies fill the store for good")
	}
	f.evict(t, bob)
	if got := f.stateOf(bob); got != stateHibernated {
		t.Errorf("bob's box is %v, it cannot leave memory", got)
	}
}

// TestDrop_ThatFails: data that an eviction could not drop stay with the box when it breaks.
func TestDrop_ThatFails(t *testing.T) {
	f, alice, _ := fillStore(t)
	b := alice[0]
	kept, ok := b.consentToDrop(true)
	if !ok {
		t.Fatal("no consent")
	}
	kept()
	f.life.terminate(b, ReasonOOM, "as the test wants")
	eventually(t, "it has ended", func() bool { return f.stateOf(b).final() })
	if got := f.bytesOf(t, b); f.stateOf(b) != stateHibernated || got == 0 {
		t.Errorf("the box is %v with %d bytes on disk, want its last written state kept", f.stateOf(b), got)
	}
}

// TestDrop_BrokenBoxKeepsItsCopy: the only copy of a box that could not be written stays, also if
// there was no room for it since.
func TestDrop_BrokenBoxKeepsItsCopy(t *testing.T) {
	f, alice, _ := fillStore(t)
	b := alice[0]
	f.reg.mu.Lock()
	b.failedLocked(errors.New("the engine cannot write it"), true)
	b.failedLocked(&snapshot.FullError{Missing: 1}, true)
	f.reg.mu.Unlock()
	if _, ok := b.consentToDrop(false); ok {
		t.Error("the only copy of a box that could not be written may be dropped")
	}
}
