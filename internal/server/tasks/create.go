package tasks

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

const callTool = "tools/call"

func declared(caps *mcp.ClientCapabilities) bool {
	if caps == nil {
		return false
	}
	_, ok := caps.Extensions[Extension]
	return ok
}

func ownerOf(req mcp.Request) string {
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		return extra.TokenInfo.UserID
	}
	return ""
}

type lifeKey struct{}

// Within returns a context for requests whose tasks end with life, for its cause, because no client
// can poll them afterwards.
func Within(ctx, life context.Context) context.Context {
	return context.WithValue(ctx, lifeKey{}, life)
}

type begunKey struct{}

// Begun says that the call of a task is registered. Only then does the client get the task: its
// request, which holds a place until then, ends with the answer. Options.Call calls it with its
// context.
func Begun(ctx context.Context) {
	if begun, ok := ctx.Value(begunKey{}).(func()); ok {
		begun()
	}
}

// Create is a middleware that turns tool calls into tasks.
func (s *Tasks) Create(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		if !ok || call.Params == nil {
			return next(ctx, method, req)
		}
		policy, ok := s.opts.Policies[call.Params.Name]
		switch {
		case !ok:
			return next(ctx, method, req)
		case !revision.IsModern(call.ProtocolVersion()) || !declared(call.ClientCapabilities()):
			if policy.Required {
				return nil, missing()
			}
			return next(ctx, method, req)
		case policy.AskFirst && len(call.Params.InputResponses) == 0:
			return next(ctx, method, req)
		}
		result, err, ok := s.create(ctx, policy, call)
		switch {
		case ok:
			return result, err
		case policy.Required:
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Too many tasks: wait for some to end, or cancel them"}
		}
		return next(ctx, method, req) // the client waits for the answer itself
	}
}

// create runs a call as a task and returns the answer for its client: the task, or the
// call's. It reports false at a limit of tasks.
func (s *Tasks) create(ctx context.Context, policy Policy, call *mcp.CallToolRequest) (_ mcp.Result, _ error, ok bool) {
	// The request ends before the task.
	inner, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	t := s.begin(ownerOf(call), stop)
	if t == nil {
		stop(nil)
		return nil, nil, false
	}
	if life, ok := ctx.Value(lifeKey{}).(context.Context); ok {
		unlink := context.AfterFunc(life, func() { stop(context.Cause(life)) })
		context.AfterFunc(inner, func() { unlink() })
	}
	inPlace, registered := make(chan outcome, 1), make(chan struct{})
	begun := sync.OnceFunc(func() { close(registered) })
	go func() {
		defer s.running.Done()
		defer stop(nil)
		o := s.run(context.WithValue(inner, begunKey{}, begun), t, detached(call))
		begun()
		if !s.finish(t, o) {
			inPlace <- o
		}
	}()
	wait := s.limits.AnswerWait
	if policy.Required {
		wait = 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.parked:
	case o := <-inPlace:
		return o.result, o.err, true
	case <-ctx.Done():
		// No client will know its id.
		stop(errGone)
		s.forget(t)
		<-registered // the request holds a place until then
		return nil, context.Cause(ctx), true
	}
	<-registered
	if d := s.hand(t); d != nil {
		return d, nil, true
	}
	o := <-inPlace // just now
	return o.result, o.err, true
}

// hand returns the description of a task for its client, or nil if the task has ended.
func (s *Tasks) hand(t *task) *description {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.inPlace {
		return nil
	}
	t.handed = true
	d := s.describeLocked(t)
	d.ResultType = "task"
	return d
}

// detached returns a call without its session, which ends with the request, and so
// without progress notifications.
func detached(call *mcp.CallToolRequest) *mcp.CallToolRequest {
	params := *call.Params
	params.Meta = maps.Clone(params.Meta)
	delete(params.Meta, "progressToken")
	extra := mcp.RequestExtra{}
	if call.Extra != nil {
		extra = *call.Extra
		extra.CloseSSEStream = nil
	}
	return &mcp.CallToolRequest{Params: &params, Extra: &extra}
}
