//go:build linux

package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// open opens a store, in a new directory if cfg names none.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "snapshots")
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// openBeforeRemove is open with a function for BeforeRemove.
func openBeforeRemove(t testing.TB, cfg Config, announce func([]Removal) ([]string, error)) *Store {
	t.Helper()
	s := open(t, cfg)
	s.BeforeRemove(announce)
	return s
}

// box returns the Meta of a box.
func box(name string) Meta {
	return Meta{
		Purpose: Box, Owner: "someone", Kind: "context", BoxID: "box-" + name, Name: name,
		Interpreter: "python", Flavor: "small", Created: day(1), Used: day(2),
	}
}

func day(n int) time.Time { return time.Date(2026, 1, n, 12, 0, 0, 123456789, time.UTC) }

func create(t testing.TB, s *Store, m Meta) *Lease {
	t.Helper()
	c, err := s.Create(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Release() })
	return c
}

// fill returns what writes a file with content.
func fill(content string) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "pages"), []byte(content), 0o600)
	}
}

func write(t testing.TB, c *Lease, m Meta, content string) {
	t.Helper()
	if err := c.Write(t.Context(), m, int64(len(content)), fill(content)); err != nil {
		t.Fatal(err)
	}
}

// content returns what write wrote.
func content(t testing.TB, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "pages"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// stored creates a record with data and without a lease, and returns its id.
func stored(t testing.TB, s *Store, m Meta, content string) string {
	t.Helper()
	c := create(t, s, m)
	write(t, c, m, content)
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	return c.ID()
}

func list(t testing.TB, s *Store) []Record {
	t.Helper()
	records, err := s.List(nil)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func ids(records []Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.ID)
	}
	return out
}

func sweep(t testing.TB, s *Store) []Removal {
	t.Helper()
	removed, err := s.Sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return removed
}

// tree returns the names of everything below dir.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestRecord_Lifecycle(t *testing.T) {
	now := day(5)
	s := open(t, Config{Now: func() time.Time { return now }})
	m := box("a")
	c := create(t, s, m)
	if c.Dir() != "" || !reflect.DeepEqual(c.Meta(), m) {
		t.Errorf("made: data %q, %+v", c.Dir(), c.Meta())
	}
	want := []Record{{ID: c.ID(), Meta: m, Leased: true, Own: true}}
	if got := list(t, s); !reflect.DeepEqual(got, want) {
		t.Errorf("made: got  %+v\nwant %+v", got, want)
	}
	if got, want := list(t, open(t, Config{Dir: s.cfg.Dir})), []Record{{ID: c.ID(), Meta: m, Leased: true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("made by another: got  %+v\nwant %+v", got, want)
	}

	m.Used, m.Description = day(3), "line one\nline two\x00\u2028"
	if err := c.Update(m); err != nil {
		t.Fatal(err)
	}
	write(t, c, m, "first")
	m.Written = now
	want[0].Meta, want[0].Bytes = m, 5
	if got := list(t, s); !reflect.DeepEqual(got, want) {
		t.Errorf("written: got  %+v\nwant %+v", got, want)
	}
	if c.Bytes() != 5 || content(t, c.Dir()) != "first" {
		t.Errorf("written: %d bytes in %q", c.Bytes(), c.Dir())
	}

	now = day(6)
	m.Stale, m.Used = true, day(4)
	if err := c.Update(m); err != nil {
		t.Fatal(err)
	}
	if got := c.Meta(); !reflect.DeepEqual(got, m) {
		t.Errorf("live record: %+v", got)
	}
	first := c.Dir()
	m.Stale = false
	write(t, c, m, "second")
	m.Written = now
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the first data: %v", err)
	}
	for range 2 {
		if err := c.Release(); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, "update of what was released", c.Update(m), os.ErrClosed)
	wantErr(t, "write of what was released", c.Write(t.Context(), m, 0, fill("")), os.ErrClosed)

	record := filepath.Join(s.dir, recordsDir, c.ID())
	if got, want := tree(t, record), []string{"data-2", "data-2/pages", metaName + newSuffix, savedName}; !slices.Equal(got, want) {
		t.Errorf("hibernated: %q, want %q", got, want)
	}
	other := open(t, Config{Dir: s.cfg.Dir})
	want[0] = Record{ID: c.ID(), Meta: m, Bytes: 6}
	if got := list(t, other); !reflect.DeepEqual(got, want) {
		t.Errorf("hibernated: got  %+v\nwant %+v", got, want)
	}
	c, err := other.Acquire(c.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, c.Dir()); got != "second" || !reflect.DeepEqual(c.Meta(), m) {
		t.Errorf("acquired record: %q, %+v", got, c.Meta())
	}
	if removed := sweep(t, s); len(removed) != 0 {
		t.Errorf("sweep: %+v", removed)
	}
	for range 2 {
		if err := c.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Acquire(c.ID())
	wantErr(t, "acquire a removed record", err, ErrNotFound)
	if got, want := tree(t, s.dir), []string{"lock", "records", "trash"}; !slices.Equal(got, want) {
		t.Errorf("left: %q", got)
	}
}

