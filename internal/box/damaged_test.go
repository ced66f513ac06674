package box

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// TestDamaged_RecordIsReported: what the disk has of a hibernated box is damaged. The next call on its
// id makes a new one, and says so, also if the record was listed before the damage, and at a server
// that was started after it.
func TestDamaged_RecordIsReported(t *testing.T) {
	for when, later := range map[string]bool{"while the server runs": false, "before the server starts": true} {
		for part, spoil := range map[string]func(dir string) error{
			"description": func(dir string) error { return flip(filepath.Join(dir, "saved.json")) },
			"data": func(dir string) error {
				data, err := filepath.Glob(filepath.Join(dir, "data-*"))
				if err != nil || len(data) != 1 {
					t.Fatalf("got %v, %v", data, err)
				}
				return os.RemoveAll(data[0])
			},
		} {
			t.Run(part+" "+when, func(t *testing.T) {
				store := filepath.Join(t.TempDir(), "snapshots")
				open := func() *fixture {
					f, _ := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.Dir = store })
					return f
				}
				f := open()
				b := f.session(t, "bob", "x")
				run(t, b, "x = 41")
				f.evict(t, b)
				f.evict(t, f.session(t, "bob", "fine"))
				f.List("bob", KindSession)
				r, err := f.records.find("test", b.key)
				if err != nil || r == nil {
					t.Fatalf("got %v, %v", r, err)
				}
				if later { // no sweep of this server may see it
					if err := f.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := spoil(filepath.Join(store, "records", r.ID)); err != nil {
					t.Fatal(err)
				}
				if later {
					f = open()
				}
				_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
				if err != nil {
					t.Fatal(err)
				}
				defer hold.Release()
				if !hold.Created || hold.Lost == nil || hold.Lost.Reason != ReasonUnreadable || !strings.Contains(hold.Lost.Explain(time.Now()), "its record on disk was damaged") {
					t.Errorf("the next call: got %+v, want that the record was damaged", hold)
				}
				if _, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "fine"}); err != nil || hold.Woken == nil {
					t.Errorf("a box beside it: got %+v, %v", hold, err)
				}
			})
		}
	}
}

// flip changes the checksum in the description of a record.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const before = `"sum":"`
	i := strings.Index(string(b), before)
	if i < 0 {
		return fmt.Errorf("%s has no checksum: %s", path, b)
	}
	b[i+len(before)] ^= 1
	return os.WriteFile(path, b, 0o600)
}

// TestRescue_Damaged: nothing promises to restore a state that is damaged.
func TestRescue_Damaged(t *testing.T) {
	r := Rescue{Why: "it is damaged", Files: true, SnapshotID: "snap"}
	if said := r.Explain(); !strings.Contains(said, "can be restored") {
		t.Errorf("of one that is not damaged: %s", said)
	}
	r.Damaged = true
	if said := r.Explain(); strings.Contains(said, "can be restored") || !strings.Contains(said, "snap") {
		t.Errorf("got %s", said)
	}
}

// TestDamaged_NarrowBox: if the limits of the network of a box with a damaged record cannot be noted,
// no box without them takes its place, and no copy does even if they can.
func TestDamaged_NarrowBox(t *testing.T) {
	for _, how := range []string{"session", "fork", "fork that knows"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			a := serverOn(t, dir, func(*fixture, *snapshot.Config) {})
			withLedger(a)
			b := a.sessionOf(t, "bob", SessionOptions{ID: "s", Network: []string{}})
			run(t, b, "x = 1")
			a.evict(t, b)
			r, err := a.records.find("test", b.key)
			if err != nil || r == nil {
				t.Fatalf("got %v, %v", r, err)
			}
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := a.parts.Snapshots.Close(); err != nil {
				t.Fatal(err)
			}
			next := serverOn(t, dir, func(*fixture, *snapshot.Config) {})
			nets := withLedger(next)
			next.session(t, "bob", "other")
			if err := flip(filepath.Join(dir, "snapshots", "records", r.ID, "saved.json")); err != nil {
				t.Fatal(err)
			}
			if how != "fork that knows" {
				if err := os.WriteFile(next.parts.Tombstones, []byte("damaged"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if how == "session" {
				_, _, err = next.Session(t.Context(), "bob", SessionOptions{ID: "s"})
			} else {
				_, err = next.fork(t.Context(), "bob", KindSession, "other", ForkOptions{ID: "s"})
			}
			if how == "fork that knows" && err == nil {
				nets.limited(t, how, "bob/s", "box")
				return
			}
			wantCode(t, err, CodeInternal, "could not be noted")
		})
	}
}

// TestDamaged_CallsAtOnce: of calls at once on a box whose data are gone, one reports it, and none
// fails.
func TestDamaged_CallsAtOnce(t *testing.T) {
	store := filepath.Join(t.TempDir(), "snapshots")
	f, _ := newSnapFixtureWith(t, neverIdle, func(c *snapshot.Config) { c.Dir = store })
	for i := range 5 {
		id := fmt.Sprint("x", i)
		b := f.session(t, "bob", id)
		f.evict(t, b)
		r, err := f.records.find("test", b.key)
		if err != nil || r == nil {
			t.Fatalf("got %v, %v", r, err)
		}
		data, err := filepath.Glob(filepath.Join(store, "records", r.ID, "data-*"))
		if err != nil || len(data) != 1 || os.RemoveAll(data[0]) != nil {
			t.Fatalf("got %v, %v", data, err)
		}
		var calls sync.WaitGroup
		var reports atomic.Int32
		for range 8 {
			calls.Go(func() {
				_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: id})
				if err != nil {
					t.Error(err)
				}
				if hold.Lost != nil {
					reports.Add(1)
				}
			})
		}
		calls.Wait()
		if reports.Load() == 0 {
			t.Error("no call reports the loss")
		}
	}
}

// TestReasonOf_NoPath: clients learn no directory of the host from the error of a file.
func TestReasonOf_NoPath(t *testing.T) {
	dir := t.TempDir()
	if err := writeHomeInfo(dir, &homeInfo{Format: homeFormat}); err != nil {
		t.Fatal(err)
	}
	_, _, err := openHome(dir)
	if text := reasonOf(err); strings.Contains(text, dir) || !strings.Contains(text, homeTar) {
		t.Errorf("got %s", text)
	}
}
