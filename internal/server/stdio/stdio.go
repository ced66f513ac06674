// Package stdio is the transport over standard input and output: one JSON message a
// line. No input ends the connection: the answer to an invalid line is an error, and the
// next line is read. A request that the client cancels is not answered.
//
// At the end of the input the transport waits until every request in flight is answered,
// a time limit passes, or the reader of the output is gone, and then ends the session.
package stdio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const (
	// defaultMaxLine fits the largest upload, 31 MiB as base64, and as much code
	// with every character escaped.
	defaultMaxLine = 64 << 20
	// defaultGrace is a little longer than the longest call.
	defaultGrace = 310 * time.Second
	// maxPending bounds the requests in flight: each may hold a line and a goroutine.
	maxPending = 1000
	// lastWords bounds how long the answers of cancelled calls are waited for.
	lastWords = 2 * time.Second
	// lastWrites bounds how long a write to the client may last afterwards: a client that does not
	// read must not keep the server from ending.
	lastWrites = 10 * time.Second
)

const (
	initialize = "initialize"
	listen     = "subscriptions/listen"
)

var bom = []byte("\xef\xbb\xbf")

// A Transport serves exactly one client.
type Transport struct {
	In  io.Reader
	Out io.Writer

	// MaxLine bounds the bytes of an incoming line; 0 means 64 MiB. The answer to a
	// longer line is an error; the line is skipped without being stored.
	MaxLine int
	// Grace bounds how long Serve waits for calls in flight after the end of the
	// input; 0 means a little over the longest call.
	Grace time.Duration
	// Stop, when closed, ends the session as the end of input does, with
	// StopGrace in place of Grace; 0 means the same.
	Stop      <-chan struct{}
	StopGrace time.Duration
	// Ending is called when In has ended or Stop is closed, before calls in flight
	// are waited for; may be nil. It must return at once.
	Ending func()
	// Abort cancels the calls in flight when Grace is over, Out is a pipe or socket that
	// has lost its reader after In has ended, or a write to Out has failed; may be nil. It is
	// called once, possibly while Serve runs connect.
	Abort func()
	// Log gets a record for each refused line; nil discards them.
	Log *slog.Logger
}

// newConn begins to read lines.
func newConn(t *Transport) *conn {
	c := &conn{
		t: *t, w: t.Out,
		lines:      make(chan line),
		closed:     make(chan struct{}),
		inputEnded: make(chan struct{}),
		wlock:      make(chan struct{}, 1),
		changed:    make(chan struct{}, 1),
		pending:    make(map[any]*call),
	}
	if c.t.MaxLine <= 0 {
		c.t.MaxLine = defaultMaxLine
	}
	if c.t.Grace <= 0 {
		c.t.Grace = defaultGrace
	}
	if c.t.StopGrace <= 0 {
		c.t.StopGrace = c.t.Grace
	}
	if c.t.Log == nil {
		c.t.Log = slog.New(slog.DiscardHandler)
	}
	if c.t.Abort == nil {
		c.t.Abort = func() {}
	}
	c.t.Abort = sync.OnceFunc(c.t.Abort)
	go c.readLines()
	return c
}

// A call is a request without an answer.
type call struct {
	method    string
	modern    bool
	batch     *batch // nil: none
	cancelled bool   // by the client, which gets no answer
}

// parked reports whether only the end of the session answers the request.
func (c *call) parked() bool { return c.method == listen }

// A conn is the connection to the client, which the sessions of both eras share.
type conn struct {
	t       Transport
	lines   chan line
	queue   []incoming // used by next only
	closed  chan struct{}
	once    sync.Once
	changed chan struct{} // a token whenever pending may have become empty

	inputEnded chan struct{} // closed when In has ended

	wlock   chan struct{}             // full while somebody writes
	w       io.Writer                 // written to under wlock
	writing atomic.Pointer[time.Time] // when the write in progress began; nil: there is none

	mu      sync.Mutex
	pending map[any]*call // guarded by mu: requests without an answer, by id
	version string        // guarded by mu: the revision that was negotiated, or at first asked for
	started bool          // guarded by mu: a revision was negotiated
}

