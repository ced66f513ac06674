package enginetest

import (
	"context"
	"reflect"
	"regexp"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
)

func contractTests() []test {
	return []test{
		{"info-is-constant", testInfoConstant},
		{"info-is-complete", testInfoComplete},
		{"abilities-of-unknown-guests-are-gone", testAbilitiesUnknown},
		{"guest-has-its-id", testGuestID},
	}
}

func testInfoConstant(t *tester) {
	first := t.e.Info()
	first.Limits = slices.Clone(first.Limits)
	t.create(t.spec())
	second := t.e.Info()
	if !reflect.DeepEqual(first, second) {
		t.Errorf("Info was %+v and is %+v after a guest", first, second)
	}
	for i := range second.Limits {
		second.Limits[i] = engine.Limit{} // the caller's own
	}
	if third := t.e.Info(); !reflect.DeepEqual(first, third) {
		t.Errorf("Info was %+v and is %+v after a caller has changed the limits it got", first, third)
	}
}

func testInfoComplete(t *tester) {
	info := t.e.Info()
	if !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(info.Name) {
		t.Errorf("name %q is not a word of a-z, 0-9, -", info.Name)
	}
	if info.Version == "" {
		t.Error("no version")
	}
	switch info.Isolation {
	case engine.IsolationNone, engine.IsolationKernel, engine.IsolationVM, engine.IsolationPod:
	default:
		t.Errorf("isolation %q is none of the set", info.Isolation)
	}
	var seen []string
	for _, l := range info.Limits {
		if !slices.Contains([]string{"cpu", "memory", "disk", "pids"}, l.Resource) {
			t.Errorf("limit of %q, which is no resource", l.Resource)
		}
		if slices.Contains(seen, l.Resource) {
			t.Errorf("two limits of %q", l.Resource)
		}
		seen = append(seen, l.Resource)
		if l.By == "" {
			t.Errorf("limit of %q does not say what holds it", l.Resource)
		}
		if l.Hard != (l.Why == "") {
			t.Errorf("limit of %q: hard is %t and the reason why not is %q", l.Resource, l.Hard, l.Why)
		}
	}
}

// testAbilitiesUnknown calls every optional method with an unknown guest id.
func testAbilitiesUnknown(t *tester) {
	t.create(t.probeSpec("echo")) // another guest lives
	id := newID()
	gone := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		t.wantErr(what+" of an unknown guest", t.call(what, f), engine.ErrGone)
	}
	if p, ok := engine.As[engine.Pauser](t.e); ok {
		gone("pause", func(ctx context.Context) error { return p.Pause(ctx, id) })
		gone("resume", func(ctx context.Context) error { return p.Resume(ctx, id) })
	}
	if s, ok := engine.As[engine.Statser](t.e); ok {
		gone("stats", func(ctx context.Context) error { _, err := s.Stats(ctx, id); return err })
	}
	if s, ok := engine.As[engine.Snapshotter](t.e); ok {
		dir := t.TempDir()
		gone("snapshot", func(ctx context.Context) error { _, err := s.Snapshot(ctx, id, dir); return err })
		t.checkDir("directory", dir)
	}
	if r, ok := engine.As[engine.Recoverer](t.e); ok {
		gone("state", func(ctx context.Context) error { _, err := r.State(ctx, id); return err })
		gone("detach", func(ctx context.Context) error { return r.Detach(ctx, id) })
	}
}

func testGuestID(t *tester) {
	for _, id := range []string{"a", "-", "0-z", "a123456789-123456789-123456789-123456789-123456789-123456789-123"} {
		var g engine.Guest
		err := t.call("create", func(ctx context.Context) (err error) {
			g, err = t.e.Create(ctx, id, t.probeSpec("echo"))
			return err
		})
		t.must("create "+id, err)
		t.own(g)
		if g.ID() != id {
			t.Errorf("guest created as %q says it is %q", id, g.ID())
		}
	}
}
