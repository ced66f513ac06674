//go:build linux

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// savedOf is the Meta of a snapshot that an owner saves.
func savedOf(owner string) Meta {
	m := saved()
	m.Owner = owner
	return m
}

// wantFull checks that a write is refused because of a limit, before it writes anything.
func wantFull(t *testing.T, s *Store, m Meta, n int, want Limit, most int64) {
	t.Helper()
	c := create(t, s, m)
	defer c.Remove()
	err := c.Write(t.Context(), m, int64(n), func(context.Context, string) error {
		t.Error("written without room")
		return nil
	})
	full, _ := errors.AsType[*FullError](err)
	if full == nil || full.Limit != want || full.Max != most || full.Missing <= 0 {
		t.Errorf("%d bytes of %s: got %v, want the limit %q of %d bytes", n, m.Owner, err, want, most)
	}
}

// Saved snapshots, which are never evicted, leave half of the store to boxes, and each
// owner has a quarter of it.
func TestSaved_LeaveRoomForBoxes(t *testing.T) {
	s := openBeforeRemove(t, Config{MaxBytes: 100 * kB}, func(r []Removal) ([]string, error) { t.Errorf("removing %+v", r); return nil, nil })
	first := stored(t, s, savedOf("alice"), blob(20*kB))
	wantFull(t, s, savedOf("alice"), 6*kB, LimitOwner, 25*kB)
	stored(t, s, savedOf("alice"), blob(5*kB))
	wantFull(t, s, savedOf("alice"), 0, LimitOwner, 25*kB) // known before anything is written
	stored(t, s, savedOf("bob"), blob(24*kB))
	wantFull(t, s, savedOf("carol"), 2*kB, LimitSaved, 50*kB)
	for i := range 5 {
		m := usedOn(i + 1)
		m.Owner = fmt.Sprint("owner", i)
		stored(t, s, m, blob(10*kB))
	}
	if err := s.Delete(first); err != nil {
		t.Fatal(err)
	}
	stored(t, s, savedOf("carol"), "x")
}

// The owner of all boxes of a server without tokens has a quarter, too.
func TestSaved_ShareWithoutTokens(t *testing.T) {
	s := open(t, Config{MaxBytes: 100 * kB})
	wantFull(t, s, savedOf(""), 26*kB, LimitOwner, 25*kB)
	stored(t, s, savedOf(""), blob(24*kB))
}

// The shares are of what the disk has room for if that is less than the store may have.
func TestSaved_ShareOfSmallDisk(t *testing.T) {
	s := open(t, Config{MaxBytes: 1000 * kB, MinFree: 8 * kB, free: func() int64 { return 108 * kB }})
	wantFull(t, s, savedOf("alice"), 26*kB, LimitOwner, 25*kB)
	stored(t, s, savedOf("alice"), blob(25*kB))
	s.cfg.free = func() int64 { return 83 * kB } // without what alice has
	wantFull(t, s, savedOf("alice"), 1*kB, LimitOwner, 25*kB)
	s.cfg.MaxBytes = 40 * kB
	wantFull(t, s, savedOf("bob"), 11*kB, LimitOwner, 10*kB)
}

// The bytes written count, not the estimate.
func TestSaved_ExceedsEstimate(t *testing.T) {
	s := open(t, Config{MaxBytes: 100 * kB, MaxSaved: 10 * kB})
	c := create(t, s, savedOf("alice"))
	err := c.Write(t.Context(), savedOf("alice"), 0, fill(blob(11*kB)))
	if full, _ := errors.AsType[*FullError](err); full == nil || full.Limit != LimitOwner || full.Missing != 1*kB {
		t.Errorf("got %v, want 1 kB too much for the owner", err)
	}
	if c.Dir() != "" {
		t.Error("the data are kept")
	}
	write(t, c, savedOf("alice"), blob(10*kB))
}

// A snapshot that is being written counts towards the quota.
func TestSaved_ReservationCounts(t *testing.T) {
	s := open(t, Config{MaxBytes: 100 * kB})
	c := create(t, s, savedOf("alice"))
	err := c.Write(t.Context(), savedOf("alice"), 20*kB, func(_ context.Context, dir string) error {
		wantFull(t, s, savedOf("alice"), 10*kB, LimitOwner, 25*kB)
		return fill(blob(20*kB))(t.Context(), dir)
	})
	if err != nil {
		t.Error(err)
	}
}
