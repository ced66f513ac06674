package server

import "testing"

// TestSessions_OpeningOnesCount: sessions that are being opened count against the limits, those of
// readers too: else requests that begin at the same time could exceed them.
func TestSessions_OpeningOnesCount(t *testing.T) {
	p := newPeople(t)
	s := New(Options{Auth: p.v, Limits: Limits{Sessions: 8}})
	alice := account{owner: "token alice"}
	readers := account{owner: "token alice", reader: true}
	take := func(of account, n int) (last func()) {
		t.Helper()
		for i := range n {
			release, e := s.sessions.reserve(of)
			if e != withinLimits {
				t.Fatalf("session %d of %+v: got %v, want a place", i+1, of, e)
			}
			last = release
		}
		return last
	}
	take(readers, 2)
	if _, e := s.sessions.reserve(readers); e != ownerExcess {
		t.Errorf("readers beyond their half, none of them open yet: got %v, want the limit of the owner", e)
	}
	release := take(alice, 2)
	if _, e := s.sessions.reserve(alice); e != ownerExcess {
		t.Errorf("the owner beyond its half, none of them open yet: got %v, want the limit of the owner", e)
	}
	release()
	take(alice, 1)
	take(account{owner: "token bob"}, 4)
	if _, e := s.sessions.reserve(account{owner: "token carol"}); e != totalExcess {
		t.Errorf("beyond all, none of them open yet: got %v, want the limit of all", e)
	}
}
