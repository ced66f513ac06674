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

func agrees(bool) (kept func(), ok bool) { return func() {}, true }

func refuses(bool) (kept func(), ok bool) { return nil, false }

// copyOf is the Meta of a box in memory.
func copyOf(owner string, used int) Meta {
	m := ofOwner(owner, used)
	m.Stale = true
	return m
}

// living makes the record of a box in memory that lets evictions drop its data.
func living(t *testing.T, s *Store, owner string, used, bytes int) *Lease {
	t.Helper()
	l := create(t, s, copyOf(owner, used))
	write(t, l, copyOf(owner, used), blob(bytes))
	l.AllowDrop(agrees)
	return l
}

// wantData checks which of the leases have data.
func wantData(t *testing.T, what string, want map[*Lease]bool) {
	t.Helper()
	for l, has := range want {
		if (l.Dir() != "") != has {
			t.Errorf("%s: the box of %s used at %v has data: %t, want %t", what, l.Meta().Owner, l.Meta().Used, !has, has)
		}
	}
}

// TestDrop: copies of boxes in memory are dropped for boxes that leave memory, and for such copies
// only where another owner has more of the store and keeps no less.
func TestDrop(t *testing.T) {
	s := openBeforeRemove(t, Config{MaxBytes: 10 * kB}, func(r []Removal) ([]string, error) {
		t.Errorf("removed %q", removedIDs(r))
		return nil, nil
	})
	a1, a2, a3 := living(t, s, "alice", 1, 3*kB), living(t, s, "alice", 2, 3*kB), living(t, s, "alice", 3, 3*kB)

	// A copy of alice's takes no room of her other copies.
	a4 := create(t, s, copyOf("alice", 4))
	if err := a4.Write(t.Context(), copyOf("alice", 4), 3*kB, fill(blob(3*kB))); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth copy of one owner in a store for three: %v, want ErrFull", err)
	}
	wantData(t, "after a refused copy", map[*Lease]bool{a1: true, a2: true, a3: true, a4: false})

	// A copy of bob's box does, while she keeps more.
	b1 := living(t, s, "bob", 5, 3*kB)
	wantData(t, "after bob's copy", map[*Lease]bool{a1: false, a2: true, a3: true, b1: true})
	b2 := create(t, s, copyOf("bob", 6))
	if err := b2.Write(t.Context(), copyOf("bob", 6), 3*kB, fill(blob(3*kB))); !errors.Is(err, ErrFull) {
		t.Errorf("a copy with which bob would have more than alice keeps: %v, want ErrFull", err)
	}

	// A box of bob's that leaves memory takes the room of his own copy.
	write(t, b2, ofOwner("bob", 6), blob(3*kB))
	wantData(t, "after a box of bob's left memory", map[*Lease]bool{a2: true, a3: true, b1: false, b2: true})

	// A record without its data is written again, and read by others as one without.
	for _, r := range list(t, s) {
		if r.ID == b1.ID() && (r.Bytes != 0 || !r.Written.IsZero() || !r.Leased) {
			t.Errorf("the record of a dropped copy is %+v", r)
		}
	}
	if err := a2.Release(); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(a2.ID()); err != nil {
		t.Fatal(err)
	}
	write(t, b1, copyOf("bob", 7), blob(2*kB))
	wantData(t, "after it was written again", map[*Lease]bool{a3: true, b1: true, b2: true})
	if used, _ := s.Space(); used != 8*kB {
		t.Errorf("the store counts %d bytes, want %d", used, 8*kB)
	}
}

// TestDrop_Consent: data stay whose lessee refuses, has not been asked, or has the only copy, and
// those being written.
func TestDrop_Consent(t *testing.T) {
	for what, hold := range map[string]func(*testing.T, *Store) (undo func()){
		"the lessee refuses": func(t *testing.T, s *Store) func() {
			l := living(t, s, "alice", 1, 8*kB)
			l.AllowDrop(refuses)
			return func() {}
		},
		"the lessee has not allowed it": func(t *testing.T, s *Store) func() {
			write(t, create(t, s, copyOf("alice", 1)), copyOf("alice", 1), blob(8*kB))
			return func() {}
		},
		"the box is not in memory": func(t *testing.T, s *Store) func() {
			l := living(t, s, "alice", 1, 8*kB)
			if err := l.Update(ofOwner("alice", 1)); err != nil {
				t.Fatal(err)
			}
			return func() {}
		},
		"they are being written": func(t *testing.T, s *Store) func() {
			l := living(t, s, "alice", 1, 8*kB)
			l.op <- struct{}{}
			return l.unlockOp
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := open(t, Config{MaxBytes: 10 * kB})
			defer hold(t, s)()
			b := create(t, s, ofOwner("bob", 2))
			if err := b.Write(t.Context(), ofOwner("bob", 2), 3*kB, fill(blob(3*kB))); !errors.Is(err, ErrFull) {
				t.Errorf("got %v, want ErrFull", err)
			}
			for _, r := range list(t, s) {
				if r.Owner == "alice" && r.Bytes != 8*kB {
					t.Errorf("alice's record has %d bytes left", r.Bytes)
				}
			}
		})
	}
}

