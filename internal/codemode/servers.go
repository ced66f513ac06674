package codemode

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// FromGateway returns the servers of a gateway, which must be registered with an
// mcp.Server. Their lists are cached, changed tools are withheld, and untrusted servers
// are refused, as for the gateway's own clients.
func FromGateway(g *gateway.Gateway) Servers { return gatewayServers{g} }

type gatewayServers struct{ g *gateway.Gateway }

func (s gatewayServers) Names() []string { return s.g.ServerNames() }

func (s gatewayServers) Tools(ctx context.Context, server string) []Tool {
	listed := s.g.ServerTools(ctx, server)
	tools := make([]Tool, len(listed))
	for i, t := range listed {
		tools[i] = Tool{Server: t.Server, Definition: t.Definition, Tool: t.Tool}
	}
	return tools
}

// reasons maps the gateway's reasons to codes.
var reasons = map[gateway.Reason]Code{
	gateway.ReasonFailed: Unavailable, gateway.ReasonUntrusted: Untrusted,
	gateway.ReasonChanged: Changed, gateway.ReasonTask: Unavailable,
}

func (s gatewayServers) Unavailable(ctx context.Context, server, tool string) *Error {
	if why := s.g.WhyUnavailable(ctx, server, tool); why != nil {
		return &Error{Code: reasons[why.Reason], Message: why.Text}
	}
	return nil
}

func (s gatewayServers) Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	res, err := s.g.CallTool(ctx, gateway.ServerTool{Server: t.Server, Definition: t.Definition, Tool: t.Tool}, arguments)
	if why, ok := errors.AsType[*gateway.UnavailableError](err); ok {
		return nil, &Error{Code: reasons[why.Reason], Message: why.Text}
	}
	if errors.Is(err, mcpkit.ErrTooManyValues) {
		return nil, &Error{Code: TooLarge, Message: err.Error() + ": ask for less, or for a page at a time"}
	}
	return res, err
}
