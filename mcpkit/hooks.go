package mcpkit

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Hooks answer the questions of servers and receive their notifications. The capability
// of a nil hook is not declared, and its requests are refused. For each server,
// questions (Sampling, Elicit, Roots) are asked one at a time, and so are
// notifications, which do not wait for questions. Servers do not wait for each other.
// The contexts of hooks end with the connection. If the hooks are quick, the
// notifications that a server on a stream sends before a response are delivered before
// the request returns. A panic in a hook is an error for the server.
//
// A question of an older server may belong to any request in flight. A question of a
// modern server belongs to one request, and the context of its hook has the values of
// that request's context.
type Hooks struct {
	// Sampling answers with a model's completion.
	Sampling func(ctx context.Context, server string, params *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error)
	// Elicit asks the user. Pages that the server may not send the user to are refused
	// before; hidden characters in its texts are escaped, and the message warns of forms
	// that ask for what may be a secret.
	Elicit func(ctx context.Context, server string, params *mcp.ElicitParams) (*mcp.ElicitResult, error)
	// ElicitURL declares that Elicit also handles pages to open, of mode "url".
	// Otherwise it handles forms only.
	ElicitURL bool
	// Roots returns the roots for a server, if neither its definition nor the Options
	// have any.
	Roots func(ctx context.Context, server string) ([]*mcp.Root, error)
	// Untrusted offers Sampling and roots to untrusted servers, too. Otherwise they are
	// offered only Elicit, which yields what the user typed.
	Untrusted bool

	// Log receives log messages, Progress the progress of requests, ListChanged the
	// changes of "tools", "prompts" and "resources" (also after a reconnection),
	// ResourceUpdated the changes of subscribed resources, and ElicitationComplete the
	// id of an elicitation whose page has done its work. Notifications that arrive
	// faster than the hooks take them are dropped: see Limits.PendingNotifications and
	// [Session.Dropped].
	Log                 func(ctx context.Context, server string, params *mcp.LoggingMessageParams)
	Progress            func(ctx context.Context, server string, params *mcp.ProgressNotificationParams)
	ListChanged         func(ctx context.Context, server, list string)
	ResourceUpdated     func(ctx context.Context, server, uri string)
	ElicitationComplete func(ctx context.Context, server, id string)
}

// codeOverloaded is the error code for a question that exceeds a limit or whose hook
// failed.
const codeOverloaded = -32000

// The questions that servers can ask.
const (
	methodSampling = "sampling/createMessage"
	methodElicit   = "elicitation/create"
	methodRoots    = "roots/list"
)

// client returns the SDK's client for one connection.
func (s *Session) client(trust Trust, l *connState) *mcp.Client {
	h, name := s.m.opts.Hooks, s.def.Name
	asks := s.abilities(trust)
	o := &mcp.ClientOptions{
		Logger: s.m.log, Capabilities: &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}, // see inputRounds
	}
	if asks.sampling {
		o.CreateMessageHandler = func(ctx context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return h.Sampling(ctx, name, r.Params)
		}
	}
	if asks.elicit {
		o.ElicitationHandler = func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			params, err := s.checkElicitation(trust, r.Params)
			if err != nil {
				return nil, err
			}
			return h.Elicit(ctx, name, params)
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
	c.AddReceivingMiddleware(s.limitQuestions(asks, l), func(next mcp.MethodHandler) mcp.MethodHandler { return s.answerRoots(asks, next) })
	c.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		answer = next // the handler for questions of an older server
		return next
	})
	c.AddSendingMiddleware(s.inputRounds(asks, answer))
	s.mu.Lock()
	defer s.mu.Unlock()
	for method := range s.methods {
		_ = addMethod(c, method) // it was valid for an earlier client
	}
	return c
}

// abilities are the questions that a server may ask.
type abilities struct {
	sampling, elicit, openURL, roots bool
	fixedRoots                       []*mcp.Root // if not nil, the answer to roots/list; otherwise Hooks.Roots answers
}

func (s *Session) abilities(trust Trust) abilities {
	h := s.m.opts.Hooks
	allowed := trust == Trusted || h.Untrusted
	a := abilities{sampling: h.Sampling != nil && allowed, elicit: h.Elicit != nil, openURL: h.Elicit != nil && h.ElicitURL}
	if allowed {
		a.fixedRoots = s.roots()
		a.roots = a.fixedRoots != nil || h.Roots != nil
	}
	return a
}

// allow reports whether a request is a question that this client answers.
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

// roots returns the configured roots of the server; nil if there are none.
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

// answerRoots is middleware that answers roots/list from the hook, unless roots are
// configured.
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

// limitQuestions is middleware that bounds the number of waiting questions and the time
// to answer each, asks one at a time, and refuses those without a hook as unknown
// methods. It queues notifications for the hooks.
func (s *Session) limitQuestions(a abilities, l *connState) mcp.Middleware {
	waiting, asking := make(chan struct{}, s.m.opts.Limits.PendingQuestions), make(chan struct{}, 1)
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			switch {
			case method == "ping" || method == "notifications/cancelled":
				return next(ctx, method, req) // neither waits for a user
			case lacksParams(req):
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "missing required params"}
			case strings.HasPrefix(method, "notifications/"):
				l.tools.heard(method)
				s.deliver(&l.notifications, method, func(ctx context.Context) { _, _ = next(ctx, method, req) }) // a notification has no error response
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
			case asking <- struct{}{}:
				defer func() { <-asking }()
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

// lacksParams reports whether required params are missing. The SDK accepts such a
// message and then dereferences them, in one case with a lock held.
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

// deliver queues a notification for the hooks, or counts it as dropped.
func (s *Session) deliver(n *notifications, method string, call func(context.Context)) {
	queued := n.put(method, s.m.opts.Limits.PendingNotifications, func(ctx context.Context) {
		defer s.recoverHook(method, func() {})
		call(ctx)
	})
	if !queued {
		s.dropped.Add(1)
	}
}

// recoverHook handles the panic of a hook. It must be deferred.
func (s *Session) recoverHook(method string, failed func()) {
	if p := recover(); p != nil {
		s.m.log.Error("panic in a hook", "server", s.def.Name, "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		failed()
	}
}