// TestDrop_OnlyIfItSuffices: where the lessees do not consent, no box that is only on disk goes either.
func TestDrop_OnlyIfItSuffices(t *testing.T) {
	for what, refuse := range map[string]func(*Lease) (undo func()){
		"they are being written": func(l *Lease) func() { l.op <- struct{}{}; return l.unlockOp },
		"the lessee refuses": func(l *Lease) func() {
			l.AllowDrop(refuses)
			return func() {}
		},
		"the lessee refuses in the end": func(l *Lease) func() {
			l.AllowDrop(func(now bool) (func(), bool) { return nil, !now })
			return func() {}
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := openBeforeRemove(t, Config{MaxBytes: 20 * kB}, func(r []Removal) ([]string, error) {
				t.Errorf("removed %q", removedIDs(r))
				return nil, nil
			})
			stored(t, s, ofOwner("bob", 1), blob(kB))
			for i := range 4 {
				defer refuse(living(t, s, "alice", 4+i, 4*kB))()
			}
			for _, m := range []Meta{copyOf("bob", 9), ofOwner("bob", 9)} {
				b := create(t, s, m)
				if err := b.Write(t.Context(), m, 6*kB, fill(blob(6*kB))); !errors.Is(err, ErrFull) {
					t.Errorf("got %v, want ErrFull", err)
				}
			}
		})
	}
}

// TestDrop_BeforeBoxes: a copy of a box in memory takes the room of such copies before that of boxes
// that are only on disk, and a box that leaves memory the other way round.
func TestDrop_BeforeBoxes(t *testing.T) {
	for _, m := range []Meta{copyOf("bob", 9), ofOwner("bob", 9)} {
		var removed []string
		s := openBeforeRemove(t, Config{MaxBytes: 12 * kB}, func(r []Removal) ([]string, error) {
			removed = append(removed, removedIDs(r)...)
			return nil, nil
		})
		stored(t, s, ofOwner("alice", 1), blob(3*kB))
		copies := []*Lease{living(t, s, "alice", 2, 3*kB), living(t, s, "alice", 3, 3*kB), living(t, s, "alice", 4, 3*kB)}
		write(t, create(t, s, m), m, blob(3*kB))
		wantData(t, "afterwards", map[*Lease]bool{copies[0]: !m.Stale, copies[1]: true, copies[2]: true})
		if (len(removed) == 0) != m.Stale {
			t.Errorf("for a copy: %t: removed %q", m.Stale, removed)
		}
	}
}

// TestDrop_SparesBoxes: no box that is only on disk is evicted where the copies that go with it suffice.
func TestDrop_SparesBoxes(t *testing.T) {
	var removed []string
	s := openBeforeRemove(t, Config{MaxBytes: 20 * kB}, func(r []Removal) ([]string, error) {
		removed = append(removed, removedIDs(r)...)
		return nil, nil
	})
	idle := stored(t, s, ofOwner("alice", 1), blob(kB/2))
	living(t, s, "alice", 2, 21*kB/2).AllowDrop(refuses)
	own := living(t, s, "bob", 3, 5*kB)
	// 1 kB is missing: her idle box has too little, his own copy alone has enough.
	write(t, create(t, s, ofOwner("bob", 4)), ofOwner("bob", 4), blob(5*kB))
	wantData(t, "of a copy that suffices", map[*Lease]bool{own: false})
	if len(removed) > 0 {
		t.Errorf("removed %q although a copy suffices", removed)
	}
	// 0.5 kB are missing, and there is no copy.
	write(t, create(t, s, ofOwner("bob", 5)), ofOwner("bob", 5), blob(9*kB/2))
	if !slices.Equal(removed, []string{idle}) {
		t.Errorf("without a copy: removed %q, want %s", removed, idle)
	}
}

// TestDrop_Killed kills a process at each step of the removal of a copy: the record has the data as
// they were, or has none.
func TestDrop_Killed(t *testing.T) {
	for step, want := range map[string]string{"forgetting": "old data", "forgotten": ""} {
		t.Run(step, func(t *testing.T) {
			s := open(t, Config{})
			m := usedOn(10)
			m.Stale = true
			id := stored(t, s, m, "old data")
			before := list(t, s)[0].Meta
			killed(t, start(t, "drop", s.dir, id, step))
			c, err := s.Acquire(id)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case want == "" && (c.Dir() != "" || c.Bytes() != 0 || !c.Meta().Written.IsZero()):
				t.Errorf("the record has data: %q, %+v", c.Dir(), c.Meta())
			case want != "" && (content(t, c.Dir()) != want || !reflect.DeepEqual(c.Meta(), before)):
				t.Errorf("acquired record: %q, %+v, want %q, %+v", content(t, c.Dir()), c.Meta(), want, before)
			}
			write(t, c, usedOn(21), "newer")
			dir := filepath.Base(c.Dir())
			if got, want := data(t, filepath.Dir(c.Dir())), []string{dir, dir + "/pages", savedName}; !slices.Equal(got, want) {
				t.Errorf("left: %q, want %q", got, want)
			}
		})
	}
}

