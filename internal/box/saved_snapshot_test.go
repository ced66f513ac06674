package box

import (
	"strings"
	"testing"
	"time"
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
