package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// unwritten waits until a box has returned to memory because it could not be written.
func (f *fixture) unwritten(t *testing.T, b *Box, failures int) {
	t.Helper()
	eventually(t, "the box stays in memory", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return b.state.live() && b.disk.failures == failures
	})
}

// A box that cannot be written to disk stays in memory with all that it has, and is
// written later.
func TestHibernate_FailedWriteKeepsTheBox(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxSessions = 1 })
	b := f.session(t, "bob", "x")
	wantOut(t, b, "x = 41; print(x)", "41\n")
	snaps.set(&snaps.failWrite, true)
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	f.unwritten(t, b, 1)
	if st := f.Stats(); st.Unwritten != 1 || st.Ended[ReasonIdle] != 0 || st.Ended[ReasonHibernated] != 0 {
		t.Errorf("stats: got %+v, want one box that could not be written", st)
	}
	// It makes no room for a moment, and is not written again at once.
	f.wantLimit(t, "bob", SessionOptions{ID: "other"}, "Sessions limit exceeded: 1 >= 1; an idle box could not be written to disk")
	f.maintainer.sweep()
	f.clock.add(firstBackoff)
	f.maintainer.sweep()
	f.unwritten(t, b, 2)
	f.clock.add(firstBackoff)
	f.maintainer.sweep()
	if got := f.stateOf(b); got != stateReady {
		t.Errorf("before the second backoff is over, the box is %v", got)
	}
	wantOut(t, f.session(t, "bob", "x"), "print(x + 1)", "42\n")

	snaps.set(&snaps.failWrite, false)
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	eventually(t, "the box is on disk", func() bool { return f.stateOf(b) == stateHibernated })
	_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || hold.Woken == nil || hold.Woken.Behind {
		t.Errorf("the next call: got %+v, %v; want the box woken as it was", hold, err)
	}
	hold.Release()
	if st := f.Stats(); st.Unwritten != 0 {
		t.Errorf("%d boxes count as not written", st.Unwritten)
	}
}

// If the box that a new one would replace cannot be written, another one is replaced, or
// the new box is refused.
func TestAdmit_VictimCannotBeWritten(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0; c.MaxSessions = 2 })
	first, second := f.session(t, "bob", "first"), f.session(t, "bob", "second")
	snaps.mu.Lock()
	snaps.failGuest = first.guestID
	snaps.mu.Unlock()
	f.session(t, "bob", "third")
	if f.stateOf(first) != stateReady || f.stateOf(second).live() {
		t.Errorf("the box that cannot be written is %v, the other %v; want only the other to leave", f.stateOf(first), f.stateOf(second))
	}
	end := occupy(t, f.session(t, "bob", "third"))
	f.clock.add(lastBackoff)
	_, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: "fourth"})
	wantCode(t, err, CodeLimit, "Sessions limit exceeded: 2 >= 2", "could not be written to disk, which is full")
	end()
	f.wantIDs(t, "bob", "first", "second", "third")
	if _, _, peak := f.engine.counts(); peak > 2 {
		t.Errorf("%d boxes in memory at once, want at most 2", peak)
	}
}

// A guest that ends while its box is being written is reported like any guest that ends.
func TestHibernate_GuestEndsMeanwhile(t *testing.T) {
	f, snaps := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	guest := f.engine.last()
	hold := make(chan struct{})
	snaps.mu.Lock()
	snaps.hold, snaps.failWrite = hold, true
	snaps.mu.Unlock()
	gone := make(chan error, 1)
	go func() { gone <- f.unload(context.Background(), b) }()
	eventually(t, "it is being written", func() bool { snaps.mu.Lock(); defer snaps.mu.Unlock(); return snaps.writes > 0 })
	guest.exit <- engine.Exit{Reason: engine.ExitOOM}
	eventually(t, "the end is noticed", func() bool { f.reg.mu.Lock(); defer f.reg.mu.Unlock(); return b.died != nil })
	close(hold)
	<-gone
	eventually(t, "the box has ended", func() bool { return f.stateOf(b) == stateGone })
	_, err := b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeGone, "ran out of memory")
}

