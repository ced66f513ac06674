//go:build linux

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// usedOn is the Meta of a box that was last used on a day.
func usedOn(n int) Meta {
	m := box("a")
	m.Used = day(n)
	return m
}

func saved() Meta {
	m := usedOn(1)
	m.Purpose = Saved
	return m
}

const kB = 1000

func blob(n int) string { return strings.Repeat("x", n) }

func TestQuota_EvictsLeastRecentlyUsed(t *testing.T) {
	var evicted []Removal
	var s *Store
	s = openBeforeRemove(t, Config{MaxBytes: 10 * kB}, func(r []Removal) ([]string, error) {
		evicted = append(evicted, r...)
		if _, err := s.List(nil); err != nil { // nothing is locked
			t.Error(err)
		}
		return nil, nil
	})
	savedID := stored(t, s, saved(), blob(2*kB))
	third := stored(t, s, usedOn(7), blob(2*kB))
	first := stored(t, s, usedOn(5), blob(1*kB))
	living := create(t, s, usedOn(2))
	write(t, living, usedOn(2), blob(2*kB))
	second := stored(t, s, usedOn(6), blob(3*kB))
	stranger := create(t, s, usedOn(1)) // has nothing to give
	stranger.Release()
	if len(evicted) > 0 {
		t.Fatalf("10 kB evicted %+v", evicted)
	}

	c := create(t, s, usedOn(9))
	write(t, c, usedOn(9), blob(3*kB))
	var got []string
	for _, r := range evicted {
		got = append(got, r.ID)
		if r.Why != Evicted || r.Owner != "someone" || r.Bytes == 0 {
			t.Errorf("evicted %+v", r)
		}
	}
	if want := []string{first, second}; !slices.Equal(got, want) {
		t.Errorf("evicted %q, want %q", got, want)
	}

	// 2 kept, 2 living, 3 of its own, 2 to evict: 4 kB for its own is too much now.
	evicted = nil
	before := c.Dir()
	err := c.Write(t.Context(), usedOn(9), 7*kB, func(context.Context, string) error {
		t.Error("written without room")
		return nil
	})
	var fullErr *FullError
	if !errors.As(err, &fullErr) || fullErr.Missing != 1*kB {
		t.Errorf("7 kB: %v, want 1 kB missing", err)
	}
	wantErr(t, "7 kB", err, ErrFull)
	if len(evicted) > 0 {
		t.Errorf("evicted %+v for nothing", evicted)
	}
	if c.Dir() != before || len(content(t, before)) != 3*kB {
		t.Error("a write without room has spoilt the data")
	}
	// Its own 3 kB are replaced.
	write(t, c, usedOn(9), blob(6*kB))
	if len(evicted) != 1 || evicted[0].ID != third {
		t.Errorf("evicted %+v, want %s", evicted, third)
	}
	all := ids(list(t, s))
	for _, id := range []string{savedID, living.ID(), stranger.ID(), c.ID()} {
		if !slices.Contains(all, id) {
			t.Errorf("%s is gone", id)
		}
	}
}

