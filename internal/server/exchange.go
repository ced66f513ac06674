package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// exchange serves the messages of a POST, and returns when their answers are written or
// the client of a session has disconnected: its calls then continue, and it can resume the
// stream. direct is the tool call if it needs no session of the SDK; nil otherwise. exchange calls
// unreserve when the calls keep the session from expiring.
func (s *Server) exchange(w http.ResponseWriter, r *http.Request, m *postBody, to target, direct *mcp.CallToolRequest, a *admission, unreserve func()) {
	messages, refused := decode(m, direct != nil)
	if refused != nil {
		s.refuseWith(w, http.StatusBadRequest, m.ID, refused)
		return
	}
	if m.Kind != envelope.Request {
		if m.session != nil && !m.session.deliverAll(callerIn(r), messages) {
			s.refuseEnded(w, r, m.ID, unknownSession)
			return
		}
		w.WriteHeader(http.StatusAccepted) // without a session there is nothing to deliver them to
		return
	}

	c, end, err := s.connect(callerIn(r).account(), m, to, direct != nil)
	if err != nil {
		s.log.Error("session not connected", logkey.Error, err)
		s.refuse(w, http.StatusInternalServerError, m.ID, jsonrpc.CodeInternalError, "Internal error")
		return
	}
	defer end()
	session := ""
	if m.session != nil {
		session = m.session.id
	}
	st := newStream(rand.Text(), session, to.version, m.requests(), s.replay)
	st.json, st.batch, st.direct = to.json, m.batch, direct != nil
	if m.Method == methodListen {
		st.queued = true
		c.setOwn(st)
	}
	calls, ok := s.beginAll(w, r, m, to, c, st, a)
	if !ok {
		return
	}
	if m.session != nil {
		unreserve()
	}

	beat, delay := s.opts.Limits.Heartbeat, s.opts.Limits.Heartbeat
	switch {
	case to.json || m.Method == initialize:
		beat = 0 // nothing can come before the one body, or the header with the id of the session
	case st.primed:
		delay = primeDelay
	}
	res := s.respond(r.Context(), w, beat, delay, st.first())
	defer res.finish()
	detached := st.attach(res)
	defer func() {
		st.detach(res)
		s.answers.give(callerIn(r).account(), st.discard())
	}()

	if direct != nil && s.serveDirect(calls[0], direct, to.modern) {
		select {
		case <-st.done: // the end of the session may be what writes the answer
		case <-r.Context().Done():
		}
		return
	}
	for i, message := range messages {
		if cl := calls[i]; cl != nil {
			cl.message = message.(*jsonrpc.Request)
			cl.message.Extra = cl.extra(r.Header)
		} else if !c.intercept(callerIn(r), message) {
			continue
		}
		if !c.deliver(message) {
			break // the session has ended, and has answered its calls
		}
	}
	select {
	case <-st.done:
		res.flush()
	case <-detached:
	case <-r.Context().Done(): // without a session, end waits for the handlers
	}
}

