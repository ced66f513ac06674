package box

import (
	"errors"
	"testing"
)

// While the directory of records cannot be read, no box is taken for one that does not
// exist: nothing is made in its place, and no list leaves it out.
func TestRecords_ListingFails(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	f.evict(t, f.session(t, "bob", "x"))
	created, _, _ := f.engine.counts()
	if err := f.parts.Snapshots.Close(); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"session": func() error { _, _, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"}); return err },
		"context": func() error { _, _, err := f.Context(t.Context(), "bob", "x"); return err },
		"find":    func() error { _, err := f.Find("bob", "x"); return err },
		"list":    func() error { _, err := f.Manager.List("bob", ""); return err },
		"stop":    func() error { _, err := f.Stop(t.Context(), "bob", KindSession, "x"); return err },
		"files":   func() error { _, err := f.StoredFiles("bob", KindSession, "x"); return err },
		"fork": func() error {
			_, err := f.fork(t.Context(), "bob", KindSession, "x", ForkOptions{})
			return err
		},
		"snapshots": func() error { _, err := f.Snapshots("bob"); return err },
		"restore": func() error {
			_, err := f.Restore(t.Context(), "bob", KindSession, "snapshot", RestoreOptions{})
			return err
		},
		"delete": func() error { return f.DeleteSnapshot("bob", "snapshot") },
	} {
		err := do()
		if CodeOf(err) != CodeNotReady {
			t.Errorf("%s: got %v, want the code %s", name, err, CodeNotReady)
		}
		if e, ok := errors.AsType[*Error](err); ok && e.Hint == "" {
			t.Errorf("%s: the error %v says not what to do", name, err)
		}
	}
	if now, _, _ := f.engine.counts(); now != created {
		t.Errorf("%d guests were made meanwhile", now-created)
	}
}