// TestQuota_OwnersWithLessKeepTheirs: an owner with much data makes room from own
// records, not from those of owners with less.
func TestQuota_OwnersWithLessKeepTheirs(t *testing.T) {
	var evicted []string
	s := openBeforeRemove(t, Config{MaxBytes: 10 * kB}, func(r []Removal) ([]string, error) { evicted = append(evicted, removedIDs(r)...); return nil, nil })
	of := func(owner string, used int, class Purpose) Meta {
		m := usedOn(used)
		m.Owner, m.Purpose = owner, class
		return m
	}
	want := func(what string, ids ...string) {
		t.Helper()
		if !slices.Equal(evicted, ids) {
			t.Errorf("%s: evicted %q, want %q", what, evicted, ids)
		}
		evicted = nil
	}
	little := stored(t, s, of("bob", 1, Box), blob(2*kB))
	first := stored(t, s, of("alice", 5, Box), blob(3*kB))
	second := stored(t, s, of("alice", 6, Box), blob(3*kB))
	third := stored(t, s, of("alice", 7, Box), blob(3*kB))
	want("one's own before the older one of who has less", first)

	// A new owner takes from the owner with the most.
	stored(t, s, of("carol", 8, Box), blob(3*kB))
	want("of who has most", second)
	stored(t, s, of("bob", 9, Saved), blob(2*kB))

	// Nobody has as much as alice would have: only her own records are evicted.
	c := create(t, s, of("alice", 10, Box))
	err := c.Write(t.Context(), of("alice", 10, Box), 7*kB, fill(blob(7*kB)))
	wantErr(t, "7 kB beside 5 kB of others", err, ErrFull)
	want("for nothing")
	write(t, c, of("alice", 10, Box), blob(3*kB))
	want("one's own", third)
	if _, err := s.Acquire(little); err != nil {
		t.Errorf("bob's box: %v", err)
	}
}

func TestWrite_ExceedsEstimate(t *testing.T) {
	var evicted []Removal
	s := openBeforeRemove(t, Config{MaxBytes: 10 * kB}, func(r []Removal) ([]string, error) { evicted = append(evicted, r...); return nil, nil })
	other := stored(t, s, usedOn(3), blob(4*kB))
	c := create(t, s, usedOn(4))
	write(t, c, usedOn(4), blob(1*kB))
	wantErr(t, "11 kB", c.Write(t.Context(), usedOn(4), 1*kB, fill(blob(11*kB))), ErrFull)
	if len(evicted) > 0 || len(content(t, c.Dir())) != 1*kB {
		t.Errorf("a write of too much evicted %+v", evicted)
	}
	if err := c.Write(t.Context(), usedOn(4), 1*kB, fill(blob(9*kB))); err != nil {
		t.Fatal(err)
	}
	if len(evicted) != 1 || evicted[0].ID != other {
		t.Errorf("evicted %+v, want %s", evicted, other)
	}
}

// TestReservation_CountsForOtherStores: of two concurrent writes in two stores only one
// fits.
func TestReservation_CountsForOtherStores(t *testing.T) {
	s := open(t, Config{MaxBytes: 10 * kB})
	other := open(t, Config{MaxBytes: 10 * kB, Dir: s.dir})
	a, b := create(t, s, usedOn(1)), create(t, other, usedOn(2))
	err := a.Write(t.Context(), usedOn(1), 6*kB, func(ctx context.Context, dir string) error {
		var fullErr *FullError
		if err := b.Write(ctx, usedOn(2), 6*kB, fill("")); !errors.As(err, &fullErr) || fullErr.Missing != 2*kB {
			t.Errorf("6 kB beside 6 kB: %v", err)
		}
		// An update during a write keeps the reservation.
		if err := a.Update(usedOn(3)); err != nil {
			t.Error(err)
		}
		wantErr(t, "again", b.Write(ctx, usedOn(2), 6*kB, fill("")), ErrFull)
		return errors.New("no snapshot")
	})
	if err == nil || !strings.Contains(err.Error(), "no snapshot") {
		t.Errorf("write: %v", err)
	}
	write(t, b, usedOn(2), blob(6*kB)) // nothing is reserved any more
	if m := a.Meta(); !m.Used.Equal(day(3)) {
		t.Errorf("the update during a write is lost: %+v", m)
	}
}

func TestUpdate_DuringWrite(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, usedOn(1))
	err := c.Write(t.Context(), usedOn(2), 1, func(ctx context.Context, dir string) error {
		return errors.Join(c.Update(usedOn(5)), fill("x")(ctx, dir))
	})
	if err != nil {
		t.Fatal(err)
	}
	if m := c.Meta(); !m.Used.Equal(day(5)) {
		t.Errorf("last used %v, want %v", m.Used, day(5))
	}
}

