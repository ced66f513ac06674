package server

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// templates has the tools that take a named template list those of the owner.
func (s *Server) templates(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		list, ok := res.(*mcp.ListToolsResult)
		if err != nil || !ok {
			return res, err
		}
		named := s.opts.Templates(box.Owner(callerOf(ctx, req).owner()))
		if len(named) == 0 {
			return res, nil
		}
		return described(list, func(def *mcp.Tool) *mcp.Tool { return tools.WithTemplates(def, named) }), nil
	}
}

// described returns a list with the definitions that exchange returns for those of list, which
// is not modified.
func described(list *mcp.ListToolsResult, exchange func(*mcp.Tool) *mcp.Tool) *mcp.ListToolsResult {
	copied := *list
	copied.Tools = make([]*mcp.Tool, len(list.Tools))
	for i, def := range list.Tools {
		copied.Tools[i] = exchange(def)
	}
	return &copied
}
