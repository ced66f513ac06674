package fairslots

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// granted lists the owners of the turns that have a slot, in the order of turns.
func granted(turns []*Turn) (owners []string) {
	for _, t := range turns {
		select {
		case <-t.granted:
			owners = append(owners, t.owner)
		default:
		}
	}
	return owners
}

func TestSlots_AreSharedByOwner(t *testing.T) {
	s := New(2)
	var turns []*Turn
	enter := func(owners ...string) {
		for _, o := range owners {
			turns = append(turns, s.Enter(o))
		}
	}
	want := func(when string, owners ...string) {
		t.Helper()
		if got := granted(turns); !slices.Equal(got, owners) {
			t.Errorf("%s: %q have slots, want %q", when, got, owners)
		}
	}
	leave := func(i int) {
		turns[i].Release()
		turns[i].Release() // does nothing
		turns = slices.Delete(turns, i, i+1)
	}
	enter("a", "a", "a", "a")
	want("one owner has the limit", "a", "a")
	enter("b", "b", "c")
	want("one who holds none need not wait for another", "a", "a", "b")
	leave(0)
	want("the extra slot goes to another who holds none", "a", "b", "c")
	enter("d")
	leave(0) // a's second
	want("nor does one wait behind the earlier calls of another", "b", "c", "d")
	leave(5) // d's
	want("of those who hold none, whose turn was longest ago", "a", "b", "c")
	leave(4) // c's
	want("the extra slot is not for those who hold one", "a", "b")
	leave(2) // b's first
	want("the owner with the fewest", "a", "b")
	leave(0) // a's third
	want("those who are left", "a", "b")
	for len(turns) > 0 {
		leave(0)
	}
	if s.used != 0 || len(s.owners) != 0 {
		t.Errorf("after all have left: %d used by %v", s.used, s.owners)
	}
}

func TestSlots_CancelledWait(t *testing.T) {
	s := New(1)
	first, err := s.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("as the test wants")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	leave, err := s.Acquire(ctx, "a")
	if !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
	leave()
	first()
	if s.used != 0 || len(s.owners) != 0 {
		t.Errorf("%d used by %v, want none", s.used, s.owners)
	}
}
