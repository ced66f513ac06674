package mcpkit

import (
	"context"
	"errors"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// listedTools are the tools of a server, as listed over one connection. The zero value
// knows none.
type listedTools struct {
	mu      sync.Mutex
	version int         // guarded by mu: counts reported changes
	known   bool        // guarded by mu
	tools   []*mcp.Tool // guarded by mu: if known
	current *toolList   // guarded by mu: the list in progress, nil if there is none
}

// A toolList is a list in progress. It ends with the last call that waits for it.
type toolList struct {
	cancel  context.CancelCauseFunc
	waiting int           // guarded by listedTools.mu
	done    chan struct{} // closed at the end
	tools   []*mcp.Tool   // valid after done is closed
	err     error         // valid after done is closed
}

// begin returns the version of a list that begins now.
func (t *listedTools) begin() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version
}

// set stores a list, unless the server has reported a change since it began.
func (t *listedTools) set(tools []*mcp.Tool, version int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if version == t.version {
		t.known, t.tools = true, tools
	}
}

// heard forgets the list if a notification reports that it has changed.
func (t *listedTools) heard(method string) {
	if method != "notifications/tools/list_changed" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	t.known, t.tools, t.current = false, nil, nil
}

// errUnwanted is the cause of a list that no call waits for.
var errUnwanted = errors.New("no call waits for the list")

// listed returns the tools of the server, as listed over a connection. The caller holds a
// part of the method lock.
func (s *Session) listed(ctx context.Context, l *connection) ([]*mcp.Tool, error) {
	t := &l.state.tools
	t.mu.Lock()
	if t.known {
		defer t.mu.Unlock()
		return t.tools, nil
	}
	one := t.current
	if one == nil {
		one = s.beginList(l)
		t.current = one
	}
	one.waiting++
	t.mu.Unlock()
	var gaveUp error
	select {
	case <-one.done:
	case <-ctx.Done():
		gaveUp = context.Cause(ctx)
	}
	t.mu.Lock()
	one.waiting--
	last := one.waiting == 0
	if last && t.current == one {
		t.current = nil
	}
	t.mu.Unlock()
	if last {
		// The list uses the connection, and only those that wait for it hold the method lock.
		one.cancel(errUnwanted)
		<-one.done
	}
	if gaveUp != nil {
		return nil, gaveUp
	}
	return one.tools, one.err
}

// beginList lists the tools over a connection. The caller holds the mutex of the list. The
// list belongs to the connection, so that no call accounts for its memory, which Limits bound.
func (s *Session) beginList(l *connection) *toolList {
	ctx, cancel := context.WithCancelCause(context.Background())
	one, version := &toolList{cancel: cancel, done: make(chan struct{})}, l.state.tools.version
	go func() {
		defer close(one.done)
		defer cancel(nil)
		_, one.err = s.roundTrip(ctx, "list tools", l, func(ctx context.Context, cs *mcp.ClientSession) (err error) {
			one.tools, err = s.readTools(ctx, cs)
			return err
		})
		if one.err == nil {
			l.state.tools.set(one.tools, version)
		}
	}()
	return one
}
