package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// indexes returns those of events, for comparison.
func indexes(events []event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprint(&b, e.index, " ")
	}
	return strings.TrimSpace(b.String())
}

// TestReplay_AfterEvictionReturnsNoEvents: a client that resumes a stream gets all events
// that it missed, or an error. A part of them would look complete.
func TestReplay_AfterEvictionReturnsNoEvents(t *testing.T) {
	p := newReplay(100)
	p.open("s", account{})
	for i := range 5 {
		p.append("s", "a", i, make([]byte, 30)) // three have room
	}
	for after, want := range map[int]string{1: "2 3 4", 2: "3 4", 3: "4", 4: ""} {
		if got, err := p.after("s", "a", after); err != nil || indexes(got) != want {
			t.Errorf("after %d: got %q, %v, want %q", after, indexes(got), err, want)
		}
	}
	for _, after := range []int{-1, 0, 5, 99} {
		if got, err := p.after("s", "a", after); !errors.Is(err, mcp.ErrEventsPurged) || len(got) > 0 {
			t.Errorf("after %d: got %q, %v, want ErrEventsPurged", after, indexes(got), err)
		}
	}
	if got := indexes(p.newest("s", "a")); got != "2 3 4" {
		t.Errorf("the newest: got %q", got)
	}
}

// TestReplay_SecondReconnectKeepsIndexes: an event has the same index whenever it is
// replayed, so that a connection that breaks again resumes where it broke.
func TestReplay_SecondReconnectKeepsIndexes(t *testing.T) {
	p := newReplay(1000)
	p.open("s", account{})
	for i := 3; i < 9; i++ {
		p.append("s", "a", i, []byte("x"))
		p.append("s", "b", i-3, []byte("y"))
	}
	first, err := p.after("s", "a", 4)
	if err != nil || indexes(first) != "5 6 7 8" {
		t.Fatalf("first: got %q, %v", indexes(first), err)
	}
	second, err := p.after("s", "a", first[1].index)
	if err != nil || indexes(second) != "7 8" {
		t.Errorf("second: got %q, %v", indexes(second), err)
	}
}

// TestReplay_TotalLimitEvictsOlderEventsFirst: a session keeps its newest event, often its
// only answer, while others have older ones.
func TestReplay_TotalLimitEvictsOlderEventsFirst(t *testing.T) {
	const limit = 100
	p := newReplay(limit)
	p.open("answer", account{})
	p.append("answer", "a", 0, make([]byte, limit*replayTotal/2)) // the most bytes of all sessions
	for i := range 2 * replayTotal {
		id := fmt.Sprint("many", i)
		p.open(id, account{})
		for index := range 3 {
			p.append(id, "a", index, make([]byte, 20))
		}
		if got := indexes(p.newest(id, "a")); !strings.HasSuffix(got, "2") {
			t.Fatalf("session %s keeps the events %q, want the newest, 2, among them", id, got)
		}
	}
	if got, err := p.after("answer", "a", -1); err != nil || len(got) != 1 {
		t.Errorf("session with one event keeps %d, %v", len(got), err)
	}
	if p.bytes > limit*replayTotal {
		t.Errorf("%d bytes are kept, more than %d", p.bytes, limit*replayTotal)
	}
}

// TestReplay_EventOverTotalLimitStays: an answer larger than the limit of all sessions can
// be resumed, at the cost of all others.
func TestReplay_EventOverTotalLimitStays(t *testing.T) {
	p := newReplay(100)
	p.open("other", account{})
	p.append("other", "a", 0, make([]byte, 50))
	p.open("large", account{})
	p.append("large", "a", 0, make([]byte, 101*replayTotal))
	if got, err := p.after("large", "a", -1); err != nil || len(got) != 1 {
		t.Errorf("%d events are kept, %v, want the large one", len(got), err)
	}
	if got := p.newest("other", "a"); len(got) != 0 {
		t.Errorf("another session keeps %d events", len(got))
	}
	p.append("other", "a", 1, []byte("x"))
	if p.bytes != 1 {
		t.Errorf("%d bytes are kept, want those of the next event only", p.bytes)
	}
}

