package mcpkit

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Hooks answer what servers ask of their client, and hear what they tell. A hook
// that is nil is not offered, and what it would answer is refused. Of one server,
// questions (Sampling, Elicit, Roots) are put one at a time, and so are
// notifications, which do not wait for questions; several servers are served at once.
// The contexts of hooks end with the connection. What a server on a stream tells
// before it answers a request is heard before the answer is returned, if the hooks are
// quick. A panic is an error for the server.
//
// A question of an older server may belong to any request that is under way there.
// One of a modern server belongs to a request: its hook is called under a context
// that has the values of that request's.
type Hooks struct {
	// Sampling answers with a model.
	Sampling func(ctx context.Context, server string, params *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error)
	// Elicit asks the user.
	Elicit func(ctx context.Context, server string, params *mcp.ElicitParams) (*mcp.ElicitResult, error)
	// ElicitURL says that Elicit also takes pages to open, of mode "url"; without
	// it there are only forms.
	ElicitURL bool
	// Roots says what a server may look at, if neither its definition nor the
	// Options do.
	Roots func(ctx context.Context, server string) ([]*mcp.Root, error)
	// Untrusted lets servers that are not trusted ask for Sampling and roots too.
	// Without it they may only Elicit: what they get then is what the user typed.
	Untrusted bool

	// Log hears log messages, Progress that of calls, ListChanged of "tools",
	// "prompts" and "resources", also when a lost connection was made anew,
	// ResourceUpdated what Subscribe asked for, and ElicitationComplete that the page of an
	// elicitation with that id has done its work. Of notifications that come faster
	// than they are heard, some are dropped: see Limits.PendingNotifications and [Session.Dropped].
	Log                 func(ctx context.Context, server string, params *mcp.LoggingMessageParams)
	Progress            func(ctx context.Context, server string, params *mcp.ProgressNotificationParams)
	ListChanged         func(ctx context.Context, server, list string)
	ResourceUpdated     func(ctx context.Context, server, uri string)
	ElicitationComplete func(ctx context.Context, server, id string)
}

// codeOverloaded is the code of what a client cannot take or has failed at.
const codeOverloaded = -32000

// The questions of servers.
const (
	methodSampling = "sampling/createMessage"
	methodElicit   = "elicitation/create"
	methodRoots    = "roots/list"
)

// client is the SDK's client for one connection.
func (s *Session) client(trust Trust, l *connState) *mcp.Client {
	h, name := s.m.opts.Hooks, s.def.Name
	asks := s.abilities(trust)
	o := &mcp.ClientOptions{
		Logger: s.m.log, Capabilities: &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}, // rounds does it
	}
	if asks.sampling {
		o.CreateMessageHandler = func(ctx context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return h.Sampling(ctx, name, r.Params)
		}
	}
	if asks.elicit {
		o.ElicitationHandler = func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return h.Elicit(ctx, name, r.Params)
		}
		if asks.openURL {
			o.Capabilities.Elicitation = &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}
		}
	}
	if h.Log != nil {
		o.LoggingMessageHandler = func(ctx context.Context, r *mcp.LoggingMessageRequest) { h.Log(ctx, name, r.Params) }
	}
	if h.Progress != nil {
		o.ProgressNotificationHandler = func(ctx context.Context, r *mcp.ProgressNotificationClientRequest) { h.Progress(ctx, name, r.Params) }
	}
	if h.ListChanged != nil {
		o.ToolListChangedHandler = func(ctx context.Context, _ *mcp.ToolListChangedRequest) { h.ListChanged(ctx, name, "tools") }
		o.PromptListChangedHandler = func(ctx context.Context, _ *mcp.PromptListChangedRequest) { h.ListChanged(ctx, name, "prompts") }
		o.ResourceListChangedHandler = func(ctx context.Context, _ *mcp.ResourceListChangedRequest) { h.ListChanged(ctx, name, "resources") }
	}
	if h.ResourceUpdated != nil {
		o.ResourceUpdatedHandler = func(ctx context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			h.ResourceUpdated(ctx, name, r.Params.URI)
		}
	}
	if h.ElicitationComplete != nil {
		o.ElicitationCompleteHandler = func(ctx context.Context, r *mcp.ElicitationCompleteNotificationRequest) {
			h.ElicitationComplete(ctx, name, r.Params.ElicitationID)
		}
	}
	if asks.roots {
		o.Capabilities.RootsV2 = &mcp.RootCapabilities{ListChanged: asks.fixedRoots == nil}
	}
	c := mcp.NewClient(s.m.opts.Client, o)
	c.AddRoots(asks.fixedRoots...)
	var answer mcp.MethodHandler
	c.AddReceivingMiddleware(s.limitQuestions(asks, &l.notifications), func(next mcp.MethodHandler) mcp.MethodHandler { return s.answerRoots(asks, next) })
	c.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		answer = next // all that a question of an older server goes through
		return next
	})
	c.AddSendingMiddleware(s.inputRounds(asks, answer))
	s.mu.Lock()
	defer s.mu.Unlock()
	for method := range s.methods {
		_ = addMethod(c, method) // it was added to an earlier client
	}
	return c
}

