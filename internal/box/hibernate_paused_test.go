package box

import (
	"context"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// writtenWithoutFiles returns a box of which the store has room for the memory only.
func writtenWithoutFiles(t *testing.T) (*fixture, *snapEngine, *Box) {
	t.Helper()
	f, snaps := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.MaxBytes = largeSnapshot + 1 })
	snaps.set(&snaps.large, true)
	b := f.session(t, "bob", "x")
	wantOut(t, b, "open('f','w').write('x'*5000); print(1)", "1\n")
	if !f.maintainer.writeIfDue(b) {
		t.Fatal("not written")
	}
	return f, snaps, b
}

// TestHibernate_PausedWithoutFilesOnFullDisk: a paused box whose memory is on disk as it is, and whose
// files had no room, leaves memory though the disk has no room for another copy.
func TestHibernate_PausedWithoutFilesOnFullDisk(t *testing.T) {
	for when, leave := range map[string]func(*fixture, *Box){
		"evicted":      func(f *fixture, b *Box) { f.evict(t, b) },
		"server stops": func(f *fixture, b *Box) { _ = f.Close(t.Context()) },
	} {
		t.Run(when, func(t *testing.T) {
			f, snaps, b := writtenWithoutFiles(t)
			if err := f.pauseNow(t, b); err != nil {
				t.Fatal(err)
			}
			snaps.mu.Lock()
			snaps.failGuest = b.guestID // engine.ErrExhausted: the disk is full
			snaps.mu.Unlock()
			leave(f, b)
			var said string
			if tomb := f.reg.tombstoneOf(b.key); tomb != nil {
				said = tomb.Detail
			}
			var meta snapshot.Meta
			if b.lease != nil {
				meta = b.lease.Meta()
			}
			// It ran on while it was asked for its files: what is made of the data must draw other
			// random numbers than it may have drawn.
			if got := f.stateOf(b); got != stateHibernated || meta.Stale || !meta.Restored || said != "" {
				t.Errorf("the box is %v, its record stale %t and restored %t, the next call reads %q", got, meta.Stale, meta.Restored, said)
			}
		})
	}
}

// TestHibernate_PausedBoxThatDoesNotResume: a paused box that does not resume leaves memory without a
// wait for files that its agent cannot send, and holds no slot that others need meanwhile.
func TestHibernate_PausedBoxThatDoesNotResume(t *testing.T) {
	e := &sleeper{}
	f := newFixtureWith(t, neverIdle, func(fx *fixture, parts *Parts) {
		e.Engine = addSnapshots(t, fx, parts, func(*snapshot.Config) {})
		parts.Machines.Engine = e
	})
	b := f.session(t, "bob", "x")
	wantOut(t, b, "print(1)", "1\n")
	if !f.maintainer.writeIfDue(b) {
		t.Fatal("not written")
	}
	if err := f.pauseNow(t, b); err != nil {
		t.Fatal(err)
	}
	if _, ok := b.consentToDrop(true); !ok { // as an eviction asks
		t.Fatal("no consent")
	}
	e.hang = true
	f.reg.mu.Lock()
	f.life.unloadLocked(b, ReasonEvicted, "as the test wants")
	freed := b.unloadDone
	f.reg.mu.Unlock()
	eventually(t, "it is being resumed", e.resuming.Load)
	ctx, cancel := context.WithTimeout(t.Context(), powerTimeout/2)
	defer cancel()
	var taken []func()
	for range writers() {
		leave, err := f.records.writes.Acquire(ctx, "alice")
		if err != nil {
			t.Errorf("another owner does not get all slots of writes meanwhile: %v", err)
		}
		taken = append(taken, leave)
	}
	for _, leave := range taken {
		leave()
	}
	begun := time.Now()
	<-freed
	if took := time.Since(begun); took > powerTimeout+homeTimeout/2 {
		t.Errorf("it took %v to leave memory as %v: it waited for files", took, f.stateOf(b))
	}
	e.hang = false
}

// TestHibernate_FailedPause: a box whose pausing failed may have run on since it was written, so that
// what the disk has of it is not its latest state.
func TestHibernate_FailedPause(t *testing.T) {
	f, snaps, b := writtenWithoutFiles(t)
	snaps.set(&snaps.failPause, true)
	if err := f.pauseNow(t, b); err == nil {
		t.Fatal("it was paused")
	}
	snaps.set(&snaps.failPause, false)
	snaps.mu.Lock()
	snaps.failGuest = b.guestID
	snaps.mu.Unlock()
	f.evict(t, b)
	if f.stateOf(b) == stateHibernated && !b.lease.Meta().Stale {
		t.Error("a box that may have run on left memory as if the disk had its latest state")
	}
}
