package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// serialWait bounds the wait of a call for its turn at a server that is called one call
// at a time. The call in progress may be waiting for its user; most clients give up
// earlier.
const serialWait = 5 * time.Minute

// callSerializer tracks the calls in progress at each server. A legacy server does not
// say which call its request for input belongs to, so after its first such request the
// gateway sends it one call at a time.
type callSerializer struct {
	mu sync.Mutex
	of map[string]*serverCalls // guarded by mu, by server
}

type serverCalls struct {
	calls      []*call       // oldest first
	serialized bool          // one call at a time: the server has requested input
	ended      chan struct{} // closed when a call ends
}

func (s *callSerializer) get(server string) *serverCalls {
	if s.of == nil {
		s.of = make(map[string]*serverCalls)
	}
	if s.of[server] == nil {
		s.of[server] = &serverCalls{ended: make(chan struct{})}
	}
	return s.of[server]
}

// begin waits until the call may start. The caller must call end when the call has
// ended.
func (s *callSerializer) begin(ctx context.Context, c *call) (end func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, serialWait, fmt.Errorf(
		"the server %q asks questions and is therefore called one call at a time; another call has taken longer than %v: try again later", c.server, serialWait))
	defer cancel()
	for {
		s.mu.Lock()
		at := s.get(c.server)
		if !at.serialized || len(at.calls) == 0 {
			at.calls = append(at.calls, c)
			s.mu.Unlock()
			return func() { s.end(c) }, nil
		}
		ended := at.ended
		s.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *callSerializer) end(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.get(c.server)
	for i, one := range at.calls {
		if one == c {
			at.calls = append(at.calls[:i:i], at.calls[i+1:]...)
			break
		}
	}
	close(at.ended)
	at.ended = make(chan struct{})
}

// inProgress returns the calls in progress at a server.
func (s *callSerializer) inProgress(server string) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.get(server).calls)
}

var (
	errNoCall        = errors.New("the server asked a client while no call of a client was in progress")
	errAmbiguousCall = errors.New("calls of several clients are in progress and the server does not say which one it asks about; it is called one call at a time from now on: repeat the call")
)

// callFor returns the call that a server's request or notification belongs to: the one
// in ctx, or the newest call at the server if all of its calls are of one client.
// needsInput marks a request for input and makes the server's later calls sequential.
func (s *callSerializer) callFor(ctx context.Context, server string, needsInput bool) (*call, error) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c, nil // a modern server names the call
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.get(server)
	at.serialized = at.serialized || needsInput
	if len(at.calls) == 0 {
		return nil, errNoCall
	}
	newest := at.calls[len(at.calls)-1]
	for _, c := range at.calls {
		if c.client.session != newest.client.session {
			return nil, errAmbiguousCall
		}
	}
	return newest, nil
}
