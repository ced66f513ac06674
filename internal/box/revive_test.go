package box

import (
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// A session that was lost comes back with its own template, language and flavor, not with
// the default ones, unless its owner asks for others or had stopped it.
func TestSession_LostComesBackAsItWas(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	added := addNamed(t, f, "alice", "data", true)
	crash := func(b *Box) {
		t.Helper()
		f.engine.last().exit <- engine.Exit{Reason: engine.ExitCrashed}
		eventually(t, "the box has ended", b.ended)
	}
	back := func(what string, want SessionOptions, template string, interpreter Interpreter, flavor Flavor, lost bool) *Box {
		t.Helper()
		b, hold, err := f.Session(t.Context(), "alice", want)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer hold.Release()
		if i := b.Info(); i.Template != template || i.Interpreter != interpreter || i.Flavor != flavor || (hold.Lost != nil) != lost {
			t.Errorf("%s: got %q, %s, %s, lost %v", what, i.Template, i.Interpreter, i.Flavor, hold.Lost)
		}
		return b
	}
	crash(back("new", SessionOptions{ID: "s", Flavor: FlavorLarge}, "", InterpreterPython, FlavorLarge, false))
	crash(back("crashed", SessionOptions{ID: "s"}, "", InterpreterPython, FlavorLarge, true))
	crash(back("crashed, another flavor", SessionOptions{ID: "s", Flavor: FlavorMedium}, "", InterpreterPython, FlavorMedium, true))

	crash(back("new, named", SessionOptions{ID: "n", Template: "data"}, "data", InterpreterPython, FlavorMedium, false))
	crash(back("crashed, named", SessionOptions{ID: "n"}, "data", InterpreterPython, FlavorMedium, true))
	crash(back("crashed, named, its flavor", SessionOptions{ID: "n", Flavor: FlavorMedium}, "data", InterpreterPython, FlavorMedium, true))
	if err := f.parts.Catalog.Remove(added.ID); err != nil {
		t.Fatal(err)
	}
	back("without its template", SessionOptions{ID: "n"}, "", InterpreterPython, FlavorMedium, true)
	if _, err := f.Stop(t.Context(), "alice", KindSession, "n"); err != nil {
		t.Fatal(err)
	}
	back("stopped", SessionOptions{ID: "n"}, "", InterpreterPython, FlavorSmall, true)

	if interpreters()[JavaScript] == "" {
		t.Skip("no node on this machine")
	}
	crash(back("new, JavaScript", SessionOptions{ID: "j", Interpreter: InterpreterNode}, "", InterpreterNode, FlavorSmall, false))
	back("crashed, JavaScript", SessionOptions{ID: "j"}, "", InterpreterNode, FlavorSmall, true)
}