// A stop during a write that fails ends the box.
func TestStop_WhileHibernatingFails(t *testing.T) {
	f, snaps := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	hold := make(chan struct{})
	snaps.mu.Lock()
	snaps.hold, snaps.failWrite = hold, true
	snaps.mu.Unlock()
	gone := make(chan error, 1)
	go func() { gone <- f.unload(context.Background(), b) }()
	eventually(t, "it is being written", func() bool { snaps.mu.Lock(); defer snaps.mu.Unlock(); return snaps.writes > 0 })
	stopped := make(chan error, 1)
	go func() {
		found, err := f.Stop(context.Background(), "bob", KindSession, "x")
		if !found && err == nil {
			err = errors.New("no box was found")
		}
		stopped <- err
	}()
	close(hold)
	<-gone
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	f.wantIDs(t, "bob")
}

// The maintainer waits before it writes a box again that could not be written.
func TestSave_FailureIsNotRetriedAtOnce(t *testing.T) {
	f, snaps := newSnapFixture(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "", "x")
	run(t, b, "1")
	snaps.set(&snaps.failWrite, true)
	writes := func() int { snaps.mu.Lock(); defer snaps.mu.Unlock(); return snaps.writes }
	f.clock.add(2 * saveGap)
	f.maintainer.checkIdle()
	f.unwritten(t, b, 1)
	f.clock.add(2 * saveEvery)
	f.maintainer.checkIdle()
	eventually(t, "a later write", func() bool { return writes() >= 2 })
	if polltest.Soon(300*time.Millisecond, func() bool { return writes() > 3 }) {
		t.Errorf("%d writes in a moment, all of which fail", writes())
	}
}

// The record of a box that stays does not claim to have its last state.
func TestHibernate_FailedWriteLeavesTheRecordLive(t *testing.T) {
	f, snaps := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	run(t, b, "1")
	if !f.maintainer.writeIfDue(b) {
		t.Fatal("the box was not written")
	}
	run(t, b, "2")
	snaps.set(&snaps.failWrite, true)
	if err := f.unload(t.Context(), b); err == nil || !strings.Contains(err.Error(), "ready") {
		t.Errorf("got %v, want that the box is ready", err)
	}
	if !b.lease.Meta().Stale {
		t.Error("the record claims that the box is hibernated")
	}
}

// A box that got no record when it was made, since the disk was full, gets one when it
// leaves memory, and stays in memory until then.
func TestHibernate_RecordCouldNotBeCreated(t *testing.T) {
	f, _ := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.MaxRecords = 1 })
	f.session(t, "alice", "first")
	b := f.session(t, "bob", "x")
	if b.lease != nil {
		t.Fatal("the box has a record")
	}
	if err := f.unload(t.Context(), b); err == nil || f.stateOf(b) != stateReady {
		t.Fatalf("without room for its record, the box is %v", f.stateOf(b))
	}
	if _, _, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "x", SnapshotOptions{}); CodeOf(err) != CodeLimit {
		t.Errorf("a snapshot of it: got %v, want a limit", err)
	}
	if _, err := f.Stop(t.Context(), "alice", KindSession, "first"); err != nil {
		t.Fatal(err)
	}
	f.clock.add(lastBackoff)
	if err := f.unload(t.Context(), b); err != nil {
		t.Error(err)
	}
	_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || hold.Woken == nil {
		t.Errorf("the next call: got %+v, %v; want the box woken", hold, err)
	}
	hold.Release()
}

// A box whose record the store never accepts ends when it expires, as without hibernation.
func TestHibernate_RecordIsInvalid(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	b := f.session(t, Owner(strings.Repeat("long", 100)), "x")
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	f.unwritten(t, b, 1)
	f.clock.add(lastBackoff)
	f.maintainer.sweep()
	eventually(t, "the box has ended", func() bool { return f.stateOf(b) == stateGone })
}

// The boxes of a server that closes are written in the order of their last use, whichever
// goroutine runs first.
func TestClose_LastUsedIsWrittenFirst(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	writes := f.records.writes
	for range writers() {
		defer writes.Enter("bob").Release()
	}
	var boxes []*Box // the one used last first
	for _, id := range []string{"a", "b", "c", "d"} {
		boxes = slices.Insert(boxes, 0, f.session(t, "bob", id))
		f.clock.add(time.Second)
	}
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	if last := f.reg.lastUsedLocked(); !slices.Equal(last, boxes) {
		t.Fatalf("boxes in the order of use: got %v", last)
	}
	f.life.unloadAllLocked()
	if n := writes.Waiting("bob"); n != len(boxes) {
		t.Errorf("%d boxes wait to be written, want all %d, none of which lets others pass", n, len(boxes))
	}
}

