package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// A call is a request in flight. [Server.begin] registers it before it runs, and
// [Server.end] removes it when it has an answer. It may outlive the connection that its
// request came over.
//
// A cancellation travels from the client to user code in these steps:
//
//   - HTTP, older revisions: mcpSession.observe reads notifications/cancelled, and
//     conn.cancel cancels the context of the call. A disconnect cancels nothing: the
//     client may resume the stream.
//   - HTTP, modern revision: the context of the call is a child of the request's, which
//     ends when the client disconnects (beginAll).
//   - stdio: the SDK cancels the context of the handler. The transport only suppresses
//     the answer (stdio/era.go).
//   - The end of a session, the revocation of a token and a shutdown cancel calls by
//     [calls.cancel] or the context of the caller.
//   - The handler of the tool passes the context (call.within) to box.Box.Run, and that to
//     the connection to the guest, which sends a Cancel frame (guest/client/op.go).
//   - The agent cancels the operation (session.handle in guest/agent), and the runGuard of
//     guest/agent/kernel/run.go sends SIGINT to the process group of the interpreter, again
//     after half of the grace period, and SIGKILL at its end.
//   - If the agent does not answer in time, Box.guard ends the box (box/limits.go).
type call struct {
	caller *caller
	method string
	sdk    mcp.Session     // nil: none
	ctx    context.Context // of what runs for it
	cancel context.CancelCauseFunc
	once   sync.Once // guards the end
	counts bool      // guarded by calls.mu: a shutdown waits for it

	// Over HTTP only.
	id        json.RawMessage
	key       string      // [envelope.Key] of id
	inexact   bool        // the SDK cannot hold the id
	modern    bool        // of a revision without sessions
	session   *mcpSession // nil: none
	conn      *conn       // nil: no session of the SDK serves it
	stream    *stream
	cancelled atomic.Bool // by the client, which gets no answer
	handled   atomic.Bool // it has reached our handlers
}

// calls are the requests in flight, of all transports.
type calls struct {
	mu      sync.Mutex
	running map[*call]struct{} // guarded by mu
	counted gauge
}

func (p *calls) add(q *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		p.running = make(map[*call]struct{})
	}
	p.running[q] = struct{}{}
	if q.counts {
		p.counted.add(1)
	}
}

func (p *calls) remove(q *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, q)
	if q.counts {
		p.counted.add(-1)
	}
}

// replace makes to count instead of from.
func (p *calls) replace(from, to *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from.counts {
		from.counts = false
		p.counted.add(-1)
	}
	if p.running == nil {
		p.running = make(map[*call]struct{})
	}
	p.running[to] = struct{}{}
	p.counted.add(1)
}

// cancel cancels the calls that match; nil matches all.
func (p *calls) cancel(match func(mcp.Session) bool, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := range p.running {
		if match == nil || match(q.sdk) {
			q.cancel(cause)
		}
	}
}

// begin registers a call. It returns false if another call in flight in the session has
// the same id.
func (s *Server) begin(q *call) bool {
	q.counts = q.method != listen
	if q.conn != nil && !q.conn.add(q) {
		q.cancel(nil)
		return false
	}
	if q.session != nil {
		s.sessions.use(q.session)
	}
	s.calls.add(q)
	return true
}

// end ends what begin began. It may be called again.
func (s *Server) end(q *call) {
	q.once.Do(func() {
		q.cancel(nil)
		if q.session != nil {
			s.sessions.release(q.session)
		}
		s.calls.remove(q)
	})
}

type callKey struct{}

// callIn returns the call that a handler's context belongs to, or nil.
func callIn(ctx context.Context) *call {
	q, _ := ctx.Value(callKey{}).(*call)
	return q
}

// within returns the context for the handlers of a call that the SDK serves. It is that
// of the call, which ends also if the SDK cancels its own, and has the values of both.
func (q *call) within(sdk context.Context) (_ context.Context, release func()) {
	stop := context.AfterFunc(sdk, func() { q.cancel(context.Cause(sdk)) })
	ctx := context.WithValue(callContext{q.ctx, sdk}, callKey{}, q)
	return ctx, func() { stop() }
}

// A callContext has the values of two contexts. It ends with the first, whose values come
// first too: package context finds the parent to wait for by a value.
type callContext struct {
	context.Context
	values context.Context
}

func (c callContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// An origin says which caller a message came from, and which call it is. The SDK hands
// it on to our handlers with the message.
type origin struct {
	caller *caller
	call   *call // nil: a notification, or not over HTTP
}

const originMember = "origin" // of [auth.TokenInfo.Extra]

// extra returns what accompanies a message through the SDK. Handlers find the owner as
// the user of the token.
func (o origin) extra(h http.Header) *mcp.RequestExtra {
	return &mcp.RequestExtra{
		TokenInfo: &auth.TokenInfo{UserID: o.caller.owner(), Extra: map[string]any{originMember: o}},
		Header:    h,
	}
}

func originOf(req mcp.Request) (o origin) {
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		o, _ = extra.TokenInfo.Extra[originMember].(origin)
	}
	return o
}

// attach gives the handlers of a message from an HTTP session the context of its call.
// It is the outermost middleware of what the SDK serves.
func (s *Server) attach(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if q := originOf(req).call; q != nil {
			q.handled.Store(true)
			var release func()
			ctx, release = q.within(ctx)
			defer release()
		}
		res, err := next(ctx, method, req)
		return res, envelope.Seal(err)
	}
}

// register registers requests without a POST: those over stdio.
func (s *Server) register(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if strings.HasPrefix(method, "notifications/") || callIn(ctx) != nil {
			return next(ctx, method, req)
		}
		q := &call{caller: callerOf(ctx, req), method: method, sdk: sessionOf(req)}
		ctx, q.cancel = context.WithCancelCause(context.WithValue(ctx, callKey{}, q))
		q.ctx = ctx
		s.begin(q)
		defer s.end(q)
		return next(ctx, method, req)
	}
}

// registerTask registers a call that became a task, which outlives its request.
func (s *Server) registerTask(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		from := callIn(ctx)
		q := &call{caller: callerOf(ctx, req), method: method, counts: true}
		ctx, q.cancel = context.WithCancelCause(context.WithValue(ctx, callKey{}, q))
		q.ctx = ctx
		if from != nil {
			s.calls.replace(from, q)
		} else {
			s.calls.add(q)
		}
		defer s.end(q)
		return next(ctx, method, req)
	}
}

// sessionOf returns the SDK's session of a request, or nil. A direct call has none: a
// nil pointer in an interface.
func sessionOf(req mcp.Request) mcp.Session {
	if of, ok := req.GetSession().(*mcp.ServerSession); ok && of != nil {
		return of
	}
	return nil
}
