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
// that is nil is not offered, and what it would answer is refused. They are called
// for one server one at a time and for several at once; a panic is an error for the
// server. While one waits for a person, requests of that server wait.
type Hooks struct {
	// Sampling answers with a model.
	Sampling func(ctx context.Context, server string, params *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error)
	// Elicit asks the user.
	Elicit func(ctx context.Context, server string, params *mcp.ElicitParams) (*mcp.ElicitResult, error)

	// Log hears log messages, Progress that of calls, ListChanged of "tools",
	// "prompts" and "resources", ResourceUpdated what Subscribe asked for.
	Log             func(ctx context.Context, server string, params *mcp.LoggingMessageParams)
	Progress        func(ctx context.Context, server string, params *mcp.ProgressNotificationParams)
	ListChanged     func(ctx context.Context, server, list string)
	ResourceUpdated func(ctx context.Context, server, uri string)
}

// codeOverloaded is the code of what a client cannot take or has failed at.
const codeOverloaded = -32000

// client is the SDK's client for one connection.
func (s *Session) client() *mcp.Client {
	h, name := s.m.opts.Hooks, s.def.Name
	o := &mcp.ClientOptions{Logger: s.m.log, Capabilities: &mcp.ClientCapabilities{}}
	if h.Sampling != nil {
		o.CreateMessageHandler = func(ctx context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return h.Sampling(ctx, name, r.Params)
		}
	}
	if h.Elicit != nil {
		o.ElicitationHandler = func(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return h.Elicit(ctx, name, r.Params)
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
	roots := s.roots()
	if roots != nil {
		o.Capabilities.RootsV2 = &mcp.RootCapabilities{}
	}
	c := mcp.NewClient(s.m.opts.Client, o)
	c.AddRoots(roots...)
	c.AddReceivingMiddleware(s.bounded(roots != nil))
	s.mu.Lock()
	defer s.mu.Unlock()
	for method := range s.methods {
		_ = addMethod(c, method) // it was added to an earlier client
	}
	return c
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

// bounded keeps what a server asks in bounds: so much waits, one at a time is
// looked at, and what there is no hook for is refused as what it is, a method that
// is not there.
func (s *Session) bounded(roots bool) mcp.Middleware {
	waiting := make(chan struct{}, s.m.opts.Limits.Hooks)
	turn := make(chan struct{}, 1)
	offered := map[string]bool{
		"sampling/createMessage": s.m.opts.Hooks.Sampling != nil,
		"elicitation/create":     s.m.opts.Hooks.Elicit != nil,
		"roots/list":             roots,
	}
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
			if ok, known := offered[method]; known && !ok {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no request handler installed"}
			}
			if method == "ping" || method == "notifications/cancelled" {
				return next(ctx, method, req) // neither waits for a person
			}
			select {
			case waiting <- struct{}{}:
				defer func() { <-waiting }()
			default:
				if strings.HasPrefix(method, "notifications/") {
					s.dropped.Add(1)
					return nil, nil
				}
				return nil, &jsonrpc.Error{Code: codeOverloaded, Message: "client overloaded"}
			}
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			defer func() {
				if p := recover(); p != nil {
					s.m.log.Error("panic in a hook", "server", s.def.Name, "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					res, err = nil, &jsonrpc.Error{Code: codeOverloaded, Message: "the client's handler failed"}
				}
			}()
			return next(ctx, method, req)
		}
	}
}