func TestCreate_FillsInTimes(t *testing.T) {
	now := day(5)
	s := open(t, Config{Now: func() time.Time { return now }})
	c := create(t, s, Meta{Purpose: Saved})
	if m := c.Meta(); !m.Created.Equal(now) || !m.Used.Equal(now) {
		t.Errorf("made: %+v", m)
	}
	now = day(6)
	if err := c.Update(Meta{Purpose: Saved, Written: day(1)}); err != nil {
		t.Fatal(err)
	}
	if m := c.Meta(); !m.Created.Equal(day(5)) || !m.Used.Equal(now) || !m.Written.IsZero() {
		t.Errorf("updated: %+v", m)
	}
}

func TestCreate_InvalidMeta(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	for name, change := range map[string]func(*Meta){
		"class":       func(m *Meta) { m.Purpose = "../box" },
		"other class": func(m *Meta) { m.Purpose = Saved },
		"owner":       func(m *Meta) { m.Owner = strings.Repeat("x", 257) },
		"kind":        func(m *Meta) { m.Kind = strings.Repeat("x", 65) },
		"id":          func(m *Meta) { m.BoxID = strings.Repeat("x", 129) },
		"name":        func(m *Meta) { m.Name = strings.Repeat("x", 65) },
		"description": func(m *Meta) { m.Description = strings.Repeat("x", 4097) },
		"template":    func(m *Meta) { m.Interpreter = strings.Repeat("x", 65) },
		"flavor":      func(m *Meta) { m.Flavor = strings.Repeat("x", 65) },
		"no UTF-8":    func(m *Meta) { m.Name = "a\xffb" },
		"year":        func(m *Meta) { m.Used = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		m := box("a")
		change(&m)
		wantErr(t, name+": update", c.Update(m), ErrInvalid)
		wantErr(t, name+": write", c.Write(t.Context(), m, 1, fill("x")), ErrInvalid)
		if name != "other class" {
			_, err := s.Create(m)
			wantErr(t, name+": create", err, ErrInvalid)
		}
	}
	if got := list(t, s); len(got) != 1 || !reflect.DeepEqual(got[0].Meta, box("a")) {
		t.Errorf("records: %+v", got)
	}
	// The longest strings of what JSON makes most of.
	m := box("a")
	m.Owner, m.BoxID = strings.Repeat("\x01", 256), strings.Repeat("<", 128)
	m.Description, m.Name = strings.Repeat("\x01", 4096), strings.Repeat("\x7f", 64)
	if err := c.Update(m); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s); len(got) != 1 || !reflect.DeepEqual(got[0].Meta, m) {
		t.Error("strings of maximum length are not returned")
	}
}

func TestAcquire_InvalidIDs(t *testing.T) {
	s := open(t, Config{})
	for _, id := range []string{
		"", ".", "..", "../records", "records", "lock", "/etc", "x/../y", strings.Repeat("a", 25), strings.Repeat("A", 26),
		strings.Repeat("a", 24) + "/x", strings.Repeat("a", 27), strings.Repeat("a", 26), strings.Repeat("a", 25) + "\x00",
	} {
		_, err := s.Acquire(id)
		wantErr(t, "acquire "+id, err, ErrNotFound)
		_, _, _, err = s.Read(id)
		wantErr(t, "read "+id, err, ErrNotFound)
		wantErr(t, "delete "+id, s.Delete(id), ErrNotFound)
	}
	if got, want := tree(t, s.dir), []string{"lock", "records", "trash"}; !slices.Equal(got, want) {
		t.Errorf("left: %q", got)
	}
}

