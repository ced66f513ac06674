package server

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxReplayEvents bounds the events kept per session besides their bytes: an
// event without data costs memory too.
const maxReplayEvents = 512

// replayTotal times the limit of one session bounds the bytes of all sessions.
const replayTotal = 64

// A replay keeps the newest events of each session, for clients that resume a
// stream. It never blocks and its methods may be called concurrently.
type replay struct {
	limit int // bytes per session
	total int // bytes of all sessions

	mu       sync.Mutex
	bytes    int                 // guarded by mu
	sessions map[string]*history // guarded by mu
	owners   map[string]int      // guarded by mu: bytes
}

type history struct {
	account account
	bytes   int
	events  []event        // oldest first
	last    map[string]int // by stream: the index of its newest event, kept or evicted
}

// An event is one message of a stream. Indexes of a stream are consecutive.
type event struct {
	stream string
	index  int
	data   []byte
}

func newReplay(limit int) *replay {
	return &replay{limit: limit, total: replayTotal * limit, sessions: make(map[string]*history), owners: make(map[string]int)}
}

// open begins the history of a session of an account.
func (r *replay) open(session string, p account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[session] = &history{account: p, last: make(map[string]int)}
}

// append keeps an event, and evicts older events to stay within the limits: first those
// of the session, then those of the owner with the most bytes, in that owner's sessions
// with the most bytes, of readers before others. The newest event of a session may exceed the session's limit. Only
// the limit of all sessions evicts it, after all older events of its owner, and never the
// event that append was called with: memory may exceed that limit by this one event. append
// ignores sessions that are not open.
func (r *replay) append(session, stream string, index int, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.sessions[session]
	if h == nil {
		return
	}
	h.events = append(h.events, event{stream, index, data})
	h.last[stream] = index
	r.countLocked(h, len(data))
	// The newest event is the one that a client most likely missed: its answer.
	for len(h.events) > 1 && (h.bytes > r.limit || len(h.events) > maxReplayEvents) {
		r.evictLocked(h)
	}
	for r.bytes > r.total {
		from := r.largestLocked(h)
		if from == nil {
			break
		}
		r.evictLocked(from)
	}
	h.forget()
}

// skip notes an index without an event, so that a client that has seen it learns
// that the stream is over instead of that events are missing.
func (r *replay) skip(session, stream string, index int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.sessions[session]; h != nil {
		h.last[stream] = max(h.last[stream], index)
		h.forget()
	}
}

// evictLocked evicts the oldest event of a session.
func (r *replay) evictLocked(h *history) {
	r.countLocked(h, -len(h.events[0].data))
	h.events = slices.Delete(h.events, 0, 1)
}

func (r *replay) countLocked(h *history, bytes int) {
	h.bytes += bytes
	r.bytes += bytes
	if r.owners[h.account.owner] += bytes; r.owners[h.account.owner] == 0 {
		delete(r.owners, h.account.owner)
	}
}

// largestLocked returns the session that loses an event: of the owner with the most bytes, a
// session of readers if there is one, and of those the session with the most bytes of those with more than one event or, without such a
// session, of those with one event. It is nil if none but that of current has events.
func (r *replay) largestLocked(current *history) (most *history) {
	for _, h := range r.sessions {
		several := len(h.events) > 1
		if len(h.events) == 0 || h == current && !several {
			continue
		}
		if most == nil {
			most = h
			continue
		}
		if cmp.Or(
			cmp.Compare(r.owners[h.account.owner], r.owners[most.account.owner]),
			cmp.Compare(h.account.owner, most.account.owner), // of owners with as many bytes, always the same one
			cmp.Compare(rank(h.account.reader), rank(most.account.reader)),
			cmp.Compare(min(len(h.events), 2), min(len(most.events), 2)),
			cmp.Compare(h.bytes, most.bytes),
		) > 0 {
			most = h
		}
	}
	return most
}

func rank(reader bool) int {
	if reader {
		return 1
	}
	return 0
}

// forget drops the indexes of streams without events when there are many. To a client
// that resumes one of them, its events count as evicted.
func (h *history) forget() {
	if len(h.last) <= 2*maxReplayEvents {
		return
	}
	last := make(map[string]int)
	for _, e := range h.events {
		last[e.stream] = h.last[e.stream]
	}
	h.last = last
}

// after returns all events of a stream after an index; none if that is the newest.
// If any of them was evicted, or the stream is unknown, it returns
// [mcp.ErrEventsPurged] and no events: a client that got some of them could not
// tell that others are missing.
func (r *replay) after(session, stream string, index int) ([]event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.sessions[session]; h != nil {
		found := h.of(stream, index)
		last, known := h.last[stream]
		if known && last-index == len(found) {
			return found, nil
		}
	}
	return nil, fmt.Errorf("replay stream %q after event %d: %w", stream, index, mcp.ErrEventsPurged)
}

// newest returns the events of a stream that are kept, for a client that has not
// seen any.
func (r *replay) newest(session, stream string) []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.sessions[session]; h != nil {
		return h.of(stream, -1)
	}
	return nil
}

// of returns the events of a stream that are kept and come after index.
func (h *history) of(stream string, index int) (found []event) {
	for _, e := range h.events {
		if e.stream == stream && e.index > index {
			found = append(found, e)
		}
	}
	return found
}

// close drops the history of a session. Events that come later are not kept.
func (r *replay) close(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.sessions[session]; h != nil {
		r.countLocked(h, -h.bytes)
		delete(r.sessions, session)
	}
}
