package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// turnWait is what a call waits for another one to end, in which somebody may have
// been asked something. Most clients have given up by then.
const turnWait = 5 * time.Minute

// lines are the calls under way at each server. An older server does not say which
// call a question of its belongs to. So from its first question on it is called one
// call at a time.
type lines struct {
	mu sync.Mutex
	of map[string]*line // guarded by mu, by server
}

type line struct {
	calls []*call // in the order in which they began
	asks  bool    // the server has asked something
	freed chan struct{}
}

func (l *lines) get(server string) *line {
	if l.of == nil {
		l.of = make(map[string]*line)
	}
	if l.of[server] == nil {
		l.of[server] = &line{freed: make(chan struct{})}
	}
	return l.of[server]
}

// enter waits until the call may begin. Its end lets others.
func (l *lines) enter(ctx context.Context, c *call) (end func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, turnWait, fmt.Errorf(
		"the server %q asks questions, and is therefore called one call at a time: another one takes longer than %v; try again later", c.server, turnWait))
	defer cancel()
	for {
		l.mu.Lock()
		at := l.get(c.server)
		if !at.asks || len(at.calls) == 0 {
			at.calls = append(at.calls, c)
			l.mu.Unlock()
			return func() { l.leave(c) }, nil
		}
		freed := at.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *lines) leave(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.get(c.server)
	for i, one := range at.calls {
		if one == c {
			at.calls = append(at.calls[:i:i], at.calls[i+1:]...)
			break
		}
	}
	close(at.freed)
	at.freed = make(chan struct{})
}

var (
	errNobody = errors.New("no call of a client is under way, and what is asked or told outside of one belongs to nobody")
	errWhose  = errors.New("calls of several clients are under way, and the server does not say which of them it asks about; from now on it is called one call at a time: make the call again")
)

// whose is the call that something belongs to which a server asks or tells: of the
// only client that has any there, the newest. A question has calls take turns.
func (l *lines) whose(ctx context.Context, server string, question bool) (*call, error) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c, nil // a modern server says which
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.get(server)
	at.asks = at.asks || question
	if len(at.calls) == 0 {
		return nil, errNobody
	}
	newest := at.calls[len(at.calls)-1]
	for _, c := range at.calls {
		if c.client.session != newest.client.session {
			return nil, errWhose
		}
	}
	return newest, nil
}