func TestSaved_Snapshots(t *testing.T) {
	s := open(t, Config{})
	m := box("a")
	m.Purpose = Saved
	c := create(t, s, m)
	id := c.ID()
	_, _, _, err := s.Read(id)
	wantErr(t, "read of what is being written", err, ErrLeased)
	write(t, c, m, "kept")
	c.Release()

	other := open(t, Config{Dir: s.dir})
	var releases []func()
	for _, s := range []*Store{other, s, s} {
		dir, got, release, err := s.Read(id)
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
		if got.Name != "a" || content(t, dir) != "kept" {
			t.Errorf("read: %+v", got)
		}
	}
	for _, release := range releases {
		for _, s := range []*Store{s, other} {
			wantErr(t, "delete of what is read", s.Delete(id), ErrLeased)
			_, err := s.Acquire(id)
			wantErr(t, "acquire a record being read", err, ErrLeased)
			if r := list(t, s); len(r) != 1 || !r[0].Leased {
				t.Errorf("read: %+v", r)
			}
		}
		release()
		release()
	}
	if r := list(t, s); len(r) != 1 || r[0].Leased {
		t.Errorf("no longer read: %+v", r)
	}
	if err := other.Delete(id); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "delete of what is deleted", s.Delete(id), ErrNotFound)
	if r := list(t, s); len(r) != 0 {
		t.Errorf("deleted: %+v", r)
	}

	c = create(t, s, m)
	c.Release()
	_, _, _, err = s.Read(c.ID())
	wantErr(t, "read of nothing", err, ErrNotFound)
	if _, err := s.Acquire(c.ID()); err != nil {
		t.Errorf("acquire after a failed read: %v", err)
	}
}

