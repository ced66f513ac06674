package box

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// serverOn returns a server on a state directory, with another configuration of its store.
func serverOn(t *testing.T, dir string, with func(*fixture, *snapshot.Config)) *fixture {
	t.Helper()
	return newFixtureWith(t, nil, func(f *fixture, parts *Parts) {
		store := snapshot.Config{Dir: filepath.Join(dir, "snapshots"), MaxBytes: 1 << 30, Now: f.clock.Now}
		with(f, &store)
		var err error
		if parts.Snapshots, err = snapshot.Open(store); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { parts.Snapshots.Close() })
		parts.Tombstones = filepath.Join(dir, "tombstones.json")
		parts.Machines.Engine = &snapEngine{Engine: parts.Machines.Engine}
		parts.Scratch = []string{t.TempDir()}
	})
}

// Of two servers on a state directory, the one that did not lose a narrow box makes its next
// box of that id as narrow, at once: also in a fork, and when the store removes the record.
func TestNarrow_AfterALossOnAnotherServer(t *testing.T) {
	dir := t.TempDir()
	a := serverOn(t, dir, func(*fixture, *snapshot.Config) {})
	withLedger(a)
	b := serverOn(t, dir, func(*fixture, *snapshot.Config) {})
	nets := withLedger(b)
	b.session(t, "bob", "other") // it has read the file, or found none
	for _, id := range []string{"crashed", "forked", "stopped"} {
		a.sessionOf(t, "bob", SessionOptions{ID: id, Network: []string{}})
	}
	for _, id := range []string{"crashed", "forked"} {
		lost := a.session(t, "bob", id)
		a.life.terminate(lost, ReasonCrashed, "as the test wants")
		// The record stays until the limits are in the file: this waits for its removal.
		eventually(t, id+" has left the server", func() bool {
			r, err := b.records.find("test", key{"bob", KindSession, id})
			return err == nil && r == nil
		})
	}
	if _, err := a.Stop(t.Context(), "bob", KindSession, "stopped"); err != nil {
		t.Fatal(err)
	}
	b.session(t, "bob", "crashed")
	nets.limited(t, "after a crash on the other server", "bob/crashed", "box")
	if _, err := b.fork(t.Context(), "bob", KindSession, "other", ForkOptions{ID: "forked"}); err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "a fork in place of a box of the other server", "bob/forked", "box")
	b.session(t, "bob", "stopped")
	nets.limited(t, "after a stop on the other server", "bob/stopped")

	// The store of one server removes records of boxes that both know of, for each reason.
	limits := snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{"a"}}}
	var removed []snapshot.Removal
	for _, why := range []snapshot.Why{snapshot.Evicted, snapshot.Age, snapshot.Lost, snapshot.Damaged} {
		removed = append(removed, snapshot.Removal{Why: why, Record: snapshot.Record{Meta: snapshot.Meta{
			Purpose: snapshot.Box, Owner: "bob", Kind: string(KindSession), BoxID: string(why), Interpreter: "python", Flavor: "small", Limits: limits}}})
	}
	if stay, err := a.life.remember(removed); err != nil || len(stay) > 0 {
		t.Errorf("removing records whose limits can be shared: %q, %v", stay, err)
	}
	for _, r := range removed {
		b.session(t, "bob", r.BoxID)
		nets.limited(t, "after the other server removed a record as "+string(r.Why), "bob/"+r.BoxID, "box a")
	}
}