// slowFiles returns a Manager whose agents run no code, and archive their files the first time
// only when finish is called. asked is closed when that begins.
func slowFiles(t *testing.T) (f *fixture, asked <-chan struct{}, finish func()) {
	t.Helper()
	return slowFilesWith(t, func(c *Config) { c.PauseAfter = 0 })
}

// slowFilesWith is slowFiles with another configuration.
func slowFilesWith(t *testing.T, change func(*Config)) (f *fixture, asked <-chan struct{}, finish func()) {
	t.Helper()
	begun, done := make(chan struct{}), make(chan struct{})
	f, _ = newSnapFixture(t, change)
	var calls atomic.Int32
	f.engine.dial = func() io.ReadWriteCloser {
		return fakeAgent(t, func() (string, protocol.BackupResult) {
			if calls.Add(1) == 1 {
				close(begun)
				<-done
			}
			return "archive", protocol.BackupResult{Mark: "m"}
		})
	}
	finish = sync.OnceFunc(func() { close(done) })
	t.Cleanup(finish)
	return f, begun, finish
}

// wantFilesOnDisk waits until a box of slowFiles has left memory, and checks that its files are
// stored beside its memory.
func (f *fixture) wantFilesOnDisk(t *testing.T, b *Box) {
	t.Helper()
	eventually(t, "the box is on disk", func() bool { return f.stateOf(b) == stateHibernated })
	record, err := f.records.find("test", b.key)
	if err != nil || record == nil {
		t.Fatalf("its record: %v, %v", record, err)
	}
	if info, err := f.homeOf(t, record.ID); err != nil || info.Mark != "m" {
		t.Errorf("the files of the box: got %+v, %v", info, err)
	}
}

// homeOf describes the files that are stored in a record.
func (f *fixture) homeOf(t *testing.T, id string) (*homeInfo, error) {
	t.Helper()
	dir, _, err := f.parts.Snapshots.Peek(id)
	if err != nil {
		t.Fatal(err)
	}
	return readHomeInfo(dir)
}

// A client may kill its server seconds after it has ended the input. The memory of a box is on
// disk before its files are archived, which takes long if there are thousands.
func TestHibernate_MemoryBeforeFiles(t *testing.T) {
	f, asked, finish := slowFiles(t)
	b := f.session(t, "bob", "x")
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	<-asked
	list, err := f.parts.Snapshots.List(nil)
	if err != nil || len(list) != 1 || list[0].Written.IsZero() || list[0].Stale {
		t.Errorf("while the files are archived, the disk has %+v, %v; want the memory", list, err)
	}
	finish()
	f.wantFilesOnDisk(t, b)
}

// A box that hibernates ends the archiving that an earlier write of it has begun: it archives its
// files itself when its memory is on disk.
func TestHibernate_EndsArchiveOfEarlierState(t *testing.T) {
	f, asked, _ := slowFiles(t)
	b := f.session(t, "bob", "x")
	saved := make(chan bool, 1)
	go func() { saved <- f.life.writeLive(t.Context(), b, f.records.writes.Enter("bob"), func() {}) }()
	<-asked
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	eventually(t, "the box is on disk", func() bool { return f.stateOf(b) == stateHibernated })
	if !<-saved {
		t.Error("the write that was cut short has failed, though the memory was on disk")
	}
}

// The lock of a box's power may be held for as long as its engine takes to pause it, and is taken
// before the registry's: the storing of its files does not hold that one meanwhile.
func TestWrite_FilesOfBoxThatIsBeingPaused(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	pausing, pause := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(pause)
	wg.Go(func() {
		b.power.pause(t.Context(), b.machine, func() bool { close(pausing); <-pause; return false }, func() {})
	})
	<-pausing
	b.writing.Lock()
	wg.Go(func() {
		defer b.writing.Unlock()
		turn := f.records.archives.Enter("bob")
		defer turn.Release()
		f.life.writeFiles(t.Context(), b, true, b.lease, turn)
	})
	time.Sleep(100 * time.Millisecond) // it waits for the lock of the power
	if !polltest.Soon(5*time.Second, f.reg.mu.TryLock) {
		t.Fatal("the registry is locked until the box is paused")
	}
	f.reg.mu.Unlock()
}

