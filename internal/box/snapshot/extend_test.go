//go:build linux

package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// addFiles replaces the file "pages" and adds others.
func addFiles(_ context.Context, dir string) error {
	tmp := filepath.Join(dir, "new")
	return errors.Join(
		os.WriteFile(tmp, []byte("other pages"), 0o600), os.Rename(tmp, filepath.Join(dir, "pages")),
		os.Mkdir(filepath.Join(dir, "more"), 0o700), os.WriteFile(filepath.Join(dir, "more", "files"), []byte("12345"), 0o600),
	)
}

// Extend changes files of the data, and nothing else of the record.
func TestExtend(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	wantErr(t, "extend a record without data", c.Extend(t.Context(), 0, addFiles), ErrInvalid)
	m := usedOn(3)
	write(t, c, m, "first")
	before := c.Meta()

	failed := errors.New("no files")
	wantErr(t, "a failure", c.Extend(t.Context(), 0, func(ctx context.Context, dir string) error {
		return errors.Join(addFiles(ctx, dir), failed)
	}), failed)
	if got := content(t, c.Dir()); got != "first" || c.Bytes() != 5 {
		t.Errorf("after a failure: %q, %d bytes", got, c.Bytes())
	}

	// An update of the metadata meanwhile stays.
	updated := before
	updated.Description, updated.Stale = "another", true
	if err := c.Extend(t.Context(), 3, func(ctx context.Context, dir string) error {
		return errors.Join(addFiles(ctx, dir), c.Update(updated))
	}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Dir()); got != "other pages" || c.Bytes() != 16 {
		t.Errorf("extended: %q, %d bytes", got, c.Bytes())
	}
	if got := c.Meta(); !reflect.DeepEqual(got, updated) {
		t.Errorf("metadata: got  %+v\nwant %+v", got, updated)
	}
	// Once more: the directory is linked too.
	if err := c.Extend(t.Context(), 0, func(_ context.Context, dir string) error {
		return os.Remove(filepath.Join(dir, "pages"))
	}); err != nil {
		t.Fatal(err)
	}
	record := filepath.Dir(c.Dir())
	if got, want := data(t, record), []string{"data-3", "data-3/more", "data-3/more/files", savedName}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "extend what was released", c.Extend(t.Context(), 0, addFiles), os.ErrClosed)
	if got := list(t, open(t, Config{Dir: s.cfg.Dir})); len(got) != 1 || got[0].Bytes != 5 || !reflect.DeepEqual(got[0].Meta, updated) {
		t.Errorf("listed: %+v", got)
	}
}

// A note that the box does nothing is about the data, which an extension leaves as they are.
func TestExtend_KeepsQuiescence(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	m := usedOn(3)
	m.Stale = true
	write(t, c, m, "first")
	if err := errors.Join(c.SetQuiescent(), c.Extend(t.Context(), 0, addFiles)); err != nil {
		t.Fatal(err)
	}
	if !isQuiescent(c.dir) {
		t.Error("the box counts as running")
	}
}

// Files that an extension keeps count once.
func TestExtend_SpaceInUse(t *testing.T) {
	s := open(t, Config{MaxBytes: 100})
	c := create(t, s, box("a"))
	write(t, c, usedOn(3), "0123456789")
	if err := c.Extend(t.Context(), 0, func(_ context.Context, dir string) error {
		if used, unused := s.Space(); used != 10 || unused != 90 {
			t.Errorf("before anything is added, %d bytes are used and %d are not", used, unused)
		}
		return os.WriteFile(filepath.Join(dir, "files"), []byte("12345"), 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	if used, unused := s.Space(); used != 15 || unused != 85 {
		t.Errorf("extended: %d bytes are used and %d are not", used, unused)
	}
}

// A reservation that could not be published does not outlive the extension.
func TestExtend_ForgetsReservation(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	write(t, c, usedOn(3), "first")
	c.e.Pending = 1 << 30 // the disk was full
	if err := errors.Join(c.Extend(t.Context(), 0, addFiles), c.Update(c.Meta())); err != nil {
		t.Fatal(err)
	}
	if e, err := readEntry(c.dir); err != nil || e.Pending != 0 {
		t.Errorf("after the extension %d bytes are reserved, %v", e.Pending, err)
	}
}

// Only what is replaced needs space on the disk, and none in the store.
func TestExtend_Space(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	write(t, c, usedOn(3), "0123456789")
	s.cfg.free = func() int64 { return 6 }
	s.cfg.MaxBytes = 10
	same := func(ctx context.Context, dir string) error {
		return errors.Join(os.Remove(filepath.Join(dir, "pages")), fill("9876543210")(ctx, dir))
	}
	if err := c.Extend(t.Context(), 6, same); err != nil {
		t.Errorf("with room for what is replaced: %v", err)
	}
	never := func(context.Context, string) error { return errors.New("files are written without room for them") }
	wantErr(t, "without room for what is replaced", c.Extend(t.Context(), 7, never), ErrFull)
	s.cfg.free = nil
	wantErr(t, "over the size of the store", c.Extend(t.Context(), 0, addFiles), ErrFull)
	if got := content(t, c.Dir()); got != "9876543210" {
		t.Errorf("after refusals: %q", got)
	}
}

// TestExtend_Killed kills a process at each step of an extension.
func TestExtend_Killed(t *testing.T) {
	for _, step := range []string{"made", "halfway", "written", "described", "renamed"} {
		t.Run(step, func(t *testing.T) {
			s := open(t, Config{})
			id := stored(t, s, usedOn(10), "old data")
			want := list(t, s)[0].Meta
			killed(t, start(t, "extend", s.dir, id, step))
			c, err := s.Acquire(id)
			if err != nil {
				t.Fatal(err)
			}
			wantData := "old data"
			if step == "renamed" {
				wantData = "other pages"
			}
			if got := content(t, c.Dir()); got != wantData || !reflect.DeepEqual(c.Meta(), want) {
				t.Errorf("acquired record: %q, %+v, want %q, %+v", got, c.Meta(), wantData, want)
			}
			write(t, c, usedOn(21), "newer")
			dir := filepath.Base(c.Dir())
			if got, want := data(t, filepath.Dir(c.Dir())), []string{dir, dir + "/pages", savedName}; !slices.Equal(got, want) {
				t.Errorf("left: %q, want %q", got, want)
			}
		})
	}
}