// An incoming message, and whether it belongs to the modern era.
type incoming struct {
	m      jsonrpc.Message
	modern bool
}

// close ends the connection. It does not close the streams.
func (c *conn) close() { c.once.Do(func() { close(c.closed) }) }

// next returns the next message and whether it belongs to the modern era. The
// error is [io.EOF] when the input or the connection has ended and nothing is in
// flight any more, or that of ctx.
func (c *conn) next(ctx context.Context) (m jsonrpc.Message, modern bool, err error) {
	for {
		if len(c.queue) > 0 {
			first := c.queue[0]
			c.queue = c.queue[1:]
			return first.m, first.modern, nil
		}
		select {
		case <-c.closed:
			return nil, false, io.EOF
		default:
		}
		select {
		case l := <-c.lines:
			if l.err != nil {
				if !errors.Is(l.err, io.EOF) {
					c.t.Log.Warn("input not read", logkey.Error, l.err)
				}
				c.holdBack(ctx, c.t.Grace)
				return nil, false, io.EOF
			}
			c.take(l)
		case <-c.t.Stop:
			c.holdBack(ctx, c.t.StopGrace)
			return nil, false, io.EOF
		case <-c.closed:
			return nil, false, io.EOF
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// holdBack returns when no request is in flight, the grace period is over, or the client
// is gone.
func (c *conn) holdBack(ctx context.Context, grace time.Duration) {
	if c.t.Ending != nil {
		c.t.Ending()
	}
	watching, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		if unread(watching, c.w) {
			close(gone)
		}
	})
	defer watch.Wait()
	defer cancel()
	if grace != c.t.StopGrace && c.await(ctx, grace, c.t.Stop, gone) || c.await(ctx, c.t.StopGrace, nil, gone) {
		return
	}
	c.t.Log.Warn("cancel calls in flight at the end of the session")
	c.t.Abort()
	c.await(ctx, lastWords, nil, nil)
}

// await reports whether no request is in flight, or the session has ended, before the
// limit passes or stop or gone is closed.
func (c *conn) await(ctx context.Context, limit time.Duration, stop, gone <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		c.mu.Lock()
		n := 0
		for _, q := range c.pending {
			if !q.parked() {
				n++
			}
		}
		c.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-c.changed:
		case <-c.closed:
			return true
		case <-ctx.Done():
			return true
		case <-timer.C:
			return false
		case <-stop:
			return false
		case <-gone:
			return false
		}
	}
}

// take queues the messages of a line, or answers it with an error.
func (c *conn) take(l line) {
	data := bytes.TrimSpace(bytes.TrimPrefix(l.data, bom))
	if l.long {
		c.refuse(envelope.PrefixID(data), &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: fmt.Sprintf("Invalid request: the line exceeds %d bytes", c.t.MaxLine),
		})
		return
	}
	if len(data) == 0 {
		return
	}
	if envelope.IsBatch(data) {
		c.takeBatch(data)
		return
	}
	env, m, refused := parse(data)
	if refused != nil {
		if env.Kind == envelope.Notification {
			return // notifications get no answer, even if they are invalid
		}
		c.refuse(env.ID, refused)
		return
	}
	c.enqueue(m, modernMessage(&env), nil)
}

func parse(data []byte) (env envelope.Envelope, m jsonrpc.Message, refused *jsonrpc.Error) {
	env, refused = envelope.Parse(data)
	switch {
	case refused != nil:
		return env, nil, refused
	case env.Inexact:
		return env, nil, envelope.ErrInexact
	}
	m, refused = env.Message()
	return env, m, refused
}