func TestList_OrderAndMatch(t *testing.T) {
	s := open(t, Config{})
	var want []string
	for i, name := range []string{"a", "b", "c"} {
		m := box(name)
		m.Used = day(10 - i)
		want = append(want, create(t, s, m).ID())
	}
	if got := ids(list(t, s)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got, err := s.List(func(m *Meta) bool { yes := m.Name == "b"; m.Name = "spoilt"; return yes })
	if err != nil || !slices.Equal(ids(got), want[1:2]) {
		t.Errorf("b: %+v, %v", got, err)
	}
	if got := list(t, s); got[0].Name != "a" {
		t.Errorf("a caller has changed %+v", got[0])
	}
}

// TestList_SeesChangesOfOtherStores: the cache of a list is never out of date while
// another store changes records.
func TestList_SeesChangesOfOtherStores(t *testing.T) {
	s := open(t, Config{})
	watcher := open(t, Config{Dir: s.dir})
	c := create(t, s, box("a"))
	// An old directory is one that is remembered.
	old := func() {
		if err := os.Chtimes(filepath.Join(s.dir, recordsDir, c.ID()), day(1), day(1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		m := box("a")
		m.Used = day(1).Add(time.Duration(i) * time.Minute)
		if err := c.Update(m); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			old()
		}
		for range 2 {
			if got := list(t, watcher); len(got) != 1 || !reflect.DeepEqual(got[0].Meta, m) {
				t.Fatalf("update %d: %+v", i, got)
			}
		}
	}
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, watcher); len(got) != 0 {
		t.Errorf("removed: %+v", got)
	}
}

// TestList_CachesItems checks that a list does not read records that have not changed.
func TestList_CachesItems(t *testing.T) {
	s := open(t, Config{})
	id := stored(t, s, box("a"), "data")
	if err := os.Chtimes(filepath.Join(s.dir, recordsDir, id), day(1), day(1)); err != nil {
		t.Fatal(err)
	}
	find := func() *item {
		list(t, s)
		return s.seen[id].item
	}
	first := find()
	if find() != first {
		t.Error("a record was read that had not changed")
	}
	c, err := s.Acquire(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Update(box("b")); err != nil {
		t.Fatal(err)
	}
	if got := find(); got == first || got.Name != "b" || first.Name != "a" {
		t.Errorf("after a change: %+v", got)
	}
}

// TestList_CachesNames checks that a list reads the directory of records only after a change,
// also one of another store.
func TestList_CachesNames(t *testing.T) {
	s := open(t, Config{})
	other := open(t, Config{Dir: s.dir})
	stored(t, s, box("a"), "data")
	read := func(want int) *string {
		t.Helper()
		if err := os.Chtimes(filepath.Join(s.dir, recordsDir), day(1), day(1)); err != nil {
			t.Fatal(err)
		}
		if got := list(t, s); len(got) != want {
			t.Fatalf("listed %d records, want %d", len(got), want)
		}
		if len(s.listed.names) != want {
			t.Fatalf("cached %d names, want %d", len(s.listed.names), want)
		}
		return &s.listed.names[0]
	}
	first := read(1)
	for range 2 {
		list(t, s)
		if &s.listed.names[0] != first {
			t.Error("the directory was read without a change")
		}
	}
	id := stored(t, other, box("b"), "data")
	if got := list(t, s); len(got) != 2 {
		t.Errorf("listed %d records after another store made one, want 2", len(got))
	}
	read(2)
	if err := other.Delete(id); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s); len(got) != 1 {
		t.Errorf("listed %d records after another store removed one, want 1", len(got))
	}
}

// TestList_DuringChanges lists in one store while another one changes a record.
func TestList_DuringChanges(t *testing.T) {
	s := open(t, Config{})
	watcher := open(t, Config{Dir: s.dir})
	c := create(t, s, usedOn(1))
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		m := usedOn(1)
		for i := range 300 {
			m.Used = m.Used.Add(time.Second)
			m.Description = strings.Repeat("x", i*300%maxDescription) // longer and shorter
			var err error
			if i%20 == 0 {
				err = c.Write(t.Context(), m, 4, fill("data"))
			} else {
				err = c.Update(m)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	var last time.Time
	for looking := true; looking; {
		select {
		case <-done:
			looking = false // once more
		default:
		}
		got := list(t, watcher)
		if len(got) != 1 || got[0].Used.Before(last) || !got[0].Leased {
			t.Errorf("after %v: %+v", last, got)
			break
		}
		last = got[0].Used
	}
	wg.Wait()
	if got := list(t, watcher); len(got) != 1 || !reflect.DeepEqual(got[0].Meta, c.Meta()) {
		t.Errorf("in the end: %+v, want %+v", got, c.Meta())
	}
}

func TestAcquire_Concurrent(t *testing.T) {
	s := open(t, Config{})
	other := open(t, Config{Dir: s.dir})
	id := stored(t, s, box("a"), "data")
	var held, acquired atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			s := []*Store{s, other}[i%2]
			for range 20 {
				c, err := s.Acquire(id)
				if errors.Is(err, ErrLeased) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := held.Add(1); n != 1 {
					t.Errorf("%d concurrent leases of one record", n)
				}
				acquired.Add(1)
				if _, err := s.List(nil); err != nil {
					t.Error(err)
				}
				held.Add(-1)
				if err := c.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// None of this may affect a lease.
	wg.Go(func() {
		for range 20 {
			if removed, err := other.Sweep(t.Context()); err != nil || len(removed) > 0 {
				t.Errorf("sweep: %+v, %v", removed, err)
			}
		}
	})
	wg.Wait()
	if acquired.Load() == 0 {
		t.Error("no goroutine acquired the record")
	}
}

// TestAcquire_WhileDeleting acquires and deletes the same records concurrently.
func TestAcquire_WhileDeleting(t *testing.T) {
	s := open(t, Config{})
	other := open(t, Config{Dir: s.dir})
	for range 30 {
		id := stored(t, s, box("a"), "data")
		var deleted, acquired atomic.Int32
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				s := []*Store{s, other}[i%2]
				if i < 3 {
					switch err := s.Delete(id); {
					case err == nil:
						deleted.Add(1)
					case !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrLeased):
						t.Error(err)
					}
					return
				}
				switch c, err := s.Acquire(id); {
				case err == nil:
					acquired.Add(1)
					if got := content(t, c.Dir()); got != "data" {
						t.Errorf("acquired record: %q", got)
					}
					if err := c.Remove(); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrLeased):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if deleted.Load()+acquired.Load() != 1 {
			t.Errorf("deleted %d times, removed %d times", deleted.Load(), acquired.Load())
		}
	}
	if got := tree(t, filepath.Join(s.dir, trashDir)); len(got) > 0 {
		t.Errorf("trash: %q", got)
	}
}

// TestLease_UsedConcurrently uses one lease from many goroutines.
func TestLease_UsedConcurrently(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			m := box("a")
			for j := range 10 {
				var err error
				m.Used = day(2).Add(time.Duration(i*10+j) * time.Second)
				if i < 2 {
					err = c.Write(t.Context(), m, 4, fill("data"))
				} else {
					err = c.Update(m)
				}
				if err != nil {
					t.Error(err)
				}
				if dir := c.Dir(); dir != "" && i < 2 && c.Bytes() != 4 {
					t.Errorf("%d bytes", c.Bytes())
				}
			}
		})
	}
	wg.Wait()
	want := c.Meta()
	c.Release()
	if got := list(t, s); len(got) != 1 || !reflect.DeepEqual(got[0].Meta, want) || got[0].Bytes != 4 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestClose(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	write(t, c, box("a"), "data")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	other := open(t, Config{Dir: s.dir})
	taken, err := other.Acquire(c.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Release(); err != nil {
		t.Errorf("release after the end: %v", err)
	}
	_, err = other.Acquire(taken.ID())
	wantErr(t, "acquire a leased record", err, ErrLeased)
	for what, err := range map[string]error{
		"create": func() error { _, err := s.Create(box("b")); return err }(),
		"list":   func() error { _, err := s.List(nil); return err }(),
		"sweep":  func() error { _, err := s.Sweep(t.Context()); return err }(),
		"delete": s.Delete(c.ID()),
	} {
		if err == nil {
			t.Errorf("%s after the end: no error", what)
		}
	}
}

func TestLock_FileReplaced(t *testing.T) {
	s := open(t, Config{})
	id := stored(t, s, box("a"), "data")
	if err := os.Remove(filepath.Join(s.dir, lockName)); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Dir: s.dir})
	if _, err := s.Acquire(id); err == nil {
		t.Error("acquired a record by a lock file that was replaced")
	}
}

