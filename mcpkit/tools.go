package mcpkit

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tools returns the server's tools that the definition allows, from all pages. Some can
// run as tasks only: see [RequiresTask].
func (s *Session) Tools(ctx context.Context) (tools []*mcp.Tool, err error) {
	var over *connection
	var version int
	err = s.doAfter(ctx, "list tools", func(_ context.Context, l *connection) error {
		over, version = l, l.state.tools.begin()
		return nil
	}, func(ctx context.Context, cs *mcp.ClientSession) (err error) {
		tools, err = s.readTools(ctx, cs)
		return err
	})
	if err != nil {
		return nil, err
	}
	over.state.tools.set(tools, version)
	return tools, nil
}

// readTools requests all pages of the server's list of tools.
func (s *Session) readTools(ctx context.Context, cs *mcp.ClientSession) ([]*mcp.Tool, error) {
	tools, err := collect(cs.Tools(ctx, nil), s.m.opts.Limits.List)
	if err != nil {
		return nil, err
	}
	allowed := make([]*mcp.Tool, 0, len(tools))
	for _, t := range tools {
		if s.def.Tools.Allows(t.Name) {
			allowed = append(allowed, t)
		}
	}
	s.tasks.mark(allowed)
	return allowed, nil
}

// ErrToolDenied reports a tool that the definition does not allow.
var ErrToolDenied = errors.New("the configuration does not allow the tool")

// CallTool calls a tool that the definition allows. If the tool fails, the result has
// IsError set. A tool that a previous list marked as running as a task only is not
// called: the error is [ErrTaskRequired].
func (s *Session) CallTool(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	return s.callTool(ctx, params, func(context.Context, *connection) error { return nil })
}

// CallToolIf is [Session.CallTool] for callers that know the tool from another list: one of
// an earlier connection, or of another process. check gets the server's tools, as the server
// lists them on the connection over which the request would be sent. If check fails, the
// request is not sent, and the error matches ErrNotSent and the error of check.
//
// A connection is listed once, before the first such call, and again after the server has
// reported that its tools have changed. Calls that come meanwhile share the list, which the
// time-out of requests bounds. check must not modify the tools. It may be called twice, for
// two connections.
func (s *Session) CallToolIf(ctx context.Context, params *mcp.CallToolParams, check func(ctx context.Context, tools []*mcp.Tool) error) (*mcp.CallToolResult, error) {
	return s.callTool(ctx, params, func(ctx context.Context, l *connection) error {
		tools, err := s.listed(ctx, l)
		if err != nil {
			return err
		}
		return check(ctx, tools)
	})
}

func (s *Session) callTool(ctx context.Context, params *mcp.CallToolParams, before func(context.Context, *connection) error) (res *mcp.CallToolResult, err error) {
	if !s.def.Tools.Allows(params.Name) {
		return nil, notSentError{fmt.Errorf("call tool %q of mcp server %q: %w", params.Name, s.def.Name, ErrToolDenied)}
	}
	if err := s.refuseTask(params.Name); err != nil {
		return nil, notSentError{err}
	}
	err = s.doAfter(ctx, fmt.Sprintf("call tool %q", params.Name), before, func(ctx context.Context, cs *mcp.ClientSession) (err error) {
		res, err = cs.CallTool(ctx, params)
		return err
	})
	return res, err
}