// The limits of a box whose record a sweep removes are in the file of all servers before the
// record is gone: a server that is killed in between forgets none.
func TestNarrow_BeforeASweepRemovesTheRecord(t *testing.T) {
	var mu sync.Mutex                       // the server sweeps, too
	shared := make(map[string]snapshot.Why) // why each record was removed that was there with its limits in the file
	f := serverOn(t, t.TempDir(), func(f *fixture, cfg *snapshot.Config) {
		cfg.MaxAge = time.Hour
		f.opened = func() {
			f.parts.Snapshots.BeforeRemove(func(removed []snapshot.Removal) ([]string, error) {
				stay, failed := f.life.remember(removed)
				tombstones := f.life.maintainer.tombstoneFile()
				file, err := tombstones.Read()
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, r := range removed {
					_, err := os.Stat(filepath.Join(cfg.Dir, "records", r.ID))
					known := slices.ContainsFunc(file, func(t Tombstone) bool { return t.ID == r.BoxID && len(t.Limits) > 0 })
					if err == nil && known {
						shared[r.BoxID] = r.Why
					}
				}
				return stay, failed
			})
		}
	})
	meta := func(id string) snapshot.Meta {
		now := f.clock.Now()
		return snapshot.Meta{Purpose: snapshot.Box, Owner: "bob", Kind: string(KindSession), BoxID: id, Interpreter: "python", Flavor: "small",
			Limits: snapshot.NetLimits{{Of: snapshot.OfBox}}, Created: now, Used: now}
	}
	for _, id := range []string{"lost", "old", "old too"} {
		lease, err := f.parts.Snapshots.Create(meta(id))
		if err == nil && id != "lost" {
			err = lease.Write(t.Context(), meta(id), 0, func(context.Context, string) error { return nil })
		}
		if err = errors.Join(err, lease.Release()); err != nil {
			t.Fatal(err)
		}
	}
	f.clock.add(2 * time.Hour)
	f.life.maintainer.sweepDisk()
	want := map[string]snapshot.Why{"lost": snapshot.Lost, "old": snapshot.Age, "old too": snapshot.Age}
	if !maps.Equal(shared, want) {
		t.Errorf("the limits of these were shared while the record was there: %v, want %v", shared, want)
	}
}

