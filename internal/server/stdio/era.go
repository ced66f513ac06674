package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const methodCancelled = "notifications/cancelled"

// An era carries the messages of one era of the protocol to a session of the SDK,
// and that session's messages to the client. The SDK ties a session to the era of
// its first request: a client that probes with server/discover and falls back to
// initialize needs two.
type era struct {
	conn   *conn
	in     chan jsonrpc.Message
	closed chan struct{}
	once   sync.Once
}

var (
	_ mcp.Transport  = (*era)(nil)
	_ mcp.Connection = (*era)(nil)
)

// Connect implements [mcp.Transport].
func (e *era) Connect(context.Context) (mcp.Connection, error) { return e, nil }

// SessionID implements [mcp.Connection].
func (e *era) SessionID() string { return "" }

// Close implements [mcp.Connection]. The streams stay open.
func (e *era) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

// Read implements [mcp.Connection].
func (e *era) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m, ok := <-e.in:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-e.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements [mcp.Connection].
func (e *era) Write(_ context.Context, m jsonrpc.Message) error { return e.conn.write(m) }

// Serve reads messages until the input ends or ctx does, and returns when every
// session has ended. It does not wait longer than the grace period and a few seconds for a
// client that does not read. It calls connect for the first message of each era of the
// protocol, at most twice, to begin a session over the transport that it passes.
// The error joins those of connect and of the sessions.
func (t *Transport) Serve(ctx context.Context, connect func(mcp.Transport) (*mcp.ServerSession, error)) error {
	c := newConn(t)
	defer c.close()
	served := make(chan error, 1)
	go func() { served <- c.serve(ctx, connect) }()
	stop, inputEnded := c.t.Stop, c.inputEnded
	var late <-chan time.Time
	for {
		select {
		case err := <-served:
			return err
		case <-stop:
			stop, inputEnded = nil, nil
			late = time.After(c.t.StopGrace + lastWords + lastWrites)
		case <-inputEnded:
			inputEnded = nil
			late = time.After(c.t.Grace + lastWords + lastWrites)
		case <-late:
			if c.stuck() {
				// The goroutines that write to the client end with the process.
				c.t.Log.Warn("session ended: the client does not read its answers")
				return nil
			}
			late = time.After(time.Second) // a call takes its time to end
		}
	}
}

// serve is Serve without a bound for writes to a client that does not read.
func (c *conn) serve(ctx context.Context, connect func(mcp.Transport) (*mcp.ServerSession, error)) error {
	var eras [2]*era // older, modern
	var sessions []*mcp.ServerSession
	var errs []error
	for {
		m, modern, err := c.next(ctx)
		if err != nil {
			break // the end of the input, of ctx or of the client
		}
		at := &eras[0]
		if modern {
			at = &eras[1]
		}
		if *at == nil {
			e := &era{conn: c, in: make(chan jsonrpc.Message), closed: make(chan struct{})}
			session, err := connect(e)
			if err != nil {
				errs = append(errs, err)
				break
			}
			*at, sessions = e, append(sessions, session)
		}
		if !c.deliver(ctx, *at, m) {
			break
		}
	}
	for _, e := range eras {
		if e != nil {
			close(e.in)
		}
	}
	for _, s := range sessions {
		errs = append(errs, s.Wait())
	}
	return errors.Join(errs...)
}

// stuck reports whether a write to the client has lasted for lastWrites.
func (c *conn) stuck() bool {
	begun := c.writing.Load()
	return begun != nil && time.Since(*begun) >= lastWrites
}

// deliver hands a message to an era's session. It returns false when that session
// or the connection has ended.
func (c *conn) deliver(ctx context.Context, e *era, m jsonrpc.Message) bool {
	select {
	case e.in <- m:
		return true
	case <-e.closed:
	case <-c.closed:
	case <-ctx.Done():
	}
	return false
}

// cancel suppresses the answer to a request and returns the era of that request, whose
// session of the SDK then cancels the context of its handler. Without such a request ok
// is false. The protocol does not let clients cancel initialize.
func (c *conn) cancel(params json.RawMessage) (modern, ok bool) {
	var p struct {
		ID any `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return false, false
	}
	id, err := jsonrpc.MakeID(p.ID)
	if err != nil {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.pending[id.Raw()]
	if q == nil || q.method == initialize {
		return false, false
	}
	q.cancelled = true
	return q.modern, true
}

// modernMessage reports whether a message claims a revision without sessions.
func modernMessage(env *envelope.Envelope) bool {
	return env.Kind != envelope.Response && env.IsModern()
}
