package server

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// commandsOnly has the tools for code say that they fail, while boxes have no interpreter.
func (s *Server) commandsOnly(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		list, ok := res.(*mcp.ListToolsResult)
		if err != nil || !ok || !s.opts.CommandsOnly() {
			return res, err
		}
		return described(list, tools.ForCommandsOnly), nil
	}
}