// A narrow box whose limits cannot be written to the file of all servers keeps its record, and
// other servers do not learn that it is gone, until a sweep can write them. Other boxes go meanwhile.
func TestNarrow_RecordStaysUntilItsLimitsAreShared(t *testing.T) {
	dir := t.TempDir()
	f := serverOn(t, dir, func(_ *fixture, cfg *snapshot.Config) { cfg.MaxAge = time.Hour })
	meta := func(id string, limits snapshot.NetLimits) snapshot.Meta {
		now := f.clock.Now()
		return snapshot.Meta{Purpose: snapshot.Box, Owner: "bob", Kind: string(KindSession), BoxID: id, Interpreter: "python", Flavor: "small",
			Limits: limits, Created: now, Used: now}
	}
	for id, limits := range map[string]snapshot.NetLimits{"narrow": {{Of: snapshot.OfBox}}, "wide": nil} {
		lease, err := f.parts.Snapshots.Create(meta(id, limits))
		if err == nil {
			err = lease.Write(t.Context(), meta(id, limits), 0, func(context.Context, string) error { return nil })
		}
		if err = errors.Join(err, lease.Release()); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when, id string, wantRecord bool) {
		t.Helper()
		k := key{"bob", KindSession, id}
		r, err := f.records.find("test", k)
		if err != nil || (r != nil) != wantRecord || (f.reg.tombstoneOf(k) == nil) != wantRecord {
			t.Errorf("%s: %s has the record %+v (%v) and the tombstone %+v; want a record: %v, else a tombstone", when, id, r, err, f.reg.tombstoneOf(k), wantRecord)
		}
	}
	// The file cannot be replaced, as on a full disk, also by root.
	if err := os.WriteFile(f.parts.Tombstones, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.clock.add(2 * time.Hour)
	f.life.maintainer.sweepDisk()
	check("without a file", "narrow", true)
	check("without a file", "wide", false)
	if err := os.Remove(f.parts.Tombstones); err != nil {
		t.Fatal(err)
	}
	f.life.maintainer.sweepDisk()
	check("with a file", "narrow", false)
	f.reg.mu.Lock()
	ended := f.reg.ended[ReasonIdle]
	f.reg.mu.Unlock()
	if ended != 2 {
		t.Errorf("%d boxes are counted as expired, want 2", ended)
	}
	tombstones := f.life.maintainer.tombstoneFile()
	file, err := tombstones.Read()
	if err != nil || !slices.ContainsFunc(file, func(t Tombstone) bool { return t.ID == "narrow" && len(t.Limits) > 0 }) {
		t.Errorf("the file has %+v, %v, want the limits of narrow", file, err)
	}
}

// The record of a narrow box that ends while its limits cannot be written to the file of all servers
// stays: the next box of that id is as narrow on every server, and its owner learns why the box ended.
// A box that its owner stops leaves no limits.
func TestNarrow_RecordOfAnEndedBoxStaysUntilItsLimitsAreShared(t *testing.T) {
	dir := t.TempDir()
	a := serverOn(t, dir, func(*fixture, *snapshot.Config) {})
	withLedger(a)
	b := serverOn(t, dir, func(*fixture, *snapshot.Config) {})
	nets := withLedger(b)
	for _, id := range []string{"crashed", "swept", "stopped"} {
		a.sessionOf(t, "bob", SessionOptions{ID: id, Network: []string{}})
	}
	// The file cannot be replaced, as on a full disk, also by root.
	file := a.parts.Tombstones
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"crashed", "swept"} {
		lost := a.session(t, "bob", id)
		a.clock.add(time.Second)
		a.life.terminate(lost, ReasonCrashed, "as the test wants")
		<-lost.unloadDone
	}
	if _, err := a.Stop(t.Context(), "bob", KindSession, "stopped"); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"crashed": true, "swept": true, "stopped": false} {
		r, err := b.records.find("test", key{"bob", KindSession, id})
		if err != nil || (r != nil) != want {
			t.Errorf("%s has the record %+v, %v; want one: %t", id, r, err, want)
		}
	}
	if box, _, err := b.Session(t.Context(), "bob", SessionOptions{ID: "crashed"}); err == nil || !strings.Contains(err.Error(), "limits of its network could not be noted") {
		t.Errorf("the box while its limits cannot be shared: %v, %v, want an error", box, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.session(t, "bob", "crashed")
	nets.limited(t, "after a crash whose limits could not be shared", "bob/crashed", "box")
	b.session(t, "bob", "stopped")
	nets.limited(t, "after a stop", "bob/stopped")
	a.clock.add(time.Hour)
	a.life.maintainer.sweepDisk()
	k := key{"bob", KindSession, "swept"}
	r, err := a.records.find("test", k)
	if tomb := a.reg.tombstoneOf(k); err != nil || r != nil || tomb == nil || tomb.Reason != ReasonCrashed || len(tomb.Limits) == 0 {
		t.Errorf("after a sweep: the record %+v, %v, and the tombstone %+v; want the crash and its limits", r, err, tomb)
	}
}

// The state of a box from before a rollback does not stay on disk, also if the limits of its network
// cannot be shared: it would come back once the box is stopped, or lost. The box has these limits.
func TestNarrow_RolledBackBoxLeavesNoRecord(t *testing.T) {
	f := serverOn(t, t.TempDir(), func(*fixture, *snapshot.Config) {})
	withLedger(f)
	box := f.sessionOf(t, "bob", SessionOptions{ID: "s", Network: []string{}})
	saved, err := f.saveSnapshot(t.Context(), "bob", KindSession, "s", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.evict(t, box)
	old := f.session(t, "bob", "s") // its record has data
	// The file cannot be replaced, as on a full disk, also by root.
	if err := os.WriteFile(f.parts.Tombstones, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{Into: "s"}); err != nil {
		t.Fatal(err)
	}
	<-old.unloadDone
	if _, err := f.Stop(t.Context(), "bob", KindSession, "s"); err != nil {
		t.Fatal(err)
	}
	if r, err := f.records.find("test", key{"bob", KindSession, "s"}); r != nil || err != nil {
		t.Errorf("after the box was rolled back and stopped, there is the record %+v, %v; want none", r, err)
	}
}
