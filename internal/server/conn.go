package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// A conn carries the messages of POSTs to a session of the SDK, and what that session
// writes to the streams of its client. A client's session has one for its whole life;
// requests without a session have one for their POST.
type conn struct {
	server  *Server
	session string // the id of the session; "" without
	modern  bool   // carries the revisions without sessions, and no others

	incoming chan jsonrpc.Message
	closed   chan struct{}

	mu       sync.Mutex
	isClosed bool               // guarded by mu
	calls    map[string]*call   // guarded by mu: by key
	streams  map[string]*stream // guarded by mu: with requests in flight, by id; only of sessions
	own      *stream            // guarded by mu: of messages that belong to no request; nil: there are none

	early earlyCancels // guarded by mu; only of sessions

	away map[string]context.CancelCauseFunc // guarded by mu: calls that are forwarded to another server, by key
}

var (
	_ mcp.Transport                = (*conn)(nil)
	_ mcp.Connection               = (*conn)(nil)
	_ mcp.ProtocolVersionSupporter = (*conn)(nil)
)

func (s *Server) newConn(session string, modern bool) *conn {
	return &conn{
		server: s, session: session, modern: modern,
		incoming: make(chan jsonrpc.Message), closed: make(chan struct{}),
		calls: make(map[string]*call), streams: make(map[string]*stream),
	}
}

// Connect implements [mcp.Transport].
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SupportsProtocolVersion implements [mcp.ProtocolVersionSupporter].
func (c *conn) SupportsProtocolVersion(version string) bool {
	return c.modern || !revision.IsModern(version)
}

// SessionID implements [mcp.Connection].
func (c *conn) SessionID() string { return c.session }

// Read implements [mcp.Connection].
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.incoming:
		return m, nil
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deliver hands a message to the session, and reports false if that has ended.
func (c *conn) deliver(m jsonrpc.Message) bool {
	select {
	case c.incoming <- m:
		return true
	case <-c.closed:
		return false
	}
}

// Write implements [mcp.Connection]. It returns an error for a message that cannot be
// delivered; the session continues. A panic ends only the call that it happens in: the
// goroutines of the SDK that call Write do not recover.
func (c *conn) Write(ctx context.Context, m jsonrpc.Message) (err error) {
	var cl *call // that m answers
	defer func() {
		if p := recover(); p != nil {
			c.server.log.Error("panic while delivering a message", logkey.MCPSession, c.session, logkey.Panic, fmt.Sprint(p), logkey.Stack, string(debug.Stack()))
			if cl != nil {
				c.server.abort(cl)
			}
			err = errNotDelivered
		}
	}()
	if r, ok := m.(*jsonrpc.Response); ok {
		cl = c.find(envelope.SDKKey(r.ID))
		if cl == nil {
			c.server.log.Warn("response of the SDK matches no request in flight", logkey.MCPSession, c.session)
			return errNotDelivered
		}
		if cl.message != nil {
			// The queue of the SDK refers to the last message of a session until the next one, which
			// may never come, and the owner is no longer charged for its body after the answer.
			cl.message.Params, cl.message.Extra = nil, nil
		}
		c.server.answer(cl, r.Result, r.Error)
		return nil
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() && c.session == "" {
		return &jsonrpc.Error{Code: errNotDelivered.Code, Message: "a client without a session cannot be asked"}
	}
	to := c.streamOf(ctx)
	if to == nil {
		return errNotDelivered
	}
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return to.send(data)
}

// streamOf returns the stream for a message that is sent with ctx: that of the request
// whose handler sends it, or the one that belongs to no request.
func (c *conn) streamOf(ctx context.Context) *stream {
	cl := callIn(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl == nil || cl.conn != c {
		return c.own
	}
	if c.calls[cl.key] != cl {
		return nil // it has been answered
	}
	return cl.stream
}

// Close implements [mcp.Connection]. Calls in flight are answered with an error.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return nil
	}
	c.isClosed = true
	close(c.closed)
	var left []*call
	for _, cl := range c.calls {
		left = append(left, cl)
	}
	c.mu.Unlock()
	for _, cl := range left {
		cause := context.Cause(cl.ctx)
		if cause == nil {
			cause = errSessionEnded
		}
		c.server.answer(cl, nil, tools.ProtocolError(box.CodeCancelled, cancelledPrefix+cause.Error(), nil))
	}
	if c.session != "" {
		c.server.replay.close(c.session)
	}
	return nil
}

var errSessionEnded = errors.New("the session has ended")

// add adds a call in flight, unless another has its id.
func (c *conn) add(cl *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away[cl.key] != nil || c.calls[cl.key] != nil || c.isClosed {
		return false
	}
	c.calls[cl.key] = cl
	if c.session != "" {
		c.streams[cl.stream.id] = cl.stream
	}
	if c.early.take(cl.key, time.Now()) {
		cl.cancelled.Store(true)
		cl.cancel(errCancelled)
	}
	return true
}

// take removes a call from those in flight, so that the client may use its id again. It
// reports false if that is done: each call is answered once.
func (c *conn) take(cl *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[cl.key] != cl {
		return false
	}
	delete(c.calls, cl.key)
	c.early.end(cl.key)
	return true
}

// forget removes a stream whose requests are all answered.
func (c *conn) forget(to *stream) {
	select {
	case <-to.done:
	default:
		return
	}
	c.drop(to)
}

// drop removes a stream.
func (c *conn) drop(to *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, to.id)
}

func (c *conn) find(key string) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[key]
}

// stream returns a stream with requests in flight, or the one that belongs to no
// request; nil if there is none of that id.
func (c *conn) stream(id string) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == "" {
		return c.own
	}
	return c.streams[id]
}

// cancel cancels a call and suppresses its answer: one in flight or, in a session, one that is
// still to come.
func (c *conn) cancel(key string) {
	c.mu.Lock()
	cl, away := c.calls[key], c.away[key]
	if cl == nil && away == nil && c.session != "" {
		c.early.add(key, time.Now())
	}
	c.mu.Unlock()
	if cl != nil {
		cl.cancelled.Store(true)
		cl.cancel(errCancelled)
	}
	if away != nil {
		away(errCancelled)
	}
}

// forwarded remembers how to cancel a call that is forwarded to another server, until done is
// called, with whether it was served there. It reports false if another call, forwarded or served here, has its id, or if the
// session has ended.
func (c *conn) forwarded(key string, cancel context.CancelCauseFunc) (done func(served bool), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away[key] != nil || c.isClosed || c.calls[key] != nil {
		return nil, false
	}
	if c.away == nil {
		c.away = make(map[string]context.CancelCauseFunc)
	}
	c.away[key] = cancel
	if c.early.take(key, time.Now()) {
		cancel(errCancelled)
	}
	return func(served bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.away, key)
		if served {
			c.early.end(key)
		}
	}, true
}

// ended reports whether the session has ended.
func (c *conn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isClosed
}

// setOwn sets the stream of messages that belong to no request.
func (c *conn) setOwn(to *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = to
}
