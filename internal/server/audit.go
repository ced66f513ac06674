package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// outcome is how a call ended. It is a closed set.
type outcome string

const (
	outcomeOK        outcome = "ok"
	outcomeFailed    outcome = "failed"  // the code or command, or what the tool was asked to do
	outcomeRefused   outcome = "refused" // wrong arguments, a limit, a scope
	outcomeCancelled outcome = "cancelled"
	outcomeError     outcome = "error" // ours
)

// authorize checks the caller's scope and quota of calls, cancels the request when the
// caller's token is revoked, and writes tool calls to the audit log.
func (s *Server) authorize(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		c := callerOf(ctx, req)
		isCall, tool := false, ""
		var atLimit, noScope *jsonrpc.Error // refuse the call
		switch r := req.(type) {
		case *mcp.CallToolRequest:
			isCall = true
			if r.Params != nil {
				tool = s.listed(r.Params.Name)
			}
		case *mcp.ReadResourceRequest: // reads what download_file reads
			isCall, tool = true, readResource
		}
		if isCall {
			record := &tools.Record{}
			ctx = tools.WithRecord(ctx, record)
			start := time.Now()
			res, err = nil, errPanicked // until next returns
			defer func() {
				switch {
				case atLimit != nil:
					s.auditRefused(c, tool, "calls", atLimit)
				case noScope != nil:
					s.auditRefused(c, tool, "insufficient_scope", noScope)
				case !repeated(ctx, res):
					s.audit(c, tool, record, start, res, err)
				}
			}()
		}
		if want := s.scopeOf(method, tool); !c.has(want) {
			noScope = scopeError(want)
			return nil, noScope
		}
		if isCall {
			p := c.account()
			if s.quota.take(p, 1) != withinLimits {
				atLimit = tools.TooManyCalls(s.opts.Limits.OwnerCalls)
				return nil, atLimit
			}
			defer s.quota.give(p, 1)
			if c.id != nil && s.opts.Tools.Approvals != nil {
				ctx = tools.Within(ctx, c.id.Revoked())
			}
		}
		if !c.has(auth.Use) {
			ctx = tasks.OnlyReads(tools.OnlyReads(ctx))
		}
		ctx, release := c.bound(ctx, method == methodListen)
		defer release()
		return next(ctx, method, req)
	}
}

// endWithTask is a middleware for the call of a task, whose context ends with the task: so
// does code that waits for approval while the task has no request.
func endWithTask(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		return next(tools.InTask(ctx), method, req)
	}
}

// holdCall reserves the place of a call for code of an owner that waits for approval without a
// request. It leaves the owner a place for the answer, and reserves nothing if there is no other.
func (s *Server) holdCall(owner box.Owner) (release func()) {
	// The request that asks is still charged, and gives its place back.
	p := account{owner: string(owner)} // who may run code
	if s.quota.take(p, 1) != withinLimits {
		return func() {}
	}
	return func() { s.quota.give(p, 1) }
}

var errPanicked = errors.New("panic")

// listed returns the name of a tool if the server has it, or "": names that clients make
// up do not go into logs.
func (s *Server) listed(tool string) string {
	if _, known := slices.BinarySearch(s.names, tool); known {
		return tool
	}
	return ""
}

// auditRefused logs a call that was refused for a reason before the tool got it. Each owner gets
// few lines of a reason, since such a call costs its client nothing.
func (s *Server) auditRefused(c *caller, tool, reason string, e *jsonrpc.Error) {
	if omitted, ok := s.refusedLines.Allow(refusalKey{c.rateKey, "call: " + reason}); ok { // apart from requests refused for it
		s.auditCall(c, tool, &tools.Record{}, time.Now(), nil, e, omitted)
	}
}

// audit logs a call: caller, tool, box and outcome, never arguments or results.
func (s *Server) audit(c *caller, tool string, record *tools.Record, start time.Time, res mcp.Result, err error) {
	s.auditCall(c, tool, record, start, res, err, 0)
}

// auditCall is audit after omitted such lines that were left out.
func (s *Server) auditCall(c *caller, tool string, record *tools.Record, start time.Time, res mcp.Result, err error, omitted int64) {
	if s.opts.Audit == nil {
		return
	}
	how, code := outcomeOK, int64(0)
	result, _ := res.(*mcp.CallToolResult)
	switch {
	case err == nil && result != nil && result.IsError:
		how = outcomeFailed
	case err == nil:
	default:
		how, code = outcomeError, jsonrpc.CodeInternalError
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
			code = e.Code
			if strings.HasPrefix(e.Message, cancelledPrefix) {
				how = outcomeCancelled
			}
		}
		if code != jsonrpc.CodeInternalError {
			how = outcomeRefused
		}
	}
	s.opts.Audit.Info("call", withOmitted(omitted, logkey.Who, c.displayName(s.opts.Auth != nil), logkey.Tool, tool, logkey.Box, record.Box(), logkey.Outcome, string(how),
		logkey.Code, code, logkey.DurationMS, time.Since(start).Milliseconds(), logkey.Remote, c.remote, logkey.Request, c.request)...)
}

// withOmitted adds the number of lines that were left out before, if there are any.
func withOmitted(omitted int64, attrs ...any) []any {
	if omitted > 0 {
		attrs = append(attrs, logkey.Omitted, omitted)
	}
	return attrs
}

// auditUnhandled logs a call that was refused before it reached our handlers: the SDK
// refuses parameters that it cannot decode. Each caller gets few such lines.
func (s *Server) auditUnhandled(cl *call, e *jsonrpc.Error) {
	tool := cl.method
	switch {
	case cl.handled.Load():
		return
	case cl.method == callTool:
		tool = s.listed(cl.tool)
	case cl.method != readResource:
		return
	}
	s.auditRefused(cl.caller, tool, "parameters", e)
}

// requestLimit is the reason of a refusal at a limit of one request: of its body, the time for it,
// the messages or values in it, or what a session keeps of it.
const requestLimit = "request_limit"

// auditRefusal logs a request that was refused: for its token, its scope or its session, or at a
// limit.
func (s *Server) auditRefusal(r *http.Request, reason string) {
	if c := callerIn(r); c != nil {
		s.auditRefusalOf(c, r.Method, reason)
	}
}

// auditRefusalOf logs a request of a caller that was refused. Each caller, or address without a
// token, gets few lines of a reason: it could fill the disk with more, or push the lines about
// others out of the log.
func (s *Server) auditRefusalOf(c *caller, method, reason string) {
	if s.opts.Audit == nil {
		return
	}
	if omitted, ok := s.refusedLines.Allow(refusalKey{c.rateKey, reason}); ok {
		s.opts.Audit.Warn("refused", withOmitted(omitted, logkey.Who, c.displayName(s.opts.Auth != nil), logkey.Reason, reason, logkey.Method, plainWord(method),
			logkey.Remote, c.remote, logkey.Request, c.request)...)
	}
}

// refusedLineBurst is the number of lines of the audit log that a caller gets at once about
// requests that were refused for one reason.
const refusedLineBurst = 5

// A refusalKey identifies the limit for one kind of refusal.
type refusalKey struct{ account, reason string }