// enqueue queues a message for its session. It refuses requests above the limit.
func (c *conn) enqueue(m jsonrpc.Message, modern bool, b *batch) {
	r, _ := m.(*jsonrpc.Request)
	switch {
	case r == nil: // a response, which belongs to the older era
	case r.IsCall():
		if refused := c.register(r, modern, b); refused != "" {
			c.refuse(rawID(r.ID), &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: " + refused})
			return
		}
	case r.Method == methodCancelled:
		var ok bool
		if modern, ok = c.cancel(r.Params); !ok {
			return // it has been answered, or there is no such request
		}
	}
	c.queue = append(c.queue, incoming{m, modern})
}

// register records a request in flight, or returns why it is refused.
func (c *conn) register(r *jsonrpc.Request, modern bool, b *batch) (refused string) {
	id := r.ID.Raw()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.pending[id] != nil:
		refused = "the id is in use by a request in flight"
	case len(c.pending) >= maxPending:
		refused = fmt.Sprintf("%d requests are in flight already", maxPending)
	}
	if refused != "" {
		if b != nil {
			b.open--
		}
		return refused
	}
	c.pending[id] = &call{method: r.Method, modern: modern, batch: b}
	if r.Method == initialize && !c.started {
		// Lines before the answer are checked against the requested revision.
		c.version = versionIn(r.Params)
	}
	return ""
}

// versionIn returns the revision in the params or the result of initialize.
func versionIn(raw json.RawMessage) string {
	var v struct {
		Version string `json:"protocolVersion"`
	}
	_ = json.Unmarshal(raw, &v) // what is no revision is ""
	return v.Version
}

func (c *conn) refuse(id json.RawMessage, e *jsonrpc.Error) {
	c.t.Log.Debug("refuse message", logkey.Code, e.Code) // the text may quote the message
	_ = c.writeLine(envelope.ErrorReply(id, e))          // a broken pipe shows at the next read
}

// write sends a message of a session, unless it answers a request that the client
// has cancelled.
func (c *conn) write(m jsonrpc.Message) error {
	r, ok := m.(*jsonrpc.Response)
	if !ok {
		data, err := jsonrpc.EncodeMessage(m)
		if err != nil {
			return err
		}
		return c.writeLine(data)
	}
	id := r.ID.Raw()
	defer c.answered(id)
	c.mu.Lock()
	q := c.pending[id]
	if q == nil {
		q = &call{} // not reached: the SDK answers each request once
	}
	started, cancelled := c.started, q.cancelled
	if q.method == initialize && r.Error == nil {
		c.version, c.started = versionIn(r.Result), true
	}
	c.mu.Unlock()
	var data []byte
	switch {
	case cancelled:
	case r.Error != nil:
		data = envelope.ErrorReply(rawID(r.ID), wireError(r.Error, started))
	default:
		data = envelope.Reply(rawID(r.ID), r.Result)
	}
	switch {
	case q.batch != nil:
		return c.answerBatch(q.batch, data)
	case cancelled:
		return nil
	}
	return c.writeLine(data)
}

// rawID encodes an id. It is a string or an integer.
func rawID(id jsonrpc.ID) json.RawMessage {
	raw, err := json.Marshal(id.Raw())
	if err != nil {
		return json.RawMessage("null")
	}
	return raw
}

// wireError returns the error that the client gets. Before the handshake the SDK refuses
// requests without a code: "… is invalid during session initialization".
func wireError(err error, started bool) *jsonrpc.Error {
	e := envelope.WireError(err)
	if _, coded := errors.AsType[*jsonrpc.Error](err); !coded && !started && e.Code == jsonrpc.CodeInternalError {
		e = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: e.Message}
	}
	return e
}

// answered removes a request from those in flight, and wakes await.
func (c *conn) answered(id any) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// writeLine writes data and a newline in one write. A failed write ends the session.
func (c *conn) writeLine(data []byte) error {
	c.wlock <- struct{}{}
	defer func() { <-c.wlock }()
	select {
	case <-c.closed:
		return io.ErrClosedPipe
	default:
	}
	begun := time.Now()
	c.writing.Store(&begun)
	defer c.writing.Store(nil)
	if _, err := c.w.Write(append(data, '\n')); err != nil {
		c.t.Log.Info("session ended: the client is gone", logkey.Error, err)
		c.t.Abort() // before the SDK, which cancels the calls for no cause once it has the error
		c.close()
		return fmt.Errorf("write message: %w", err)
	}
	return nil
}