// An agent may take twenty seconds to archive its files. The memory of other boxes does not wait
// for that.
func TestWrite_MemoryDoesNotWaitForFilesOfOthers(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	done := make(chan struct{})
	defer close(done)
	var archiving atomic.Int32
	f.engine.dial = func() io.ReadWriteCloser {
		return fakeAgent(t, func() (string, protocol.BackupResult) {
			archiving.Add(1)
			<-done
			return "archive", protocol.BackupResult{Mark: "m"}
		})
	}
	n := writers()
	for i := range n + 1 {
		b := f.session(t, "bob", string(rune('a'+i)))
		f.reg.mu.Lock()
		f.life.unloadLocked(b, ReasonEvicted, "as the test wants")
		f.reg.mu.Unlock()
		eventually(t, "files are archived", func() bool { return int(archiving.Load()) == min(i+1, n) })
	}
	eventually(t, "the memory of all boxes is on disk", func() bool {
		list, err := f.parts.Snapshots.List(func(m *snapshot.Meta) bool { return !m.Written.IsZero() && !m.Stale })
		return err == nil && len(list) == n+1
	})
}

// A box that hibernates is not written again: a write that began before finds it gone, so it must
// not end the archiving of the last state.
func TestHibernate_ArchivesLastStateWhileAnotherWriteWaits(t *testing.T) {
	f, asked, finish := slowFiles(t)
	b := f.session(t, "bob", "x")
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	<-asked
	saved := make(chan bool, 1)
	go func() { saved <- f.life.writeLive(t.Context(), b, f.records.writes.Enter("bob"), func() {}) }()
	eventually(t, "the other write waits", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return b.disk.waiting == 1
	})
	finish()
	<-saved
	f.wantFilesOnDisk(t, b)
}

