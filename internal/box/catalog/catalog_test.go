package catalog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func open(t *testing.T, dir string) *Catalog {
	t.Helper()
	c, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// writes returns a function that writes one file.
func writes(text string) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "memory"), []byte(text), 0o600)
	}
}

func put(t *testing.T, c *Catalog, owner, name, text string) Template {
	t.Helper()
	added, err := c.Put(t.Context(), Template{Name: name, Owner: owner, Base: "python", Flavor: "small"}, Details{Key: text}, 0, writes(text))
	if err != nil {
		t.Fatal(err)
	}
	return added
}

// content returns what writes wrote.
func content(t *testing.T, c *Catalog, id string) string {
	t.Helper()
	dir, release, err := c.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	b, err := os.ReadFile(filepath.Join(dir, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// An owner sees only their own templates and those for everyone.
func TestCatalog_Owners(t *testing.T) {
	c := open(t, t.TempDir())
	put(t, c, "alice", "data", "alice's")
	put(t, c, Everyone, "data", "everyone's")
	put(t, c, Everyone, "web", "everyone's web")
	put(t, c, "", "mine", "the local user's")
	for owner, want := range map[string]map[string]string{
		"alice": {"data": "alice's", "web": "everyone's web"},
		"bob":   {"data": "everyone's", "web": "everyone's web"},
		"":      {"data": "everyone's", "web": "everyone's web", "mine": "the local user's"},
	} {
		list, err := c.List(owner)
		if err != nil || len(list) != len(want) {
			t.Errorf("%q sees %+v, %v; want %d", owner, list, err, len(want))
		}
		for name, text := range want {
			found, err := c.Find(owner, name)
			if err != nil {
				t.Errorf("%q does not find %q: %v", owner, name, err)
			} else if got := content(t, c, found.ID); got != text {
				t.Errorf("%q finds %q in %q, want %q", owner, got, name, text)
			}
		}
	}
	if _, err := c.Find("bob", "mine"); !errors.Is(err, ErrNotFound) {
		t.Errorf("bob finds the local user's template: %v", err)
	}
}

// A build that fails leaves the earlier template; one that succeeds replaces it, also for
// processes that have the catalog open.
func TestCatalog_PutReplaces(t *testing.T) {
	dir := t.TempDir()
	c, other := open(t, dir), open(t, dir)
	first := put(t, c, "", "data", "first")
	failed := errors.New("failed")
	if _, err := c.Put(t.Context(), Template{Name: "data", Base: "python", Flavor: "small"}, Details{}, 0, func(context.Context, string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if found, err := other.Find("", "data"); err != nil || found.ID != first.ID {
		t.Errorf("after a failure: got %+v, %v", found, err)
	}
	second := put(t, c, "", "data", "second")
	all, err := other.All()
	if err != nil || len(all) != 1 || all[0].ID != second.ID || content(t, other, second.ID) != "second" {
		t.Errorf("got %+v, %v", all, err)
	}
	if d, err := other.Details(second.ID); err != nil || d.Key != "second" {
		t.Errorf("details: %+v, %v", d, err)
	}
	if _, _, err := other.Read(first.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("the replaced template: %v", err)
	}
	if err := c.Remove(second.ID); err != nil {
		t.Error(err)
	}
	if err := c.Remove(second.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove twice: %v", err)
	}
}

// While a box is made from a template that is replaced, the template is whole.
func TestCatalog_ReplaceWaitsForReaders(t *testing.T) {
	c := open(t, t.TempDir())
	first := put(t, c, "", "data", "first")
	dir, release, err := c.Read(first.ID)
	if err != nil {
		t.Fatal(err)
	}
	replaced := make(chan error, 1)
	go func() {
		_, err := c.Put(context.Background(), Template{Name: "data", Base: "python", Flavor: "small"}, Details{}, 0, writes("second"))
		replaced <- err
	}()
	for found := first; found.ID == first.ID; { // until the new one is there
		if found, err = c.Find("", "data"); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "memory")); err != nil || string(b) != "first" {
		t.Errorf("the template of the reader: %q, %v", b, err)
	}
	release()
	if err := <-replaced; err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(first.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("the replaced template is there: %v", err)
	}
}

func TestCatalog_Steps(t *testing.T) {
	c := open(t, t.TempDir())
	key := strings.Repeat("a", 64)
	if _, _, err := c.Step(key); !errors.Is(err, ErrNotFound) {
		t.Errorf("no step: %v", err)
	}
	if err := c.PutStep(t.Context(), key, 0, writes("state")); err != nil {
		t.Fatal(err)
	}
	if err := c.PutStep(t.Context(), strings.Repeat("b", 64), 0, func(context.Context, string) error { return os.ErrInvalid }); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("a step that cannot be written: %v", err)
	}
	for range 2 { // several builds may use it at once
		dir, release, err := c.Step(key)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if b, err := os.ReadFile(filepath.Join(dir, "memory")); err != nil || string(b) != "state" {
			t.Errorf("got %q, %v", b, err)
		}
	}
	if list, err := c.All(); err != nil || len(list) != 0 {
		t.Errorf("steps are listed as templates: %+v, %v", list, err)
	}
	if err := c.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if _, release, err := c.Step(key); err != nil {
		t.Errorf("a sweep removed a step in use: %v", err)
	} else {
		release()
	}
}
