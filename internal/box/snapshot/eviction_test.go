//go:build linux

package snapshot

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// ofOwner is usedOn for an owner.
func ofOwner(owner string, used int) Meta {
	m := usedOn(used)
	m.Owner = owner
	return m
}

// TestWrite_GoesOnDuringEviction: while the removal of records is noted on a disk that does not
// answer, a write that needs no eviction goes on, in this process and in another. The writer
// that evicts looks again afterwards, and evicts another record for the room that was taken.
func TestWrite_GoesOnDuringEviction(t *testing.T) {
	for _, same := range []bool{true, false} {
		noting, answer := make(chan []string), make(chan struct{})
		s := openBeforeRemove(t, Config{MaxBytes: 10 * kB}, func(r []Removal) ([]string, error) {
			noting <- removedIDs(r)
			<-answer
			return nil, nil
		})
		other := s
		if !same {
			other = open(t, Config{MaxBytes: 10 * kB, Dir: s.dir})
		}
		write(t, create(t, s, ofOwner("alice", 9)), ofOwner("alice", 9), blob(4*kB))
		first := stored(t, s, ofOwner("alice", 1), blob(2*kB))
		second := stored(t, s, ofOwner("alice", 2), blob(3*kB))

		evicting := create(t, s, ofOwner("alice", 9))
		done := make(chan error, 1)
		go func() { done <- evicting.Write(t.Context(), ofOwner("alice", 9), 3*kB, fill(blob(3*kB))) }()
		noted := <-noting

		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("it waits for the eviction"))
		bob := create(t, other, ofOwner("bob", 9))
		err := bob.Write(ctx, ofOwner("bob", 9), kB, fill(blob(kB)))
		cancel()
		if err != nil {
			t.Errorf("same process %t: a write of another owner during an eviction: %v", same, err)
		}
		answer <- struct{}{}
		if err == nil { // bob has taken the room
			noted = append(noted, <-noting...)
			answer <- struct{}{}
			if want := []string{first, second}; !slices.Equal(noted, want) {
				t.Errorf("same process %t: evicted %q, want %q", same, noted, want)
			}
		}
		if err := <-done; err != nil {
			t.Errorf("same process %t: the write that evicts: %v", same, err)
		}
	}
}

// TestWrite_WaitsForEvictionOfOthers: of two writes that lack the same room, the second waits
// for the eviction of the first, and evicts nothing if that was enough.
func TestWrite_WaitsForEvictionOfOthers(t *testing.T) {
	noting, answer := make(chan []string), make(chan struct{})
	s := openBeforeRemove(t, Config{MaxBytes: 10 * kB}, func(r []Removal) ([]string, error) {
		noting <- removedIDs(r)
		<-answer
		return nil, nil
	})
	other := openBeforeRemove(t, Config{MaxBytes: 10 * kB, Dir: s.dir}, func(r []Removal) ([]string, error) {
		t.Errorf("the second write evicts %q too", removedIDs(r))
		return nil, nil
	})
	write(t, create(t, s, ofOwner("alice", 9)), ofOwner("alice", 9), blob(5*kB))
	first := stored(t, s, ofOwner("alice", 1), blob(2*kB))
	second := stored(t, s, ofOwner("alice", 2), blob(3*kB))

	done := make(chan error, 1)
	c := create(t, s, ofOwner("alice", 9))
	go func() { done <- c.Write(t.Context(), ofOwner("alice", 9), kB, fill(blob(kB))) }()
	if noted := <-noting; !slices.Equal(noted, []string{first}) {
		t.Errorf("evicted %q, want %q", noted, first)
	}
	enough := errors.New("it has waited")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, enough)
	defer cancel()
	waits := create(t, other, ofOwner("alice", 9))
	if err := waits.Write(ctx, ofOwner("alice", 9), kB, fill(blob(kB))); !errors.Is(err, enough) {
		t.Errorf("a write that lacks room, during an eviction: got %v, want that it waits", err)
	}
	answer <- struct{}{}
	if err := <-done; err != nil {
		t.Errorf("the write that evicts: %v", err)
	}
	write(t, waits, ofOwner("alice", 9), blob(kB))
	if !slices.Contains(ids(list(t, s)), second) {
		t.Errorf("record %s is gone, though one eviction was enough", second)
	}
}