func TestStore_MaxRecords(t *testing.T) {
	var evicted []Removal
	s := openBeforeRemove(t, Config{MaxRecords: 4}, func(r []Removal) ([]string, error) { evicted = append(evicted, r...); return nil, nil })
	stored(t, s, saved(), "kept")
	create(t, s, usedOn(1))
	second := stored(t, s, usedOn(3), "b")
	first := stored(t, s, usedOn(2), "a")
	create(t, s, usedOn(4))
	create(t, s, usedOn(4))
	if len(evicted) != 2 || evicted[0].ID != first || evicted[1].ID != second {
		t.Errorf("evicted %+v", evicted)
	}
	_, err := s.Create(usedOn(5))
	wantErr(t, "one more", err, ErrFull)
	if got := len(list(t, s)); got != 4 {
		t.Errorf("%d records", got)
	}
}

// TestStore_MaxRecordsByOwner: at the limit of records, the owner with the most of them makes room, not the
// one with the most bytes.
func TestStore_MaxRecordsByOwner(t *testing.T) {
	var evicted []Removal
	s := openBeforeRemove(t, Config{MaxRecords: 4}, func(r []Removal) ([]string, error) { evicted = append(evicted, r...); return nil, nil })
	of := func(owner string, used int) Meta {
		m := usedOn(used)
		m.Owner = owner
		return m
	}
	stored(t, s, of("bob", 1), blob(100*kB))
	oldest := stored(t, s, of("alice", 2), "a")
	stored(t, s, of("alice", 3), "b")
	stored(t, s, of("alice", 4), "c")
	create(t, s, of("carol", 5))
	if len(evicted) != 1 || evicted[0].ID != oldest {
		t.Errorf("evicted %+v, want the older one of alice", evicted)
	}
}

func TestSweep(t *testing.T) {
	now := day(20)
	cfg := Config{MaxAge: 10 * 24 * time.Hour, Now: func() time.Time { return now }}
	s := open(t, cfg)
	want := make(map[string]Why)
	put := func(id string, why Why) { want[id] = why }

	put(stored(t, s, usedOn(9), "old"), Age)
	put(stored(t, s, usedOn(11), "young"), "")
	put(stored(t, s, usedOn(30), "of the future"), "")
	put(stored(t, s, saved(), "kept"), "")
	held := create(t, s, usedOn(1))
	write(t, held, usedOn(1), "held")
	put(held.ID(), "")
	for _, m := range []Meta{usedOn(19), saved()} {
		c := create(t, s, m)
		c.Release()
		put(c.ID(), Lost)
	}
	put(create(t, s, usedOn(19)).ID(), "") // lives, and was never saved
	broken := stored(t, s, usedOn(19), "broken")
	if err := os.Truncate(filepath.Join(s.dir, recordsDir, broken, savedName), 10); err != nil {
		t.Fatal(err)
	}
	put(broken, Damaged)
	id := newID()
	if err := os.Mkdir(filepath.Join(s.dir, recordsDir, id), 0o700); err != nil { // a Create that was killed
		t.Fatal(err)
	}
	put(id, Lost)
	if err := os.MkdirAll(filepath.Join(s.dir, trashDir, "x", "y"), 0o700); err != nil {
		t.Fatal(err)
	}

	cfg.Dir = s.dir
	for range 2 {
		for _, r := range sweep(t, open(t, cfg)) {
			if want[r.ID] != r.Why || r.Why == "" {
				t.Errorf("removed %+v, want %q", r, want[r.ID])
			}
			delete(want, r.ID)
		}
	}
	for id, why := range want {
		if _, err := os.Stat(filepath.Join(s.dir, recordsDir, id)); err != nil || why != "" {
			t.Errorf("record %s, to be removed as %q: %v", id, why, err)
		}
	}
	if got := tree(t, filepath.Join(s.dir, trashDir)); len(got) > 0 {
		t.Errorf("trash: %q", got)
	}

	// The clock is set back: nothing has aged.
	now = day(1)
	if removed := sweep(t, s); len(removed) > 0 {
		t.Errorf("with an earlier clock: %+v", removed)
	}
	now = day(60)
	if removed := sweep(t, s); len(removed) != 2 {
		t.Errorf("with a later clock: %+v", removed)
	}
}

