package server

import (
	"context"
	"errors"
	"sync"
)

var errResumed = errors.New("the client takes the stream up on another connection")

// streamOwners are the connections that the streams of a session go to. A client whose
// connection died may come back before anything has told us so: whoever says which
// event was last takes the stream from the connection that has it.
type streamOwners struct {
	mu      sync.Mutex
	streams map[string]*streamOwner // guarded by mu: nil if there are none
}

type streamOwner struct {
	cancel   context.CancelCauseFunc
	released chan struct{}
}

// take ends the connection that a stream goes to, if any, and waits for its end.
func (p *streamOwners) take(ctx context.Context, stream string) {
	p.mu.Lock()
	c := p.streams[stream]
	p.mu.Unlock()
	if c == nil {
		return
	}
	c.cancel(errResumed)
	select {
	case <-c.released:
	case <-ctx.Done():
	}
}

// hold notes that a stream goes to the connection that cancel ends, until release
// is called. It does nothing if the stream goes to another.
func (p *streamOwners) hold(stream string, cancel context.CancelCauseFunc) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[stream] != nil {
		return func() {}
	}
	if p.streams == nil {
		p.streams = make(map[string]*streamOwner)
	}
	c := &streamOwner{cancel, make(chan struct{})}
	p.streams[stream] = c
	return func() {
		close(c.released)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, stream)
		if len(p.streams) == 0 {
			p.streams = nil // most sessions are idle most of the time
		}
	}
}
