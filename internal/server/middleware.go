package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// cancelledPrefix begins the text of the error for a request that was cancelled.
const cancelledPrefix = "Request cancelled: "

const methodListen = "subscriptions/listen"

// recover turns a panic into an error for the one client that caused it.
func (s *Server) recover(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				id := rand.Text()[:10]
				s.log.Error("panic while handling a request", logkey.Method, method, logkey.ErrorID, id, logkey.Panic, fmt.Sprint(p), logkey.Stack, string(debug.Stack()))
				res, err = nil, tools.ProtocolError(box.CodeInternal, "Internal error "+id+"; the server's log has the details", map[string]string{"error_id": id})
			}
		}()
		return next(ctx, method, req)
	}
}

// observe logs, counts and traces.
func (s *Server) observe(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		start := time.Now()
		o := Observation{Method: method}
		if call, ok := req.(*mcp.CallToolRequest); ok && call.Params != nil {
			o.Tool = s.listed(call.Params.Name)
		}
		ctx, request, tool := s.trace(ctx, method, o.Tool, req)
		res, err := next(ctx, method, req)
		o.Duration = time.Since(start)
		o.Direct, _ = ctx.Value(directKey{}).(bool)
		if r, ok := res.(*mcp.CallToolResult); ok && r != nil {
			o.ToolErr = r.IsError
		}
		if err != nil {
			o.Code = jsonrpc.CodeInternalError
			if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
				o.Code = e.Code
			}
			s.faults.add(o.Code, start)
		}
		endTrace(request, tool, &o)
		s.log.Debug("request", logkey.Method, o.Method, logkey.Tool, o.Tool, logkey.Took, o.Duration, logkey.Code, o.Code, logkey.ToolError, o.ToolErr)
		if s.opts.Observe != nil && !repeated(ctx, res) {
			s.opts.Observe(o)
		}
		return res, err
	}
}

// code gives every error a code of the protocol: the SDK sends 0 for errors that are no
// [jsonrpc.Error]. It drops data that is not JSON, as the SDK's own data about a URI with a
// control character: such an error cannot be encoded, and the client would wait for its answer
// for ever.
func (s *Server) code(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err == nil {
			return res, nil
		}
		var coded *jsonrpc.Error
		if errors.As(err, &coded) && coded.Code != 0 {
			if len(coded.Data) > 0 && !json.Valid(coded.Data) {
				return nil, &jsonrpc.Error{Code: coded.Code, Message: coded.Message}
			}
			return nil, err
		}
		switch {
		case method == initialize:
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
		case ctx.Err() != nil:
			return nil, tools.ProtocolError(box.CodeCancelled, cancelledPrefix+context.Cause(ctx).Error(), nil)
		}
		return nil, tools.ProtocolError(box.CodeInternal, err.Error(), nil)
	}
}
