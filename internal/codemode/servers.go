package codemode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// FromGateway returns the servers of a gateway, which must be registered with an
// mcp.Server. Their lists are cached, changed tools are withheld, and untrusted servers
// are refused, as for the gateway's own clients.
func FromGateway(g *gateway.Gateway) Servers { return gatewayServers{g} }

// WithNotices returns a context for runs and searches that tell f when they wait for servers to
// start. f must not block.
func WithNotices(ctx context.Context, f func(text string)) context.Context {
	return gateway.WithStarting(ctx, func(server string) {
		if server == "" {
			f("starting the MCP servers that have never been listed")
		} else {
			f("starting the MCP server " + visible.Line(server))
		}
	})
}

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
	gateway.ReasonFailed: Unavailable, gateway.ReasonStarting: Unavailable, gateway.ReasonUntrusted: Untrusted,
	gateway.ReasonChanged: Changed, gateway.ReasonTask: Unavailable, gateway.ReasonAsks: NeedsInput,
}

func (s gatewayServers) Unavailable(ctx context.Context, server, tool string) *Error {
	if name, _ := find(tool, s.g.LeftOut(server), identifier); name != "" {
		tool = name // programs may write its identifier
	}
	if why := s.g.WhyUnavailable(ctx, server, tool); why != nil {
		return &Error{Code: reasons[why.Reason], Message: why.Text, starting: why.Reason == gateway.ReasonStarting}
	}
	return nil
}

func (s gatewayServers) Withheld(_ context.Context, server string) []string {
	return s.g.LeftOut(server)
}

// Hold does nothing: the servers of a gateway end with it.
func (s gatewayServers) Hold() (release func()) { return func() {} }

func (s gatewayServers) Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	res, err := s.g.CallTool(ctx, gateway.ServerTool{Server: t.Server, Definition: t.Definition, Tool: t.Tool}, arguments)
	if err != nil {
		return nil, failedCall(ctx, err)
	}
	return res, nil
}

// failedCall returns the error of a call as an *Error if its kind tells the code. Where the call
// ended with its run, or its time was over, asError tells it.
func failedCall(ctx context.Context, err error) error {
	if why, ok := errors.AsType[*gateway.UnavailableError](err); ok {
		return &Error{Code: reasons[why.Reason], Message: why.Text}
	}
	large, isLarge := errors.AsType[*outbound.TooLargeError](err)
	_, own := errors.AsType[*Error](err) // of the admission
	_, answered := errors.AsType[*jsonrpc.Error](err)
	var timeout interface{ Timeout() bool }
	switch {
	case isLarge:
		return &Error{Code: TooLarge, Message: "the tool ran, and its result is larger than " + sizeText(large.Limit) + " and lost" + askForLess}
	case errors.Is(err, mcpkit.ErrTooManyValues):
		_, most, _ := strings.Cut(err.Error(), mcpkit.ErrTooManyValues.Error()+": ")
		return &Error{Code: TooLarge, Message: "the tool ran, and its result has too many JSON values (" + cmp.Or(most, "above the limit") + ") and is lost" + askForLess}
	case own || ctx.Err() != nil:
		return err
	case errors.Is(err, mcpkit.ErrNotSent):
		return &Error{Code: Unavailable, Message: err.Error() + "; the tool was not called", unsent: true}
	case answered || errors.As(err, &timeout) && timeout.Timeout():
		return err
	}
	return &Error{Code: Interrupted, Message: "the connection to the server ended before the answer, and the tool may have run: " + err.Error(), broken: true}
}

// askForLess ends the sentence about a result that is too large.
const askForLess = ": ask for less, or for a page at a time"

// sizeText returns a size for a sentence, such as "16 MiB".
func sizeText(bytes int64) string {
	if bytes > 0 && bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d bytes", bytes)
}