func TestReplay_IsBounded(t *testing.T) {
	p := newReplay(1000)
	for _, id := range []string{"x", "y", "z"} {
		p.open(id, account{})
	}
	for i := range 5000 {
		p.append("x", fmt.Sprint("s", i/3), i%3, []byte(strings.Repeat("y", i%50)))
	}
	h := p.sessions["x"]
	if h.bytes > 1000 || len(h.events) > maxReplayEvents || len(h.last) > 2*maxReplayEvents {
		t.Errorf("kept %d bytes, %d events, %d streams", h.bytes, len(h.events), len(h.last))
	}
	for _, stream := range []string{"s0", "never"} {
		if _, err := p.after("x", stream, 0); !errors.Is(err, mcp.ErrEventsPurged) {
			t.Errorf("stream %s: got %v", stream, err)
		}
	}
	for i := range maxReplayEvents + 5 {
		p.append("y", "a", i, nil)
	}
	if got := p.newest("y", "a"); len(got) != maxReplayEvents {
		t.Errorf("%d events without bytes are kept", len(got))
	}
	p.append("z", "a", 0, make([]byte, 5000))
	if got, err := p.after("z", "a", -1); len(got) != 1 || err != nil {
		t.Errorf("an answer over the limit: %d events, %v", len(got), err)
	}
	for i := range 200 {
		p.open(fmt.Sprint("many", i), account{})
		p.append(fmt.Sprint("many", i), "a", 0, make([]byte, 900))
	}
	sum := 0
	for _, h := range p.sessions {
		sum += h.bytes
	}
	if sum != p.bytes || sum > 1000*replayTotal {
		t.Errorf("all keep %d bytes and count %d", sum, p.bytes)
	}
	for id := range p.sessions {
		p.close(id)
		p.append(id, "a", 0, []byte("late"))
	}
	if len(p.sessions) != 0 || p.bytes != 0 {
		t.Errorf("closed sessions keep %d bytes", p.bytes)
	}
}

// TestReplay_OwnerWithMostBytesLosesEvents: many sessions of one owner do not evict the
// events of other owners' few sessions.
func TestReplay_OwnerWithMostBytesLosesEvents(t *testing.T) {
	const limit = 100
	p := newReplay(limit)
	p.open("bob", account{owner: "bob"})
	for i := range 3 {
		p.append("bob", "a", i, make([]byte, limit/3)) // more than any session of alice
	}
	for i := range 4 * replayTotal {
		id := fmt.Sprint("alice", i)
		p.open(id, account{owner: "alice"})
		p.append(id, "a", 0, make([]byte, limit/2))
	}
	if got := indexes(p.newest("bob", "a")); got != "0 1 2" {
		t.Errorf("bob keeps the events %q, want all three", got)
	}
	if p.bytes > limit*replayTotal || p.owners["alice"]+p.owners["bob"] != p.bytes {
		t.Errorf("%d bytes are kept, %v by owner, want at most %d", p.bytes, p.owners, limit*replayTotal)
	}
	for id := range p.sessions {
		p.close(id)
	}
	if len(p.owners) != 0 {
		t.Errorf("closed sessions are charged to %v", p.owners)
	}
}

// TestReadToken_ReplayEvents: at the limit of all sessions, events of an owner's readers go before those of
// its other callers, although a session of these has more.
func TestReadToken_ReplayEvents(t *testing.T) {
	const limit = 100
	p := newReplay(limit)
	p.open("work", account{owner: "alice"})
	p.append("work", "s", 0, make([]byte, limit))
	for i := range 2 * replayTotal {
		session := fmt.Sprint("read", i)
		p.open(session, account{"alice", true})
		p.append(session, "s", 0, make([]byte, limit-1))
	}
	if n := len(p.sessions["work"].events); n != 1 {
		t.Errorf("%d events of the session of the caller who works are left", n)
	}
	if p.bytes > p.total {
		t.Errorf("%d bytes are kept, want %d at most", p.bytes, p.total)
	}
}