// TestSweep_ClockJump: the clock is ahead for a while, and then for good.
func TestSweep_ClockJump(t *testing.T) {
	now := day(2)
	s := open(t, Config{MaxAge: 10 * 24 * time.Hour, AgeGrace: 50 * time.Millisecond, Now: func() time.Time { return now }})
	id := stored(t, s, usedOn(2), "data")
	for range 2 {
		now = day(30)
		if removed := sweep(t, s); len(removed) > 0 {
			t.Fatalf("removed at the first look: %+v", removed)
		}
		time.Sleep(60 * time.Millisecond) // it is right again, and the doubt of before is over
		now = day(3)
		if removed := sweep(t, s); len(removed) > 0 {
			t.Fatalf("removed by a clock that is right: %+v", removed)
		}
	}
	now = day(30)
	begun := time.Now()
	var removed []Removal
	for len(removed) == 0 && time.Since(begun) < 10*time.Second {
		removed = sweep(t, s)
	}
	if took := time.Since(begun); len(removed) != 1 || removed[0].ID != id || removed[0].Why != Age || took < 50*time.Millisecond {
		t.Errorf("removed %+v after %v", removed, took)
	}
}

func removedIDs(removed []Removal) (out []string) {
	for _, r := range removed {
		out = append(out, r.ID)
	}
	return out
}

// TestBeforeRemove_BeforeTheRemoval: another process finds each removed record or learns of its
// removal, and removals for one reason are announced together.
func TestBeforeRemove_BeforeTheRemoval(t *testing.T) {
	now := day(1)
	var s *Store
	var calls []string // the reasons of each call
	cfg := Config{MaxBytes: 3*kB + 100, MaxAge: 10 * 24 * time.Hour, Now: func() time.Time { return now }}
	announce := func(removed []Removal) ([]string, error) {
		reasons := make(map[Why]int)
		for _, r := range removed {
			reasons[r.Why]++
			if _, err := os.Stat(filepath.Join(s.dir, recordsDir, r.ID)); err != nil {
				t.Errorf("record %s was removed (%s) before it was announced: %v", r.ID, r.Why, err)
			}
		}
		calls = append(calls, fmt.Sprint(reasons))
		return nil, nil
	}
	s = openBeforeRemove(t, cfg, announce)
	want := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(calls, want) {
			t.Errorf("%s: announced %q, want %q", what, calls, want)
		}
		calls = nil
	}
	for range 3 {
		stored(t, s, usedOn(1), blob(kB))
	}
	write(t, create(t, s, usedOn(2)), usedOn(2), blob(2*kB))
	want("room for a write", "map[quota:2]")

	stored(t, s, usedOn(1), "old")
	now = day(12)
	damaged := stored(t, s, usedOn(12), "damaged")
	if err := os.RemoveAll(filepath.Join(s.dir, recordsDir, damaged, dataName(1))); err != nil {
		t.Fatal(err)
	}
	if err := create(t, s, usedOn(12)).Release(); err != nil {
		t.Fatal(err)
	}
	if removed := sweep(t, s); len(removed) != 4 {
		t.Errorf("the sweep removed %+v, want 4 records", removed)
	}
	want("a sweep", "map[age:2 damaged:1 lost:1]")

	cfg.Dir, cfg.MaxBytes = s.dir, 1
	for range removeBatchSize + 1 {
		stored(t, s, usedOn(12), "x")
	}
	sweep(t, openBeforeRemove(t, cfg, announce))
	want("a sweep for room", fmt.Sprintf("map[quota:%d]", removeBatchSize), "map[quota:1]")
}

