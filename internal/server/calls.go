package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
)

// A call is a request in flight. [Server.begin] registers it before it runs, and
// [Server.end] removes it when it has an answer. It may outlive the connection that its
// request came over.
//
// docs/architecture.md ("Where to look", "Cancelling a call") describes the path of a cancellation
// from the client to user code.
type call struct {
	caller *caller
	method string
	sdk    mcp.Session     // nil: none
	ctx    context.Context // of what runs for it
	cancel context.CancelCauseFunc
	once   sync.Once // guards the end
	counts bool      // guarded by calls.mu: a shutdown waits for it

	// Over HTTP only.
	admission *admission // guarded by calls.mu: holds its place; nil: it is given back
	tool      string     // that the client named, of tools/call
	id        json.RawMessage
	key       string      // [envelope.Key] of id
	inexact   bool        // the SDK cannot hold the id
	modern    bool        // of a revision without sessions
	session   *mcpSession // nil: none
	conn      *conn       // nil: no session of the SDK serves it
	stream    *stream
	message   *jsonrpc.Request // that the SDK got; nil: it got none
	cancelled atomic.Bool      // by the client, which gets no answer
	handled   atomic.Bool      // it has reached our handlers

	mu        sync.Mutex
	delivered bool  // guarded by mu: its stream has the answer
	reserved  int64 // guarded by mu: bytes charged for the answer before there is one
}

// calls are the requests in flight, of all transports.
type calls struct {
	mu      sync.Mutex
	running map[*call]struct{} // guarded by mu
	counted waitCounter
}

func (cs *calls) add(cl *call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.running == nil {
		cs.running = make(map[*call]struct{})
	}
	cs.running[cl] = struct{}{}
	if cl.counts {
		cs.counted.add(1)
	}
}

// remove removes a call, and returns what holds its place.
func (cs *calls) remove(cl *call) *admission {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.running, cl)
	if cl.counts {
		cl.counts = false // replace may come later
		cs.counted.add(-1)
	}
	a := cl.admission
	cl.admission = nil
	return a
}

// replace makes to count instead of from, and hold its place.
func (cs *calls) replace(from, to *call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if from.counts {
		from.counts = false
		cs.counted.add(-1)
	}
	if cs.running == nil {
		cs.running = make(map[*call]struct{})
	}
	cs.running[to] = struct{}{}
	cs.counted.add(1)
	to.admission, from.admission = from.admission, nil
}

// cancel cancels the calls that match; nil matches all.
func (cs *calls) cancel(match func(mcp.Session) bool, cause error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for cl := range cs.running {
		if match == nil || match(cl.sdk) {
			cl.cancel(cause)
		}
	}
}

// begin registers a call. It returns false if another call in flight in the session has
// the same id.
func (s *Server) begin(cl *call) bool {
	cl.counts = cl.method != methodListen
	if cl.conn != nil && !cl.conn.add(cl) {
		cl.cancel(nil)
		return false
	}
	if cl.session != nil {
		s.sessions.use(cl.session)
	}
	s.calls.add(cl)
	return true
}

// end ends what begin began. It may be called again.
func (s *Server) end(cl *call) {
	cl.once.Do(func() {
		cl.cancel(nil)
		if cl.session != nil {
			s.sessions.release(cl.session)
		}
		if a := s.calls.remove(cl); a != nil {
			a.answered()
		}
	})
}

type callKey struct{}

// callIn returns the call that a handler's context belongs to, or nil.
func callIn(ctx context.Context) *call {
	cl, _ := ctx.Value(callKey{}).(*call)
	return cl
}

// within returns the context for the handlers of a call that the SDK serves. It is that
// of the call, which ends also if the SDK cancels its own, and has the values of both.
func (cl *call) within(sdk context.Context) (_ context.Context, release func()) {
	stop := context.AfterFunc(sdk, func() { cl.cancel(context.Cause(sdk)) })
	ctx := context.WithValue(callContext{cl.ctx, sdk}, callKey{}, cl)
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

// A source says which caller a message came from, and which call it is. The SDK hands
// it on to our handlers with the message.
type source struct {
	caller *caller
	call   *call // nil: a notification, or not over HTTP
}

const sourceMember = "source" // of [auth.TokenInfo.Extra]

// extra returns what accompanies a message through the SDK. Handlers find the owner as
// the user of the token.
func (src source) extra(h http.Header) *mcp.RequestExtra {
	return &mcp.RequestExtra{
		TokenInfo: &auth.TokenInfo{UserID: src.caller.owner(), Extra: map[string]any{sourceMember: src}},
		Header:    h,
	}
}

func sourceOf(req mcp.Request) (src source) {
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		src, _ = extra.TokenInfo.Extra[sourceMember].(source)
	}
	return src
}

// attach gives the handlers of a message from an HTTP session the context of its call.
// It is the outermost middleware of what the SDK serves.
func (s *Server) attach(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if cl := sourceOf(req).call; cl != nil {
			cl.handled.Store(true)
			var release func()
			ctx, release = cl.within(ctx)
			defer release()
		}
		res, err := next(ctx, method, req)
		return res, envelope.Opaque(err)
	}
}

// register registers requests without a POST: those over stdio.
func (s *Server) register(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if strings.HasPrefix(method, "notifications/") || callIn(ctx) != nil {
			return next(ctx, method, req)
		}
		cl := &call{caller: callerOf(ctx, req), method: method, sdk: sessionOf(req)}
		ctx, cl.cancel = context.WithCancelCause(context.WithValue(ctx, callKey{}, cl))
		cl.ctx = ctx
		s.begin(cl)
		defer s.end(cl)
		if calls, ok := ctx.Value(stdioKey{}).(context.Context); ok && calls.Err() != nil {
			cl.cancel(context.Cause(calls)) // it begins too late to be among those that were cancelled
		}
		return next(ctx, method, req)
	}
}

// registerTask registers a call that became a task, which outlives its request.
func (s *Server) registerTask(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		from := callIn(ctx)
		cl := &call{caller: callerOf(ctx, req), method: method, counts: true}
		ctx, cl.cancel = context.WithCancelCause(context.WithValue(ctx, callKey{}, cl))
		cl.ctx = ctx
		if from != nil {
			s.calls.replace(from, cl)
		} else {
			s.calls.add(cl)
		}
		tasks.Begun(ctx)
		defer s.end(cl)
		return next(ctx, method, req)
	}
}

// sessionOf returns the SDK's session of a request, or nil. A direct call has none: a
// nil pointer in an interface.
func sessionOf(req mcp.Request) mcp.Session {
	if sess, ok := req.GetSession().(*mcp.ServerSession); ok && sess != nil {
		return sess
	}
	return nil
}
