package box

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// limited checks the limits of the last network of a box, each as "of entry entry".
func (l *ledger) limited(t *testing.T, when, box string, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var got []string
	for _, limit := range l.limits[box] {
		got = append(got, strings.TrimSpace(limit.Of+" "+strings.Join(limit.Allow, " ")))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %s has the limits %q, want %q", when, box, got, want)
	}
}

// A narrowed box stays narrow, whatever becomes of it and whatever is made of it.
func TestNarrow_ForLife(t *testing.T) {
	f, _ := newSnapFixture(t, func(c *Config) { c.PauseAfter = 0 })
	nets := withLedger(f)
	narrow := SessionOptions{ID: "x", Network: []string{"b", "a", "a"}}
	b := f.sessionOf(t, "bob", narrow)
	wantOut(t, b, "print(1)", "1\n")
	nets.limited(t, "new", "bob/x", "box a b")

	f.clock.add(31 * time.Minute)
	f.maintainer.sweep()
	eventually(t, "the box is on disk", func() bool { return f.stateOf(b) == stateHibernated })
	b = f.session(t, "bob", "x")
	nets.limited(t, "woken", "bob/x", "box a b")
	if got := b.Info().Limits; len(got) != 1 {
		t.Errorf("info: got %v", got)
	}

	if _, _, err := f.Fork(t.Context(), "bob", KindSession, "x", ForkOptions{ID: "fork"}); err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "fork", "bob/fork", "box a b")
	saved, _, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "x", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{ID: "restored"}); err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "restored", "bob/restored", "box a b")

	// A wide snapshot does not widen a narrow box, nor a narrow one a box with another limit.
	f.session(t, "bob", "wide")
	nets.limited(t, "wide", "bob/wide")
	wide, _, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "wide", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Restore(t.Context(), "bob", KindSession, wide.ID, RestoreOptions{Into: "x"}); err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "a wide snapshot in a narrow box", "bob/x", "box a b")
	f.sessionOf(t, "bob", SessionOptions{ID: "other", Network: []string{"b"}})
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{Into: "other"}); err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "a narrow snapshot in another narrow box", "bob/other", "box a b", "box b")

	// After a crash with nothing on disk, the box that is made in its place is as narrow;
	// so is one whose server was killed. After its owner has stopped it, the id is free.
	crashed := f.sessionOf(t, "bob", SessionOptions{ID: "crashed", Network: []string{}})
	f.life.terminate(crashed, ReasonCrashed, "as the test wants")

	b, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "crashed"})
	if err != nil || hold.Lost == nil {
		t.Fatalf("after a crash: %v, %+v, want a new box in place of the lost one", err, hold)
	}
	hold.Release()
	nets.limited(t, "after a crash", "bob/crashed", "box")
	if _, err := f.Stop(t.Context(), "bob", KindSession, "crashed"); err != nil {
		t.Fatal(err)
	}
	f.session(t, "bob", "crashed")
	nets.limited(t, "after a stop", "bob/crashed")

	record, err := f.parts.Snapshots.Create(snapshot.Meta{Purpose: snapshot.Box, Owner: "bob", Kind: string(KindSession), BoxID: "killed", Interpreter: "python",
		Flavor: "small", Stale: true, Created: f.clock.Now(), Used: f.clock.Now(), Limits: snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{"a"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Release(); err != nil {
		t.Fatal(err)
	}
	f.session(t, "bob", "killed")
	nets.limited(t, "after the server was killed", "bob/killed", "box a")
	f.session(t, "alice", "killed")
	nets.limited(t, "of another owner", "alice/killed")
}

// Boxes of a template have its limit beside their own, and keep it when the template changes.
func TestNarrow_ByTemplate(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	nets := withLedger(f)
	added := addNamed(t, f, "bob", "data", true)
	limit := snapshot.NetLimits{{Of: snapshot.OfBox, Allow: []string{"a"}}}.ForTemplate()
	old, err := f.parts.Catalog.Put(t.Context(), catalog.Template{Name: "narrow", Owner: "bob", Base: "python", Flavor: "small", Limits: limit}, catalog.Details{}, 0, copyOf(t, f, added.ID))
	if err != nil {
		t.Fatal(err)
	}
	f.sessionOf(t, "bob", SessionOptions{ID: "x", Template: "narrow"})
	nets.limited(t, "by the template", "bob/x", "template a")
	f.sessionOf(t, "bob", SessionOptions{ID: "y", Template: "narrow", Network: []string{"a", "b"}})
	nets.limited(t, "by both", "bob/y", "template a", "box a b")
	closed := snapshot.NetLimits{{Of: snapshot.OfTemplate}}
	if _, err := f.parts.Catalog.Put(t.Context(), catalog.Template{Name: "closed", Owner: "bob", Base: "python", Flavor: "small", Limits: closed}, catalog.Details{}, 0, copyOf(t, f, added.ID)); err != nil {
		t.Fatal(err)
	}
	_, _, err = f.Session(t.Context(), "bob", SessionOptions{Template: "closed", Network: []string{"a"}})
	wantCode(t, err, CodeInvalid, "The template closed does not allow a")
	c, err := f.CreateContext(t.Context(), "bob", ContextOptions{Name: "c", Template: "narrow", Network: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "a context", "bob/"+c.ID(), "template a", "box")
	if err := f.parts.Catalog.Remove(old.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Fork(t.Context(), "bob", KindSession, "x", ForkOptions{ID: "z"}); err != nil {
		t.Fatal(err)
	}
	nets.limited(t, "a fork without the template", "bob/z", "template a")
}

// A box that exists is the one that the caller describes, or the call fails.
func TestNarrow_Errors(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	withLedger(f)
	f.sessionOf(t, "bob", SessionOptions{ID: "wide"})
	f.sessionOf(t, "bob", SessionOptions{ID: "narrow", Network: []string{"a", "b"}})
	f.sessionOf(t, "bob", SessionOptions{ID: "none", Network: []string{}})
	for _, want := range []SessionOptions{{ID: "wide"}, {ID: "narrow"}, {ID: "narrow", Network: []string{"b", "a"}}, {ID: "none", Network: []string{}}} {
		f.sessionOf(t, "bob", want)
	}
	for _, test := range []struct {
		want SessionOptions
		text string
	}{
		{SessionOptions{ID: "wide", Network: []string{"a"}}, "Session wide was made with the network that the policy allows, not [a]"},
		{SessionOptions{ID: "narrow", Network: []string{"a"}}, "Session narrow was made with the network [a, b], not [a]"},
		{SessionOptions{ID: "narrow", Network: []string{}}, "Session narrow was made with the network [a, b], not []"},
		{SessionOptions{ID: "none", Network: []string{"a", "b"}}, "Session none was made with the network [], not [a, b]"},
		{SessionOptions{ID: "narrow", Network: []string{"bad"}}, "bad is neither a preset nor a host"},
		{SessionOptions{ID: "new", Network: []string{"a", "evil.example"}}, "The policy does not allow evil.example"},
		{SessionOptions{Network: []string{"bad"}}, "bad is neither a preset nor a host"},
		{SessionOptions{ID: "new", Network: []string{"evil.example" + strings.Repeat("x", 1<<20)}}, "The policy does not allow"},
	} {
		_, _, err := f.Session(t.Context(), "bob", test.want)
		wantCode(t, err, CodeInvalid, test.text)
		if e, ok := err.(*Error); ok && (e.Context["field"] != "network" || e.Hint == "" || len(e.Msg) > 2*maxRefusal) {
			t.Errorf("%v: got %+v", test.want.ID, e)
		}
	}
	if f.reg.find(key{"bob", KindSession, "new"}) {
		t.Error("a session that was refused is there")
	}
	var long []string
	for i := range 100 {
		long = append(long, fmt.Sprintf("%d.example.org", i))
	}
	_, err := narrower("test", snapshot.NetLimits{{Of: snapshot.OfBox, Allow: long}}, snapshot.NetLimits{{Of: snapshot.OfTemplate, Allow: long}})
	wantCode(t, err, CodeInvalid, "lists of the box are too long")
}

// copyOf returns a writer of the memory of a template.
func copyOf(t *testing.T, f *fixture, id string) func(context.Context, string) error {
	t.Helper()
	return func(_ context.Context, dir string) error {
		from, release, err := f.parts.Catalog.Read(id)
		if err != nil {
			return err
		}
		defer release()
		b, err := os.ReadFile(filepath.Join(from, "memory"))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "memory"), b, 0o600)
	}
}
