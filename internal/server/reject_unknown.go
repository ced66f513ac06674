package server

import (
	"context"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// rejectUnknown refuses tools that the server does not offer, and, to
// modern clients, method families that the server does not declare, which the SDK
// would answer with empty lists.
func (s *Server) rejectUnknown(next mcp.MethodHandler) mcp.MethodHandler {
	caps := &s.caps
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		family, _, _ := strings.Cut(method, "/")
		declared := true
		switch family {
		case "prompts":
			declared = caps.Prompts != nil
		case "resources":
			declared = caps.Resources != nil
		case "completion":
			declared = caps.Completions != nil
		}
		if !declared && revision.IsModernRequest(req) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + method}
		}
		call, ok := req.(*mcp.CallToolRequest)
		if !ok {
			return next(ctx, method, req)
		}
		if call.Params == nil || call.Params.Name == "" {
			return nil, tools.ProtocolError(box.CodeInvalid, "Missing required parameter: name", map[string]string{"field": "name"})
		}
		if _, known := slices.BinarySearch(s.names, call.Params.Name); !known && !s.offers(call.Params.Name) {
			return nil, s.unknownTool(ctx, call.Params.Name, req)
		}
		return next(ctx, method, req)
	}
}

// offers reports whether an extension has a tool that comes and goes.
func (s *Server) offers(tool string) bool {
	return s.opts.Extend.Offers != nil && s.opts.Extend.Offers(tool)
}

// unknownTool is the error for a tool that the client of a request does not have. It suggests only
// tools that the client has. It is MethodNotFound to older clients. A modern one would read
// that, which HTTP turns into 404, as a server without tools.
func (s *Server) unknownTool(ctx context.Context, name string, req mcp.Request) error {
	names := s.names
	if len(s.withoutCode) > 0 && !s.offersCode(ctx, req) {
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool {
			plain, differs := s.withoutCode[n]
			return differs && plain == nil
		})
	}
	if s.opts.Extend.Names != nil {
		names = slices.Concat(names, s.opts.Extend.Names())
	}
	e := tools.UnknownTool(name, names, !s.opts.Extend.Alone)
	if revision.IsModernRequest(req) {
		e.Code = jsonrpc.CodeInvalidParams
	}
	return e
}
