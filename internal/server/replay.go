package server

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxReplayEvents bounds the events kept per session besides their bytes: an
// event without data costs memory too.
const maxReplayEvents = 512

// replayTotal is how many times what one session may keep all may keep together.
const replayTotal = 64

// A replay is an [mcp.EventStore] that keeps the newest events of every
// session: what a client misses while it reconnects. Streams that are over
// cost nothing once their events have been pushed out.
type replay struct {
	limit int // bytes per session
	total int // bytes of all sessions
	// skip reports whether an event is not to be kept; nil keeps all.
	skip func(session string, data []byte) bool

	mu       sync.Mutex
	bytes    int                 // guarded by mu
	sessions map[string]*history // guarded by mu
}

type history struct {
	bytes  int
	events []event        // oldest first
	next   map[string]int // stream to the index of its next event
}

type event struct {
	stream string
	index  int
	data   []byte
}

var _ mcp.EventStore = (*replay)(nil)

func newReplay(limit int) *replay {
	return &replay{limit: limit, total: replayTotal * limit, sessions: make(map[string]*history)}
}

// Open implements [mcp.EventStore]. A session begins with the stream that no
// call has opened.
func (p *replay) Open(_ context.Context, session, stream string) error {
	if stream == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sessions[session] = &history{}
	}
	return nil
}

// Append implements [mcp.EventStore]. What comes after the end of a session is
// not kept.
func (p *replay) Append(_ context.Context, session, stream string, data []byte) error {
	if p.skip != nil && p.skip(session, data) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.sessions[session]
	if h == nil {
		return nil
	}
	if h.next == nil {
		h.next = make(map[string]int)
	}
	h.events = append(h.events, event{stream, h.next[stream], data})
	h.next[stream]++
	h.bytes += len(data)
	p.bytes += len(data)
	// The newest event stays, however large: it is the answer if anything is.
	for len(h.events) > 1 && (h.bytes > p.limit || len(h.events) > maxReplayEvents) {
		p.dropLocked(h)
	}
	for p.bytes > p.total {
		p.dropLocked(p.largestLocked())
	}
	if len(h.next) > 2*maxReplayEvents {
		h.forget()
	}
	return nil
}

// dropLocked drops the oldest event of a session.
func (p *replay) dropLocked(h *history) {
	h.bytes -= len(h.events[0].data)
	p.bytes -= len(h.events[0].data)
	h.events = slices.Delete(h.events, 0, 1)
}

// largestLocked is the session that has most to lose.
func (p *replay) largestLocked() (most *history) {
	for _, h := range p.sessions {
		if most == nil || h.bytes > most.bytes {
			most = h
		}
	}
	return most
}

// forget drops the counts of streams without events; nobody says when a
// stream is over. A stream that goes on after all cannot be resumed.
func (h *history) forget() {
	next := map[string]int{"": h.next[""]}
	for _, e := range h.events {
		next[e.stream] = h.next[e.stream]
	}
	h.next = next
}

// After implements [mcp.EventStore]. What has been pushed out is left out: an
// answer without the progress before it is better than none.
func (p *replay) After(_ context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	p.mu.Lock()
	var found [][]byte
	var next int
	if h := p.sessions[session]; h != nil {
		next = h.next[stream]
		for _, e := range h.events {
			if e.stream == stream && e.index > index {
				found = append(found, e.data)
			}
		}
	}
	p.mu.Unlock()
	return func(yield func([]byte, error) bool) {
		if len(found) == 0 && index >= 0 && next != index+1 {
			yield(nil, fmt.Errorf("replay stream %q after %d: %w", stream, index, mcp.ErrEventsPurged))
			return
		}
		for _, data := range found {
			if !yield(data, nil) {
				return
			}
		}
	}
}

// SessionClosed implements [mcp.EventStore].
func (p *replay) SessionClosed(_ context.Context, session string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.sessions[session]; h != nil {
		p.bytes -= h.bytes
		delete(p.sessions, session)
	}
	return nil
}
