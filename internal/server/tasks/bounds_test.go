package tasks

import "testing"

// TestResults_AtTheBounds: results that fill a limit to the byte are kept, and one byte more is not.
// At the limit of all, an owner loses a result only to one that would have less then.
func TestResults_AtTheBounds(t *testing.T) {
	s := New(Options{Limits: Limits{Result: 100, ResultsKept: 200, ResultsAll: 300}})
	keep := func(owner string, n int) bool {
		task := s.begin(owner, func(error) {})
		t.Cleanup(func() { s.forget(task) })
		s.mu.Lock()
		defer s.mu.Unlock()
		task.setLocked(statusCompleted)
		return s.keepLocked(task, make([]byte, n))
	}
	for i, c := range []struct {
		owner string
		bytes int
		want  bool
	}{
		{"a", 101, false}, // one result
		{"a", 100, true},
		{"a", 100, true},
		{"a", 1, false}, // one owner
		{"b", 100, true},
		{"c", 100, true},  // all: a, which has 200, loses its oldest
		{"d", 100, false}, // the limit of all: no owner has more than d would have
		{"d", 99, true},
	} {
		if got := keep(c.owner, c.bytes); got != c.want {
			t.Errorf("%d: a result of %d bytes of %s is kept: %t, want %t", i, c.bytes, c.owner, got, c.want)
		}
		if s.bytes > 300 {
			t.Errorf("%d: %d bytes are kept", i, s.bytes)
		}
	}
}

// TestResults_OfOthersStayAtTheLimitOfAnOwner: at the limit of one owner, no result of another
// makes room, also one that its client has.
func TestResults_OfOthersStayAtTheLimitOfAnOwner(t *testing.T) {
	s := New(Options{Limits: Limits{Result: 100, ResultsKept: 200, ResultsAll: 1000}})
	keep := func(owner string, told bool) (*task, bool) {
		task := s.begin(owner, func(error) {})
		t.Cleanup(func() { s.forget(task) })
		s.mu.Lock()
		defer s.mu.Unlock()
		task.setLocked(statusCompleted)
		task.wasTold = told
		return task, s.keepLocked(task, make([]byte, 100))
	}
	other, _ := keep("b", true)
	keep("a", false)
	second, _ := keep("a", false)
	if _, kept := keep("a", false); kept || len(other.result) == 0 {
		t.Errorf("one more of an owner at its limit: kept %t; the result of another owner: %d bytes", kept, len(other.result))
	}
	second.wasTold = true
	if _, kept := keep("a", false); !kept || len(second.result) > 0 || len(other.result) == 0 {
		t.Errorf("with a result that its client has: kept %t, beside %d bytes of it; the result of another owner: %d bytes", kept, len(second.result), len(other.result))
	}
}