// TestDrop_PowerFailure: the description of a record whose data were dropped outlives a power failure.
// A file that was not synced may be empty afterwards, though its name is there.
func TestDrop_PowerFailure(t *testing.T) {
	s := open(t, Config{})
	l := create(t, s, ofOwner("alice", 1))
	write(t, l, ofOwner("alice", 1), blob(kB))
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	l, err := s.Acquire(l.ID()) // it wakes
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Update(copyOf("alice", 2)); err != nil {
		t.Fatal(err)
	}
	l.AllowDrop(agrees)
	dir := filepath.Join(s.dir, recordsDir, l.ID())
	if !s.dropCopies(t.Context(), []*item{s.readItem(l.ID())}) {
		t.Fatal("not dropped")
	}
	// Nothing syncs the content of this file.
	if err := os.Truncate(filepath.Join(dir, metaName), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	var gone []Removal
	after := openBeforeRemove(t, Config{Dir: s.dir}, func(r []Removal) ([]string, error) { gone = append(gone, r...); return nil, nil })
	_, err = after.Sweep(context.Background())
	if err != nil || len(gone) != 1 || gone[0].Owner != "alice" {
		t.Errorf("got the removals %+v, %v, want that of alice's box", gone, err)
	}
}

// TestDrop_ConcurrentWrites: what an owner is just writing counts as the owner's, so that writes at once
// take no more of others' room than one after the other.
func TestDrop_ConcurrentWrites(t *testing.T) {
	for what, m := range map[string]Meta{"copies": copyOf("bob", 20), "boxes that leave memory": ofOwner("bob", 20)} {
		for victims, make := range map[string]func(t *testing.T, s *Store, used int){
			"copies": func(t *testing.T, s *Store, used int) { living(t, s, "alice", used, 3*kB) },
			"boxes":  func(t *testing.T, s *Store, used int) { stored(t, s, ofOwner("alice", used), blob(3*kB)) },
		} {
			t.Run(what+" for "+victims, func(t *testing.T) {
				has := func(s *Store) map[string]int64 {
					n := map[string]int64{}
					for _, r := range list(t, s) {
						n[r.Owner] += r.Bytes
					}
					return n
				}
				results := map[string]map[string]int64{}
				for _, at := range []string{"one after the other", "at once"} {
					s := openBeforeRemove(t, Config{MaxBytes: 20 * kB}, func([]Removal) ([]string, error) { return nil, nil })
					for i := range 6 {
						make(t, s, 1+i)
					}
					var nest func(left int)
					nest = func(left int) {
						if left == 0 {
							return
						}
						b := create(t, s, m)
						_ = b.Write(t.Context(), m, 3*kB, func(ctx context.Context, dir string) error {
							if at == "at once" {
								nest(left - 1)
							}
							return fill(blob(3*kB))(ctx, dir)
						})
						if at != "at once" {
							nest(left - 1)
						}
					}
					nest(6)
					results[at] = has(s)
				}
				if a, b := results["one after the other"], results["at once"]; a["alice"] != b["alice"] {
					t.Errorf("alice keeps %d bytes where bob writes one box after the other, and %d where he writes all at once (bob: %d and %d)", a["alice"], b["alice"], a["bob"], b["bob"])
				}
			})
		}
	}
}

// TestDrop_ThatFails: an eviction that cannot remove data tells their lessee that they are kept.
func TestDrop_ThatFails(t *testing.T) {
	var dir string
	s := open(t, Config{step: func(name string) {
		if name == "forgetting" { // as on a full disk
			saved := filepath.Join(dir, savedName)
			if err := errors.Join(os.Remove(saved), os.Mkdir(saved, 0o700)); err != nil {
				t.Error(err)
			}
		}
	}})
	l := create(t, s, copyOf("alice", 1))
	dir = filepath.Join(s.dir, recordsDir, l.ID())
	write(t, l, copyOf("alice", 1), blob(kB))
	told := 0
	l.AllowDrop(func(bool) (func(), bool) { return func() { told++ }, true })
	if s.dropCopies(t.Context(), []*item{s.readItem(l.ID())}) || told != 1 || l.Dir() == "" {
		t.Errorf("the lessee was told %d times, and the record has the data %q", told, l.Dir())
	}
}