// decode returns the messages of a body for the SDK. That of a direct call may be nil:
// its id need not be one that the SDK can hold.
func decode(m *postBody, direct bool) ([]jsonrpc.Message, *jsonrpc.Error) {
	messages := make([]jsonrpc.Message, len(m.messages))
	for i := range m.messages {
		if direct && m.Inexact {
			continue
		}
		var err *jsonrpc.Error
		if messages[i], err = m.messages[i].Message(); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// requests counts the requests of a body.
func (b *postBody) requests() (n int) {
	for i := range b.messages {
		if b.messages[i].Kind == envelope.Request {
			n++
		}
	}
	return n
}

// connect returns the connection that serves a body: that of its session, or a new one.
// Direct calls without a session need none. The caller calls end when the answers are
// written or the client has disconnected: end waits for the handlers of a connection
// without a session, and ends the calls that still have no answer.
func (s *Server) connect(p account, m *postBody, to target, direct bool) (c *conn, end func(), err error) {
	switch {
	case m.session != nil:
		return m.session.conn, func() {}, nil
	case direct:
		return nil, func() {}, nil
	case m.Method == initialize && !to.modern:
		c = s.newConn(s.newSessionID(rand.Text()), false)
		s.replay.open(c.session, p)
		own := newStream("", c.session, "", 1, s.replay)
		own.queued = true
		c.setOwn(own)
		sess, err := s.mcp.Connect(context.Background(), c, nil)
		if err != nil {
			s.replay.close(c.session)
			return nil, nil, err
		}
		return c, func() {
			if s.sessions.find(c.session) == nil {
				_ = sess.Close() // initialize failed
			}
		}, nil
	}
	c = s.newConn("", to.modern)
	state := &mcp.ServerSessionState{}
	if !to.modern {
		state.InitializeParams = &mcp.InitializeParams{ProtocolVersion: cmp.Or(to.version, oldestStateless)}
		state.InitializedParams = &mcp.InitializedParams{}
		state.LogLevel = "info"
	}
	sess, err := s.mcp.Connect(context.Background(), c, &mcp.ServerSessionOptions{State: state})
	if err != nil {
		return nil, nil, err
	}
	return c, func() { _ = sess.Close() }, nil
}

// oldestStateless is the revision of a request that names none.
const oldestStateless = "2025-03-26"

// beginAll registers the requests of a body. The result has a nil for each other message.
func (s *Server) beginAll(w http.ResponseWriter, r *http.Request, m *postBody, to target, c *conn, st *stream, a *admission) ([]*call, bool) {
	calls := make([]*call, len(m.messages))
	for i := range m.messages {
		e := &m.messages[i]
		if e.Kind != envelope.Request {
			continue
		}
		cl := &call{
			caller: callerIn(r), method: e.Method, tool: e.Tool, admission: a, id: e.ID, key: envelope.Key(e.ID),
			inexact: e.Inexact, modern: to.modern, session: m.session, conn: c, stream: st,
		}
		if m.session != nil {
			cl.sdk = m.session.mcp
		}
		ctx := r.Context()
		if !cancelsByDisconnect(r, to) {
			ctx = tools.WithAnswerWaiter(context.WithoutCancel(ctx), st.hasReader)
		}
		cl.ctx, cl.cancel = context.WithCancelCause(ctx)
		if s.begin(cl) {
			calls[i] = cl
			continue
		}
		for _, begun := range calls[:i] {
			if begun != nil && c.take(begun) {
				s.end(begun)
			}
		}
		c.drop(st)
		s.refuseDuplicate(w, r, c, e.ID)
		return nil, false
	}
	a.begin()
	return calls, true
}

// refuseDuplicate refuses a request that its connection did not take: it has another one of that
// id, or has ended.
func (s *Server) refuseDuplicate(w http.ResponseWriter, r *http.Request, c *conn, id json.RawMessage) {
	if c.ended() {
		s.refuseEnded(w, r, id, unknownSession)
		return
	}
	s.refuse(w, http.StatusBadRequest, id, jsonrpc.CodeInvalidRequest, "Invalid request: another request with this id is in flight")
}

// extra returns what accompanies a request through the SDK.
func (cl *call) extra(h http.Header) *mcp.RequestExtra {
	extra := source{cl.caller, cl}.extra(h)
	extra.CloseSSEStream = func(args mcp.CloseSSEStreamArgs) { cl.stream.closeConnection(args.RetryAfter) }
	return extra
}

// cancelsByDisconnect reports whether a request is cancelled when its connection ends: those
// of modern clients and those that another server forwards. Older clients cancel by a message.
func cancelsByDisconnect(r *http.Request, to target) bool {
	return to.modern || r.Header.Get(headerForwarded) == forwardedCall
}

// deliverAll delivers notifications and responses to a session. It reports false if the
// session has ended.
func (sess *mcpSession) deliverAll(from *caller, messages []jsonrpc.Message) bool {
	for _, message := range messages {
		if sess.conn.intercept(from, message) && !sess.conn.deliver(message) {
			return false
		}
	}
	return !sess.conn.ended()
}

// intercept prepares a notification for the SDK, and reports whether the SDK gets the message.
// If it is notifications/cancelled, intercept cancels the call that it names: of the session, or,
// without a session, of the same POST. The SDK would cancel by the id, some time after it has read the
// notification, and so perhaps a later call with the same id.
func (c *conn) intercept(from *caller, message jsonrpc.Message) bool {
	n, ok := message.(*jsonrpc.Request)
	if !ok {
		return true
	}
	switch n.Method {
	case methodCancelled:
		c.cancel(envelope.CancelledKey(n.Params))
		return false
	case methodProgress: // nothing here asks clients for progress
		return false
	}
	// The SDK queues notifications without a bound, when their owner is no longer charged for
	// the memory of their body.
	if len(n.Params) > maxNotice {
		n.Params = nil
	}
	n.Extra = source{caller: from}.extra(nil)
	return true
}

const methodProgress = "notifications/progress"

// maxNotice bounds the parameters of a notification that the SDK gets. Those that it serves need none.
const maxNotice = 4 << 10