// A write of a box that waits for a slot to archive its files makes way for another at once.
func TestHibernate_DoesNotWaitForSlotOfEarlierArchive(t *testing.T) {
	f, _, finish := slowFiles(t)
	finish()
	b := f.session(t, "bob", "x")
	var turns []*fairslots.Turn
	for i := range writers() + 1 {
		turns = append(turns, f.records.archives.Enter(string(rune('0'+i))))
		if err := turns[i].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	saved := make(chan bool, 1)
	go func() { saved <- f.life.writeLive(t.Context(), b, f.records.writes.Enter("bob"), func() {}) }()
	eventually(t, "the memory is on disk", func() bool {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return b.disk.memorySeq == b.use.seq && b.disk.failures == 0
	})
	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	select {
	case <-saved:
	case <-time.After(5 * time.Second):
		t.Error("the box is not written for the last time before others have archived their files")
	}
	for _, turn := range turns {
		turn.Release()
	}
	eventually(t, "the box is on disk", func() bool { return f.stateOf(b) == stateHibernated })
}

// How often a box in use is written depends on how long that takes, not on how long the writes of
// others do.
func TestWrite_TookWithoutWaits(t *testing.T) {
	f, _, finish := slowFiles(t)
	finish()
	b := f.session(t, "bob", "x")
	const wait = 2 * time.Second
	for _, slots := range []*fairslots.Slots{f.records.writes, f.records.archives} {
		for i := range writers() + 1 {
			turn := slots.Enter(string(rune('0' + i)))
			if err := turn.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(wait, turn.Release)
		}
		if !f.life.writeLive(t.Context(), b, f.records.writes.Enter("bob"), func() {}) {
			t.Fatal("not written")
		}
		f.reg.mu.Lock()
		if b.disk.took <= 0 || b.disk.took >= wait {
			t.Errorf("a write that waited %v for a slot took %v", wait, b.disk.took)
		}
		f.reg.mu.Unlock()
	}
}

// The agent of a box that is paused because its calls are parked does not answer: the archiving of
// its files ends, and its slot is free.
func TestWrite_FilesOfBoxThatIsParked(t *testing.T) {
	f, asked, _ := slowFiles(t)
	b := f.session(t, "bob", "x")
	saved := make(chan bool, 1)
	go func() { saved <- f.life.writeLive(t.Context(), b, f.records.writes.Enter("bob"), func() {}) }()
	<-asked
	b.activeCalls.Add(1)
	b.parked.Add(1)
	b.pauseParked()
	defer func() {
		b.parked.Add(-1)
		if err := b.resume(t.Context(), "test"); err != nil {
			t.Error(err)
		}
		b.activeCalls.Add(-1)
	}()
	select {
	case ok := <-saved:
		if !ok {
			t.Error("the write has failed, though the memory was on disk")
		}
	case <-time.After(5 * time.Second):
		t.Error("the agent of a paused box is still asked for its files")
	}
}

// The first write of a new box does not wait for the files of another one.
func TestSaveEarly_FilesHoldUpNoOther(t *testing.T) {
	f, asked, finish := slowFiles(t)
	b := f.session(t, "bob", "x")
	f.reg.mu.Lock()
	f.maintainer.earlyBusy = true // as its caller sets it
	f.reg.mu.Unlock()
	over := make(chan struct{})
	go func() {
		defer close(over)
		f.maintainer.writeEarly(b)
	}()
	<-asked
	f.reg.mu.Lock()
	if f.maintainer.earlyBusy {
		t.Error("while the files of a box are archived, no other new box is written")
	}
	f.reg.mu.Unlock()
	finish()
	<-over
}

// A box whose calls leave no pause is written during one: its memory first, and its files, which
// the call may be changing, when there is a pause.
func TestSave_DuringLongCall(t *testing.T) {
	f, asked, finish := slowFilesWith(t, func(c *Config) { c.PauseAfter = 10 * time.Minute })
	b := f.session(t, "bob", "x")
	end, err := b.begin(t.Context(), "run code")
	if err != nil {
		t.Fatal(err)
	}
	onDisk := func() bool {
		list, err := f.parts.Snapshots.List(nil)
		return err == nil && len(list) == 1 && !list[0].Written.IsZero() && list[0].Stale
	}
	f.maintainer.checkIdle()
	if polltest.Soon(100*time.Millisecond, onDisk) {
		t.Error("the box is written at the beginning of its first call")
	}
	f.clock.add(firstInCall)
	f.maintainer.checkIdle()
	eventually(t, "the box is on disk", onDisk)
	select {
	case <-asked:
		t.Error("the files were archived during the call")
	case <-time.After(100 * time.Millisecond):
	}
	end()
	f.clock.add(2 * saveEvery)
	f.maintainer.checkIdle()
	<-asked
	finish()
}

// A call waits for a box that another server, which is stopping, is still writing to disk: longer
// than for one that another server uses.
func TestAcquire_WaitsForServerThatStops(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	f.evict(t, b)
	record, err := f.records.find("test", b.key)
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := f.parts.Snapshots.Peek(record.ID)
	if err != nil {
		t.Fatal(err)
	}
	other, err := snapshot.Open(snapshot.Config{Dir: filepath.Join(dir, "../../..")})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lease, err := other.Acquire(record.ID)
	if err != nil {
		t.Fatal(err)
	}
	state := func() State {
		infos, err := f.Manager.List("bob", "")
		if err != nil || len(infos) != 1 {
			t.Fatalf("listed %v, %v", infos, err)
		}
		return infos[0].State
	}
	if s := state(); s != StateElsewhere {
		t.Errorf("while another server has it, the box is %q", s)
	}
	if err := other.Leave(); err != nil {
		t.Fatal(err)
	}
	if s := state(); s != StateLeaving {
		t.Errorf("while that server stops, the box is %q", s)
	}
	time.AfterFunc(handoverWait+time.Second, func() { lease.Release() })
	f.session(t, "bob", "x")
}

// TestClose_HeavyOwnerTakesNoRoomOfOthers: boxes of an owner that fill the store while they are in
// memory do not end the box of another owner when the server stops: it is written once they have
// left memory, in place of one of theirs.
func TestClose_HeavyOwnerTakesNoRoomOfOthers(t *testing.T) {
	const fits = 3
	f, snaps := newSnapFixtureWith(t, func(c *Config) { neverIdle(c); c.MaxPerOwner = 0 }, func(c *snapshot.Config) { c.MaxBytes = fits*largeSnapshot + largeSnapshot/2 })
	snaps.set(&snaps.large, true)
	for i := range fits {
		b := f.session(t, "alice", fmt.Sprint("a", i))
		if !f.maintainer.writeIfDue(b) {
			t.Fatal("alice's box was not written while it is in memory")
		}
	}
	b := f.session(t, "bob", "precious")
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.stateOf(b); got != stateHibernated {
		t.Errorf("after the stop, bob's box is %v, want it on disk", got)
	}
	owners := map[string]int{}
	list, err := f.parts.Snapshots.List(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		owners[r.Owner]++
	}
	if owners["bob"] != 1 || owners["alice"] != fits-1 {
		t.Errorf("after the stop, the disk has the boxes %v, want 1 of bob and %d of alice", owners, fits-1)
	}
}
