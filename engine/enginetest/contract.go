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
		{"caps-match-interfaces", testCaps},
		{"caps-are-found-through-wrappers", testCapsWrapped},
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
	if known := engine.CapPauser | engine.CapStatser | engine.CapSnapshotter | engine.CapRestorer; info.Caps&^known != 0 {
		t.Errorf("caps %b have bits that mean nothing", info.Caps)
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

func testCaps(t *tester) { t.checkCaps(t.create(t.spec()).Guest) }

// wrapper is a decorator as layers above the engine make them.
type wrapper struct {
	engine.Guest
}

// Unwrap returns what is decorated.
func (w wrapper) Unwrap() engine.Guest { return w.Guest }

func testCapsWrapped(t *tester) { t.checkCaps(wrapper{wrapper{t.create(t.spec()).Guest}}) }

func (t *tester) checkCaps(g engine.Guest) {
	t.Helper()
	caps := t.e.Info().Caps
	_, pauser := engine.As[engine.Pauser](g)
	_, statser := engine.As[engine.Statser](g)
	_, snapshotter := engine.As[engine.Snapshotter](g)
	_, restorer := t.e.(engine.Restorer)
	for _, c := range []struct {
		name    string
		claimed bool
		there   bool
	}{
		{"Pauser", caps.Has(engine.CapPauser), pauser},
		{"Statser", caps.Has(engine.CapStatser), statser},
		{"Snapshotter", caps.Has(engine.CapSnapshotter), snapshotter},
		{"Restorer", caps.Has(engine.CapRestorer), restorer},
	} {
		if c.claimed != c.there {
			t.Errorf("%s: claimed by Info is %t, implemented is %t", c.name, c.claimed, c.there)
		}
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
