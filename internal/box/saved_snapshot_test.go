package box

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// A name that several snapshots have is an error that lists their ids, the newest first.
func TestSnapshots_OfOneName(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	f.session(t, "bob", "x")
	var ids []string
	for range 4 {
		s, hold, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "x", SnapshotOptions{Name: "before"})
		if err != nil {
			t.Fatal(err)
		}
		hold.Release()
		ids = append(ids, s.ID)
		f.clock.add(time.Second)
	}
	_, restored := f.Restore(t.Context(), "bob", KindSession, "before", RestoreOptions{Into: "x"})
	for what, err := range map[string]error{"restore": restored, "delete": f.DeleteSnapshot("bob", "before")} {
		if CodeOf(err) != CodeInvalid || !strings.Contains(err.Error(), "4 snapshots are named 'before'") {
			t.Errorf("%s: got %v", what, err)
			continue
		}
		hint, rest := err.(*Error).Hint, 0
		for _, id := range []string{ids[3], ids[2], ids[1], "and older ones"} {
			i := strings.Index(hint[rest:], id)
			if i < 0 {
				t.Errorf("%s: the hint is %q, want %v, the newest first, and that there are older ones", what, hint, ids)
				break
			}
			rest += i
		}
	}
	for _, id := range ids[1:] {
		if err := f.DeleteSnapshot("bob", id); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.DeleteSnapshot("bob", "before"); err != nil {
		t.Errorf("delete the only snapshot of the name: %v", err)
	}
}

// An agent may take twenty seconds to archive its files for a snapshot. The memory of other boxes
// is written meanwhile, and the snapshot counts once.
func TestSaveSnapshot_MemoryOfOthersDoesNotWaitForFiles(t *testing.T) {
	n := writers() + 1
	f, _ := newSnapFixture(t, neverIdle)
	done := make(chan struct{})
	finish := sync.OnceFunc(func() { close(done) })
	var saves sync.WaitGroup
	defer saves.Wait()
	defer finish()
	var archiving atomic.Int32
	f.engine.dial = func() io.ReadWriteCloser {
		return fakeAgent(t, func() (string, protocol.BackupResult) {
			archiving.Add(1)
			<-done
			return "archive", protocol.BackupResult{Mark: "m"}
		})
	}
	for i := range n { // with the slot for an owner who has none
		owner := Owner("owner " + string(rune('a'+i)))
		f.session(t, owner, "x")
		saves.Go(func() {
			_, hold, err := f.SaveSnapshot(t.Context(), owner, KindSession, "x", SnapshotOptions{})
			hold.Release()
			if err != nil {
				t.Errorf("save a snapshot for %s: %v", owner, err)
			}
		})
	}
	eventually(t, "files are archived", func() bool { return int(archiving.Load()) == n })
	wait, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	leave, err := f.records.writes.Acquire(wait, "bob")
	if err != nil {
		t.Errorf("a slot to write memory while the files of %d boxes are archived: %v", n, err)
	}
	leave()
	if list, err := f.Snapshots("owner a"); err != nil || len(list) != 0 {
		t.Errorf("snapshots before the files are stored: got %v, %v; want none", list, err)
	}
	end, err := f.records.beginSave("test", "owner a", 2)
	if err != nil {
		t.Errorf("a second snapshot, of two, while the files of the first are archived: %v", err)
	} else {
		end()
	}
	finish()
	saves.Wait()
	list, err := f.Snapshots("owner a")
	if err != nil || len(list) != 1 {
		t.Fatalf("snapshots: got %v, %v; want one", list, err)
	}
	if info, err := f.homeOf(t, list[0].ID); err != nil || info.Mark != "m" {
		t.Errorf("the files of the snapshot: got %+v, %v", info, err)
	}
}

// A snapshot whose call is cancelled while its files are archived is not kept: the caller does not
// learn its id.
func TestSaveSnapshot_CancelledWhileFilesAreArchived(t *testing.T) {
	f, asked, _ := slowFiles(t)
	f.session(t, "bob", "x")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, _, err := f.SaveSnapshot(ctx, "bob", KindSession, "x", SnapshotOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the call was cancelled", err)
	}
	if list, err := f.Snapshots("bob"); err != nil || len(list) != 0 {
		t.Errorf("snapshots: got %v, %v; want none", list, err)
	}
}

// A box that ends while a snapshot or a copy of it is written is reported like any box that ends.
func TestSaveSnapshot_BoxEndsMeanwhile(t *testing.T) {
	for what, write := range map[string]func(f *fixture) error{
		"snapshot": func(f *fixture) error {
			_, _, err := f.SaveSnapshot(context.Background(), "bob", KindSession, "x", SnapshotOptions{})
			return err
		},
		"fork": func(f *fixture) error {
			_, _, err := f.Fork(context.Background(), "bob", KindSession, "x", ForkOptions{})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			f, snaps := newSnapFixture(t, neverIdle)
			f.session(t, "bob", "x")
			guest := f.engine.last()
			hold := make(chan struct{})
			snaps.mu.Lock()
			snaps.hold, snaps.gone = hold, true
			snaps.mu.Unlock()
			wrote := make(chan error, 1)
			go func() { wrote <- write(f) }()
			eventually(t, "it is being written", func() bool { snaps.mu.Lock(); defer snaps.mu.Unlock(); return snaps.writes > 0 })
			guest.exit <- engine.Exit{Reason: engine.ExitOOM}
			close(hold)
			wantCode(t, <-wrote, CodeGone, "ran out of memory")
			if list, err := f.Snapshots("bob"); err != nil || len(list) != 0 {
				t.Errorf("snapshots: got %v, %v; want none", list, err)
			}
			f.wantIDs(t, "bob")
		})
	}
}

// The earlier state of a box, which the store may evict, stays while room is made to restore it.
func TestRestore_MakesNoRoomOfItsSnapshot(t *testing.T) {
	f, snaps := newSnapFixtureWith(t, func(c *Config) { neverIdle(c); c.MaxSessions = 1 }, func(c *snapshot.Config) { c.MaxBytes = largeSnapshot + 1<<10 })
	now := f.clock.Now()
	meta := snapshot.Meta{
		Purpose: snapshot.Box, Owner: "bob", Kind: string(KindSession), BoxID: "earlier", Interpreter: string(InterpreterPython), Flavor: string(FlavorSmall),
		Created: now, Used: now, Written: now, Aside: "as the test wants",
	}
	lease, err := f.parts.Snapshots.Create(meta)
	if err == nil {
		err = lease.Write(t.Context(), meta, 0, func(_ context.Context, dir string) error {
			return os.WriteFile(filepath.Join(dir, "memory"), make([]byte, 2<<10), 0o600)
		})
	}
	if err = errors.Join(err, lease.Release()); err != nil {
		t.Fatal(err)
	}
	f.session(t, "bob", "x")
	snaps.set(&snaps.large, true) // it can leave memory only where the earlier state is
	_, err = f.Restore(t.Context(), "bob", KindSession, lease.ID(), RestoreOptions{})
	wantCode(t, err, CodeLimit, "could not be written to disk")
	if list, err := f.Snapshots("bob"); err != nil || len(list) != 1 {
		t.Errorf("snapshots: got %v, %v; want the earlier state", list, err)
	}
	f.wantIDs(t, "bob", "x")
}