// TestBeforeRemove_ThatFails: records whose removal could not be noted stay, those beside them go,
// and a later sweep announces and removes them.
func TestBeforeRemove_ThatFails(t *testing.T) {
	now := day(1)
	full := errors.New("no space left on device")
	var stay, announced []string
	s := openBeforeRemove(t, Config{MaxAge: 24 * time.Hour, Now: func() time.Time { return now }}, func(r []Removal) ([]string, error) {
		announced = append(announced, removedIDs(r)...)
		if len(stay) > 0 {
			return stay, full
		}
		return nil, nil
	})
	noted, unnoted := stored(t, s, usedOn(1), "a"), stored(t, s, usedOn(1), "b")
	now, stay = day(9), []string{unnoted}
	removed, err := s.Sweep(t.Context())
	if ids := removedIDs(removed); !errors.Is(err, full) || !slices.Equal(ids, []string{noted}) {
		t.Errorf("a sweep with a record that could not be noted: removed %q, %v; want %q and the error", ids, err, noted)
	}
	lease, err := s.Acquire(unnoted)
	if err != nil {
		t.Fatalf("the record that could not be noted: %v", err)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	stay, announced = nil, nil
	if ids := removedIDs(sweep(t, s)); !slices.Equal(ids, []string{unnoted}) || !slices.Equal(announced, ids) {
		t.Errorf("a later sweep announced %q and removed %q, want %q", announced, ids, unnoted)
	}
}

// TestBeforeRemove_Once: a record that cannot be removed is announced once, and again only if it was
// used in between.
func TestBeforeRemove_Once(t *testing.T) {
	now := day(1)
	var s *Store
	stuck, announced := true, 0
	s = openBeforeRemove(t, Config{MaxAge: 24 * time.Hour, Now: func() time.Time { return now }}, func(r []Removal) ([]string, error) {
		announced += len(r)
		return nil, nil
	})
	s.cfg.step = func(name string) {
		if id, ok := strings.CutPrefix(name, "trash "); ok && stuck {
			if err := os.MkdirAll(filepath.Join(s.dir, trashDir, id, "in the way"), 0o700); err != nil {
				t.Error(err)
			}
		}
	}
	id := stored(t, s, usedOn(1), "a")
	try := func(when string, wantAnnounced int) {
		t.Helper()
		if removed, err := s.Sweep(t.Context()); err == nil || len(removed) > 0 {
			t.Fatalf("a sweep %s: removed %+v, %v, want an error", when, removed, err)
		}
		if announced != wantAnnounced {
			t.Errorf("%s: announced %d times, want %d", when, announced, wantAnnounced)
		}
	}
	now = day(9)
	try("at first", 1)
	try("again", 1)
	lease, err := s.Acquire(id)
	if err == nil {
		err = errors.Join(lease.Update(usedOn(9)), lease.Release())
	}
	if err != nil {
		t.Fatal(err)
	}
	now = day(19)
	try("after another use", 2)
	stuck = false
	if removed := sweep(t, s); len(removed) != 1 || announced != 2 || len(s.hookDone) > 0 {
		t.Errorf("the last sweep removed %+v, after %d announcements, and remembers %v; want one record, 2 and nothing", removed, announced, s.hookDone)
	}
}

func TestSweep_Quota(t *testing.T) {
	s := open(t, Config{})
	savedID := stored(t, s, saved(), blob(9*kB))
	old := stored(t, s, usedOn(2), blob(4*kB))
	young := stored(t, s, usedOn(3), blob(1*kB))
	check := func(cfg Config, want ...string) {
		t.Helper()
		cfg.Dir = s.dir
		var got []string
		for _, r := range sweep(t, open(t, cfg)) {
			if r.Why != Evicted {
				t.Errorf("removed %+v", r)
			}
			got = append(got, r.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("removed %q, want %q", got, want)
		}
	}
	check(Config{MaxBytes: 14 * kB, MaxRecords: 3})
	check(Config{MaxBytes: 13 * kB}, old)
	check(Config{MaxBytes: 1 * kB}, young) // even if it does not suffice
	check(Config{MaxBytes: 1 * kB, MaxRecords: 1})
	if got := ids(list(t, s)); !slices.Equal(got, []string{savedID}) {
		t.Errorf("left: %q", got)
	}
}

// TestSweep_OwnerWithMost: a sweep removes what the owner with the most has used least recently.
func TestSweep_OwnerWithMost(t *testing.T) {
	s := open(t, Config{})
	of := func(owner string, used int) Meta {
		m := usedOn(used)
		m.Owner = owner
		return m
	}
	stored(t, s, of("bob", 1), blob(1*kB))
	older := stored(t, s, of("alice", 5), blob(3*kB))
	stored(t, s, of("alice", 6), blob(3*kB))
	if removed := sweep(t, open(t, Config{Dir: s.dir, MaxBytes: 5 * kB})); len(removed) != 1 || removed[0].ID != older {
		t.Errorf("removed %+v, want the older one of alice", removed)
	}
}

func TestSweep_Canceled(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, box("a"))
	c.Release()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	removed, err := s.Sweep(ctx)
	if len(removed) > 0 || !errors.Is(err, why) {
		t.Errorf("%+v, %v", removed, err)
	}
}

// TestWrite_LeavesWhatIsReserved: what others have reserved of the disk is not available.
func TestWrite_LeavesWhatIsReserved(t *testing.T) {
	var reserved atomic.Int64
	s := open(t, Config{Reserved: reserved.Load})
	c := create(t, s, Meta{Purpose: Box, Owner: "a"})
	write := func() error {
		return c.Write(t.Context(), Meta{Purpose: Box, Owner: "a"}, 1<<20, func(_ context.Context, dir string) error {
			return os.WriteFile(filepath.Join(dir, "x"), make([]byte, 1<<20), 0o600)
		})
	}
	free, err := s.free()
	if err != nil {
		t.Fatal(err)
	}
	reserved.Store(2 * free)
	if err := write(); !errors.Is(err, ErrFull) {
		t.Errorf("with all of the disk reserved: %v, want %v", err, ErrFull)
	}
	reserved.Store(0)
	if err := write(); err != nil {
		t.Errorf("with nothing reserved: %v", err)
	}
}

// TestSpace_CountsWrites: data count as used while they are written, once when they are
// committed, and no more when the write failed or the record is removed.
func TestSpace_CountsWrites(t *testing.T) {
	s := open(t, Config{MaxBytes: 10 << 20})
	expect := func(when string, want int64) {
		t.Helper()
		if used, unused := s.Space(); used != want<<20 || unused != (10-want)<<20 {
			t.Errorf("%s: %d bytes used and %d unused, want %d and %d MiB", when, used, unused, want, 10-want)
		}
	}
	c := create(t, s, Meta{Purpose: Box, Owner: "a"})
	write := func(size, during int64, fail error) {
		t.Helper()
		err := c.Write(t.Context(), Meta{Purpose: Box, Owner: "a"}, size<<20, func(_ context.Context, dir string) error {
			expect("before the write", during-size)
			err := os.WriteFile(filepath.Join(dir, "x"), make([]byte, size<<20), 0o600)
			expect("during the write", during)
			return errors.Join(err, fail)
		})
		if !errors.Is(err, fail) {
			t.Fatal(err)
		}
	}
	write(1, 1, nil)
	expect("after a write", 1)
	write(3, 4, nil)
	expect("after a second write", 3)
	write(2, 5, os.ErrInvalid)
	expect("after a failed write", 3)
	if _, err := s.List(nil); err != nil {
		t.Fatal(err)
	}
	expect("after a scan", 3)
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
	expect("after the removal", 0)
	s.cfg.MaxBytes = 0
	if _, unused := s.Space(); unused != 0 {
		t.Errorf("a store without a limit has %d unused bytes", unused)
	}
}
