package mcpkit

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tools returns the server's tools that the definition allows, from all pages. Some can
// run as tasks only: see [RequiresTask].
func (s *Session) Tools(ctx context.Context) ([]*mcp.Tool, error) {
	tools, err := listAll(ctx, s, "list tools", func(ctx context.Context, cs *mcp.ClientSession) iter.Seq2[*mcp.Tool, error] {
		return cs.Tools(ctx, nil)
	})
	allowed := tools[:0]
	for _, t := range tools {
		if s.def.Tools.Allows(t.Name) {
			allowed = append(allowed, t)
		}
	}
	s.tasks.mark(allowed)
	return allowed, err
}

// ErrToolDenied reports a tool that the definition does not allow.
var ErrToolDenied = errors.New("the configuration does not allow the tool")

// CallTool calls a tool that the definition allows. If the tool fails, the result has
// IsError set. A tool that a previous list marked as running as a task only is not
// called: the error is [ErrTaskRequired].
func (s *Session) CallTool(ctx context.Context, params *mcp.CallToolParams) (*mcp.CallToolResult, error) {
	if !s.def.Tools.Allows(params.Name) {
		return nil, fmt.Errorf("call tool %q of mcp server %q: %w", params.Name, s.def.Name, ErrToolDenied)
	}
	if err := s.refuseTask(params.Name); err != nil {
		return nil, err
	}
	return request(ctx, s, fmt.Sprintf("call tool %q", params.Name), func(ctx context.Context, cs *mcp.ClientSession) (*mcp.CallToolResult, error) {
		return cs.CallTool(ctx, params)
	})
}
