package box

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
)

// addNamed adds a template to the fixture. Without memory, it cannot be restored.
func addNamed(t *testing.T, f *fixture, owner, name string, memory bool) catalog.Template {
	t.Helper()
	if f.parts.Catalog == nil {
		c, err := catalog.Open(catalog.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		f.parts.Catalog = c
	}
	added, err := f.parts.Catalog.Put(t.Context(), catalog.Template{Name: name, Owner: owner, Base: "python", Flavor: "medium"}, catalog.Details{}, 0,
		func(_ context.Context, dir string) error {
			if !memory {
				return nil
			}
			return os.WriteFile(filepath.Join(dir, "memory"), nil, 0o600)
		})
	if err != nil {
		t.Fatal(err)
	}
	return added
}

func TestNamed_Session(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	added := addNamed(t, f, "alice", "data", true)
	b, hold, err := f.Session(t.Context(), "alice", SessionOptions{ID: "s", Template: "data"})
	if err != nil {
		t.Fatal(err)
	}
	hold.Release()
	if i := b.Info(); i.Template != "data" || i.Interpreter != InterpreterPython || i.Language != Python || i.Flavor != FlavorMedium || i.Source != SourceCold {
		t.Errorf("got %+v", i)
	}
	wantOut(t, b, "6 * 7", "42\n")
	copied, err := f.fork(t.Context(), "alice", KindSession, "s", ForkOptions{})
	if err != nil || copied.Info().Template != "data" {
		t.Errorf("fork: %+v, %v", copied, err)
	}
	c, err := f.CreateContext(t.Context(), "alice", ContextOptions{Name: "c", Template: "data"})
	if err != nil || c.Info().Template != "data" {
		t.Errorf("context: %+v, %v", c, err)
	}
	for _, o := range []SessionOptions{
		{Template: "data", Flavor: FlavorSmall}, {Template: "data", Interpreter: InterpreterNode}, {Template: "other"}, {ID: "s", Template: "other"},
	} {
		_, _, err := f.Session(t.Context(), "alice", o)
		wantCode(t, err, CodeInvalid, "emplate")
	}

	// A session goes on without its template; new ones do not start.
	if err := f.parts.Catalog.Remove(added.ID); err != nil {
		t.Fatal(err)
	}
	again, hold, err := f.Session(t.Context(), "alice", SessionOptions{ID: "s", Template: "data"})
	if err != nil || again != b || hold.Created {
		t.Fatalf("after the template is gone: %v, %v", again, err)
	}
	hold.Release()
	_, _, err = f.Session(t.Context(), "alice", SessionOptions{ID: "new", Template: "data"})
	wantCode(t, err, CodeInvalid, "Template not found: data")
}

// The templates of one owner do not exist for another.
func TestNamed_Owners(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	addNamed(t, f, "alice", "private", true)
	addNamed(t, f, catalog.Everyone, "shared", true)
	_, _, err := f.Session(t.Context(), "bob", SessionOptions{Template: "private"})
	wantCode(t, err, CodeInvalid, "Template not found: private")
	if e, ok := err.(*Error); !ok || strings.Contains(e.Hint, "private") || !strings.Contains(e.Hint, "shared") {
		t.Errorf("hint: %+v", err)
	}
	b, hold, err := f.Session(t.Context(), "bob", SessionOptions{Template: "shared"})
	if err != nil || b.Info().Owner != "bob" {
		t.Fatalf("shared: %v", err)
	}
	hold.Release()
}

// A template that cannot be restored is an error with a remedy, and not a box without its
// libraries.
func TestNamed_Unusable(t *testing.T) {
	f, _ := newSnapFixture(t, nil)
	addNamed(t, f, "", "data", false)
	_, _, err := f.Session(t.Context(), "", SessionOptions{Template: "data"})
	wantCode(t, err, CodeStartFailed, "glovebox template build data")
}

// The log names the template that a box came from, beside the built-in one that it extends.
func TestNamed_StartIsLogged(t *testing.T) {
	started := make(startLines, 1)
	f := newFixtureWith(t, nil, func(_ *fixture, parts *Parts) {
		parts.Machines.Engine = &snapEngine{Engine: parts.Machines.Engine}
		parts.Scratch = []string{t.TempDir()}
		parts.Log = slog.New(slog.NewTextHandler(started, nil))
	})
	addNamed(t, f, "", "data", true)
	f.sessionOf(t, "", SessionOptions{ID: "s", Template: "data"})
	if line := <-started; !strings.Contains(line, " interpreter=python ") || !strings.Contains(line, " template=data ") {
		t.Errorf("of a named template: %s", line)
	}
	f.session(t, "", "other")
	if line := <-started; strings.Contains(line, " template=") {
		t.Errorf("of a built-in template: %s", line)
	}
}

// startLines gets the lines of a log about started boxes.
type startLines chan string

func (l startLines) Write(p []byte) (int, error) {
	if strings.Contains(string(p), `msg="box started"`) {
		l <- string(p)
	}
	return len(p), nil
}
