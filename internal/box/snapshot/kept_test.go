//go:build linux

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// keptOf is the Meta of a snapshot that an owner keeps.
func keptOf(owner string) Meta {
	m := kept()
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

// Kept snapshots, which are never evicted, leave half of the store to boxes, and each
// owner has a quarter of it.
func TestKept_LeaveRoomForBoxes(t *testing.T) {
	s := openRemoving(t, Config{MaxBytes: 100 * kB}, func(r []Removed) ([]string, error) { t.Errorf("removing %+v", r); return nil, nil })
	first := stored(t, s, keptOf("alice"), blob(20*kB))
	wantFull(t, s, keptOf("alice"), 6*kB, LimitOwner, 25*kB)
	stored(t, s, keptOf("alice"), blob(5*kB))
	wantFull(t, s, keptOf("alice"), 0, LimitOwner, 25*kB) // known before anything is written
	stored(t, s, keptOf("bob"), blob(24*kB))
	wantFull(t, s, keptOf("carol"), 2*kB, LimitKept, 50*kB)
	for i := range 5 {
		m := usedOn(i + 1)
		m.Owner = fmt.Sprint("owner", i)
		stored(t, s, m, blob(10*kB))
	}
	if err := s.Delete(first); err != nil {
		t.Fatal(err)
	}
	stored(t, s, keptOf("carol"), "x")
}

// The bytes written count, not the estimate.
func TestKept_ExceedsEstimate(t *testing.T) {
	s := open(t, Config{MaxBytes: 100 * kB, MaxKept: 10 * kB})
	c := create(t, s, keptOf("alice"))
	err := c.Write(t.Context(), keptOf("alice"), 0, fill(blob(11*kB)))
	if full, _ := errors.AsType[*FullError](err); full == nil || full.Limit != LimitOwner || full.Missing != 1*kB {
		t.Errorf("got %v, want 1 kB too much for the owner", err)
	}
	if c.Dir() != "" {
		t.Error("the data are kept")
	}
	write(t, c, keptOf("alice"), blob(10*kB))
}

// A snapshot that is being written counts towards the quota.
func TestKept_ReservationCounts(t *testing.T) {
	s := open(t, Config{MaxBytes: 100 * kB})
	c := create(t, s, keptOf("alice"))
	err := c.Write(t.Context(), keptOf("alice"), 20*kB, func(_ context.Context, dir string) error {
		wantFull(t, s, keptOf("alice"), 10*kB, LimitOwner, 25*kB)
		return fill(blob(20*kB))(t.Context(), dir)
	})
	if err != nil {
		t.Error(err)
	}
}
