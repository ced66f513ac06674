package box

import (
	"path/filepath"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// Of two servers on a state directory, the one that did not lose a narrow box makes its next
// box of that id as narrow, at once: also in a fork, and when the store removes the record.
func TestNarrow_AfterALossOnAnotherServer(t *testing.T) {
	dir := t.TempDir()
	server := func() (*fixture, *ledger) {
		f := newFixtureWith(t, nil, func(f *fixture, parts *Parts) {
			var err error
			parts.Snapshots, err = snapshot.Open(snapshot.Config{Dir: filepath.Join(dir, "snapshots"), MaxBytes: 1 << 30, Now: f.clock.Now,
				Evicted: func(r snapshot.Removed) { f.OnEvicted(r) }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { parts.Snapshots.Close() })
			parts.Tombstones = filepath.Join(dir, "tombstones.json")
			parts.Machines.Engine = &snapEngine{Engine: parts.Machines.Engine}
			parts.Scratch = []string{t.TempDir()}
		})
		return f, withLedger(f)
	}
	a, _ := server()
	b, nets := server()
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

	a.OnEvicted(snapshot.Removed{Why: snapshot.Quota, Record: snapshot.Record{Meta: snapshot.Meta{Class: snapshot.Box, Owner: "bob", Kind: string(KindSession),
		BoxID: "evicted", Template: "python", Flavor: "small", Limits: snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{"a"}}}}}})
	b.session(t, "bob", "evicted")
	nets.limited(t, "after the other server's store made room", "bob/evicted", "box a")
}