// asks is what a server may ask for.
type abilities struct {
	sampling, elicit, openURL, roots bool
	fixedRoots                       []*mcp.Root // if not nil, they are the roots, and Hooks.Roots is not asked
}

func (s *Session) abilities(trust Trust) abilities {
	h := s.m.opts.Hooks
	may := trust == Trusted || h.Untrusted
	a := abilities{sampling: h.Sampling != nil && may, elicit: h.Elicit != nil, openURL: h.Elicit != nil && h.ElicitURL}
	if may {
		a.fixedRoots = s.roots()
		a.roots = a.fixedRoots != nil || h.Roots != nil
	}
	return a
}

// may reports whether a request is a question that is offered an answer.
func (a *abilities) allow(method string) bool {
	switch method {
	case methodSampling:
		return a.sampling
	case methodElicit:
		return a.elicit
	case methodRoots:
		return a.roots
	}
	return false
}

// roots are what the server may look at; nil if that is not said.
func (s *Session) roots() []*mcp.Root {
	from := s.def.Roots
	if from == nil {
		if s.m.opts.Roots != nil {
			return s.m.opts.Roots
		}
		from = s.m.opts.Config.Client.Roots
	}
	if from == nil {
		return nil
	}
	roots := make([]*mcp.Root, len(from))
	for i, r := range from {
		roots[i] = &mcp.Root{URI: r.URI, Name: r.Name}
	}
	return roots
}

// rooted has the hook say the roots, where nothing else does.
func (s *Session) answerRoots(a abilities, next mcp.MethodHandler) mcp.MethodHandler {
	if !a.roots || a.fixedRoots != nil {
		return next
	}
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method != methodRoots {
			return next(ctx, method, req)
		}
		roots, err := s.m.opts.Hooks.Roots(ctx, s.def.Name)
		if err != nil {
			return nil, err
		}
		if roots == nil {
			roots = []*mcp.Root{} // not null
		}
		return &mcp.ListRootsResult{Roots: roots}, nil
	}
}

// bounded keeps what a server asks in bounds: so much waits, one at a time is
// looked at, for so long, and what there is no hook for is refused as what it is, a
// method that is not there.
func (s *Session) limitQuestions(a abilities, n *notifications) mcp.Middleware {
	waiting, turn := make(chan struct{}, s.m.opts.Limits.PendingQuestions), make(chan struct{}, 1)
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			switch {
			case method == "ping" || method == "notifications/cancelled":
				return next(ctx, method, req) // neither waits for a person
			case lacksParams(req):
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "missing required params"}
			case strings.HasPrefix(method, "notifications/"):
				s.deliver(n, method, func(ctx context.Context) { _, _ = next(ctx, method, req) }) // there is nobody to have an error
				return nil, nil
			case !a.allow(method):
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no request handler installed"}
			}
			select {
			case waiting <- struct{}{}:
				defer func() { <-waiting }()
			default:
				return nil, &jsonrpc.Error{Code: codeOverloaded, Message: "client overloaded"}
			}
			defer s.questionClock.begin()()
			limit := s.m.opts.Limits.Question
			ctx, end := context.WithCancelCause(ctx)
			defer end(nil)
			defer context.AfterFunc(s.life, func() { end(s.closedError()) })()
			ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s: no answer within %v", method, limit))
			defer cancel()
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			defer s.recoverHook(method, func() {
				res, err = nil, &jsonrpc.Error{Code: codeOverloaded, Message: "the client's handler failed"}
			})
			return next(ctx, method, req)
		}
	}
}

// empty reports whether a message came without the params that it needs: the SDK takes
// it all the same, and then reads them, in one case with a lock held that it never
// gives back.
func lacksParams(req mcp.Request) bool {
	switch r := req.(type) {
	case *mcp.ElicitRequest:
		return r.Params == nil
	case *mcp.ElicitationCompleteNotificationRequest:
		return r.Params == nil
	case *mcp.ResourceUpdatedNotificationRequest:
		return r.Params == nil
	}
	return false
}

// tell has a notification heard, or counts it as dropped.
func (s *Session) deliver(n *notifications, method string, hear func(context.Context)) {
	heard := n.put(method, s.m.opts.Limits.PendingNotifications, func(ctx context.Context) {
		defer s.recoverHook(method, func() {})
		hear(ctx)
	})
	if !heard {
		s.dropped.Add(1)
	}
}

// recover, when it is deferred, ends the panic of a hook.
func (s *Session) recoverHook(method string, failed func()) {
	if p := recover(); p != nil {
		s.m.log.Error("panic in a hook", "server", s.def.Name, "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		failed()
	}
}
