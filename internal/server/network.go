package server

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// describeNetwork replaces what descriptions and instructions say about the missing network, for
// owners whose boxes have one.
func (s *Server) describeNetwork(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil {
			return res, err
		}
		switch r := res.(type) {
		case *mcp.ListToolsResult:
			n := s.opts.Network(box.Owner(callerOf(ctx, req).owner()))
			if len(n.Allowed) == 0 {
				return res, nil
			}
			return described(r, func(def *mcp.Tool) *mcp.Tool { return tools.WithNetwork(def, n) }), nil
		case *mcp.InitializeResult:
			copied := *r
			copied.Instructions = s.networkInstructions(ctx, req, r.Instructions)
			return &copied, nil
		case *mcp.DiscoverResult:
			copied := *r
			copied.Instructions = s.networkInstructions(ctx, req, r.Instructions)
			return &copied, nil
		}
		return res, nil
	}
}

func (s *Server) networkInstructions(ctx context.Context, req mcp.Request, instructions string) string {
	n := s.opts.Network(box.Owner(callerOf(ctx, req).owner()))
	if len(n.Allowed) == 0 {
		return instructions
	}
	return tools.InstructionsWithNetwork(instructions, n)
}
