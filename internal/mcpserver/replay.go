package mcpserver

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

// A replay is an [mcp.EventStore] that keeps the newest events of every
// session: what a client misses while it reconnects. Streams that are over
// cost nothing once their events have been pushed out.
type replay struct {
	limit int // bytes per session

	mu       sync.Mutex
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
	return &replay{limit: limit, sessions: make(map[string]*history)}
}

// Open implements [mcp.EventStore].
func (p *replay) Open(context.Context, string, string) error { return nil }

// Append implements [mcp.EventStore].
func (p *replay) Append(_ context.Context, session, stream string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.sessions[session]
	if h == nil {
		h = &history{next: make(map[string]int)}
		p.sessions[session] = h
	}
	h.events = append(h.events, event{stream, h.next[stream], data})
	h.next[stream]++
	h.bytes += len(data)
	drop := 0
	// The newest event stays, however large: it is the answer if anything is.
	for drop < len(h.events)-1 && (h.bytes > p.limit || len(h.events)-drop > maxReplayEvents) {
		h.bytes -= len(h.events[drop].data)
		drop++
	}
	h.events = slices.Delete(h.events, 0, drop)
	if len(h.next) > 2*maxReplayEvents {
		h.forget()
	}
	return nil
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

// After implements [mcp.EventStore].
func (p *replay) After(_ context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	p.mu.Lock()
	var found []event
	var next int
	if h := p.sessions[session]; h != nil {
		next = h.next[stream]
		for _, e := range h.events {
			if e.stream == stream && e.index > index {
				found = append(found, e)
			}
		}
	}
	p.mu.Unlock()
	return func(yield func([]byte, error) bool) {
		if missed := next - (index + 1); missed > 0 && missed != len(found) {
			yield(nil, fmt.Errorf("replay stream %q after %d: %w", stream, index, mcp.ErrEventsPurged))
			return
		}
		for _, e := range found {
			if !yield(e.data, nil) {
				return
			}
		}
	}
}

// SessionClosed implements [mcp.EventStore].
func (p *replay) SessionClosed(_ context.Context, session string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, session)
	return nil
}
