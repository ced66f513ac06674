package fairlru

import (
	"slices"
	"testing"
)

type key struct {
	owner string
	n     int
}

// TestAdd_EvictsOfTheOwnerWithTheMost checks who loses an entry when the LRU is full.
func TestAdd_EvictsOfTheOwnerWithTheMost(t *testing.T) {
	l := New[string, key, int](4, func(k key) string { return k.owner })
	for i, k := range []key{{"quiet", 0}, {"loud", 0}, {"loud", 1}, {"loud", 2}} {
		l.Add(k, i)
	}
	steps := []struct {
		add     key
		evicted key
	}{
		{key{"loud", 3}, key{"loud", 0}},
		{key{"new", 0}, key{"loud", 1}},
		{key{"loud", 4}, key{"loud", 2}},
		{key{"new", 1}, key{"loud", 3}},
	}
	for _, s := range steps {
		before := l.Keys()
		l.Add(s.add, 0)
		var evicted []key
		for _, k := range before {
			if !l.Contains(k) {
				evicted = append(evicted, k)
			}
		}
		if !slices.Equal(evicted, []key{s.evicted}) || l.Len() != 4 {
			t.Errorf("%v evicted %v, want %v; %d entries", s.add, evicted, s.evicted, l.Len())
		}
	}
	if !l.Contains(key{"quiet", 0}) {
		t.Error("another owner's entries evicted that of a quiet owner")
	}
}

// TestAdd_SameKey checks that a new value of a key evicts nothing.
func TestAdd_SameKey(t *testing.T) {
	l := New[string, key, int](2, func(k key) string { return k.owner })
	l.Add(key{"a", 0}, 1)
	l.Add(key{"a", 1}, 1)
	l.Add(key{"a", 0}, 2)
	if v, _ := l.Peek(key{"a", 0}); v != 2 || l.Len() != 2 {
		t.Errorf("value %d of %d entries, want 2 of 2", v, l.Len())
	}
}