// A process that is about to release its leases says so to others, of those that it has and of
// those that it takes later.
func TestLeave(t *testing.T) {
	s := open(t, Config{})
	other := open(t, Config{Dir: s.dir})
	leaving := func(id string) bool {
		t.Helper()
		for _, r := range list(t, other) {
			if r.ID == id {
				return r.Leaving
			}
		}
		t.Fatalf("record %s is not listed", id)
		return false
	}
	had := create(t, s, box("a"))
	if leaving(had.ID()) {
		t.Error("a record is about to be released before Leave")
	}
	if err := s.Leave(); err != nil {
		t.Fatal(err)
	}
	later := create(t, s, box("b"))
	kept := create(t, other, box("c"))
	for _, r := range []*Lease{had, later} {
		if !leaving(r.ID()) {
			t.Errorf("record %s is not about to be released after Leave", r.ID())
		}
		if err := r.Release(); err != nil {
			t.Fatal(err)
		}
		again, err := other.Acquire(r.ID())
		if err != nil {
			t.Fatal(err)
		}
		for _, seen := range list(t, s) {
			if seen.Leaving {
				t.Errorf("record %s is about to be released by its next lessee", seen.ID)
			}
		}
		again.Release()
	}
	if leaving(kept.ID()) {
		t.Error("a record of another process is about to be released")
	}
}

// TestRecord_DamageIsLoggedOnce counts the log lines about a damaged record.
func TestRecord_DamageIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	s := open(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	id := stored(t, s, box("a"), "data")
	if err := os.WriteFile(filepath.Join(s.dir, recordsDir, id, savedName), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := list(t, s); len(got) != 0 {
			t.Errorf("listed: %+v", got)
		}
	}
	if n := strings.Count(log.String(), id); n != 1 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}
