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
	back := func(what string, want SessionOptions, named string, template Template, flavor Flavor, lost bool) *Box {
		t.Helper()
		b, hold, err := f.Session(t.Context(), "alice", want)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer hold.Release()
		if i := b.Info(); i.Named != named || i.Template != template || i.Flavor != flavor || (hold.Lost != nil) != lost {
			t.Errorf("%s: got %q, %s, %s, lost %v", what, i.Named, i.Template, i.Flavor, hold.Lost)
		}
		return b
	}
	crash(back("new", SessionOptions{ID: "s", Flavor: FlavorLarge}, "", TemplatePython, FlavorLarge, false))
	crash(back("crashed", SessionOptions{ID: "s"}, "", TemplatePython, FlavorLarge, true))
	crash(back("crashed, another flavor", SessionOptions{ID: "s", Flavor: FlavorMedium}, "", TemplatePython, FlavorMedium, true))

	crash(back("new, named", SessionOptions{ID: "n", Named: "data"}, "data", TemplatePython, FlavorMedium, false))
	crash(back("crashed, named", SessionOptions{ID: "n"}, "data", TemplatePython, FlavorMedium, true))
	crash(back("crashed, named, its flavor", SessionOptions{ID: "n", Flavor: FlavorMedium}, "data", TemplatePython, FlavorMedium, true))
	if err := f.parts.Catalog.Remove(added.ID); err != nil {
		t.Fatal(err)
	}
	back("without its template", SessionOptions{ID: "n"}, "", TemplatePython, FlavorMedium, true)
	if _, err := f.Stop(t.Context(), "alice", KindSession, "n"); err != nil {
		t.Fatal(err)
	}
	back("stopped", SessionOptions{ID: "n"}, "", TemplatePython, FlavorSmall, true)

	if interpreters()[JavaScript] == "" {
		t.Skip("no node on this machine")
	}
	crash(back("new, JavaScript", SessionOptions{ID: "j", Template: TemplateNode}, "", TemplateNode, FlavorSmall, false))
	back("crashed, JavaScript", SessionOptions{ID: "j"}, "", TemplateNode, FlavorSmall, true)
}
