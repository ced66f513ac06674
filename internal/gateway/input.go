package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sample forwards a server's sampling request to the client whose call it belongs to.
func (g *Gateway) sample(ctx context.Context, server string, params *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error) {
	answer, err := g.requestInput(ctx, server, params)
	if err != nil {
		return nil, err
	}
	switch a := answer.(type) {
	case *mcp.CreateMessageResult:
		return a, nil
	case *mcp.CreateMessageWithToolsResult:
		if len(a.Content) != 1 {
			return nil, invalidRequest("the client's sampling result has %d content items, want one", len(a.Content))
		}
		return &mcp.CreateMessageResult{Meta: a.Meta, Content: a.Content[0], Model: a.Model, Role: a.Role, StopReason: a.StopReason}, nil
	}
	return nil, invalidRequest("the client's answer is not a sampling result")
}

// elicit forwards a server's elicitation request to the client whose call it belongs
// to. It prefixes the message with the server's name, since the client knows the
// gateway only.
func (g *Gateway) elicit(ctx context.Context, server string, params *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	named := *params
	named.Meta = nil
	named.Message = server + ": " + params.Message
	answer, err := g.requestInput(ctx, server, &named)
	if err != nil {
		return nil, err
	}
	if a, ok := answer.(*mcp.ElicitResult); ok {
		return a, nil
	}
	return nil, invalidRequest("the client's answer is not an elicitation result")
}

// roots returns the roots of the client whose call the request belongs to. A legacy
// server keeps one list of roots for its connection and requests it outside of calls;
// it gets the roots of a sole client.
func (g *Gateway) roots(ctx context.Context, server string) ([]*mcp.Root, error) {
	if _, known := ctx.Value(callKey{}).(*call); !known {
		if !g.singleClient {
			return nil, invalidRequest("clients with different roots share this server; set its roots in the configuration")
		}
		only, err := g.sole.wait(ctx)
		if err != nil {
			return nil, invalidRequest("%v", err)
		}
		if only != nil {
			c := clientOf(only, nil, nil)
			answer, err := requestLegacy(ctx, only, &c, &mcp.ListRootsParams{})
			if err != nil {
				return nil, err
			}
			return answer.(*mcp.ListRootsResult).Roots, nil
		}
	}
	answer, err := g.requestInput(ctx, server, &mcp.ListRootsParams{})
	if err != nil {
		return nil, err
	}
	if a, ok := answer.(*mcp.ListRootsResult); ok {
		return a.Roots, nil
	}
	return nil, invalidRequest("the client's answer is not a list of roots")
}

// requestInput forwards a request for input to the client whose call it belongs to, and
// to no other.
func (g *Gateway) requestInput(ctx context.Context, server string, params mcp.InputRequest) (mcp.InputResponse, error) {
	_, roots := params.(*mcp.ListRootsParams) // requested when a server starts, not by a call
	c, err := g.serializer.callFor(ctx, server, !roots)
	if err != nil {
		return nil, invalidRequest("%v", err)
	}
	if c.program && !roots {
		return nil, g.refuseProgram(ctx, c, params)
	}
	if c.client.modern {
		if missing, ok := c.client.supports(params); !ok {
			return nil, errUnsupported(missing)
		}
		return c.requestInput(ctx, params)
	}
	waiting, session, _ := c.waiter()
	if waiting == nil {
		return nil, invalidRequest("%v", errNoCall)
	}
	if p, ok := params.(*mcp.ElicitParams); ok && p.ElicitationID != "" {
		g.elicitations.add(server, p.ElicitationID, session)
	}
	// The request goes to the session of the call and ends with the call or with ctx.
	waiting, cancel := context.WithCancelCause(waiting)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	return requestLegacy(waiting, session, &c.client, params)
}

// requestLegacy sends a request for input to a legacy client.
func requestLegacy(ctx context.Context, session *mcp.ServerSession, c *client, params mcp.InputRequest) (answer mcp.InputResponse, err error) {
	if missing, ok := c.supports(params); !ok {
		return nil, errUnsupported(missing)
	}
	switch p := params.(type) {
	case *mcp.CreateMessageParams:
		answer, err = session.CreateMessage(ctx, p)
	case *mcp.ElicitParams:
		answer, err = session.Elicit(ctx, p)
	case *mcp.ListRootsParams:
		answer, err = session.ListRoots(ctx, p)
	}
	if err == nil {
		return answer, nil
	}
	if ctx.Err() != nil {
		return nil, invalidRequest("the client did not answer: %v", context.Cause(ctx))
	}
	var own *jsonrpc.Error
	if errors.As(err, &own) {
		return nil, own
	}
	return nil, invalidRequest("request input from the client: %v", err)
}

// errUnsupported is the error for a client that lacks the needed capability.
func errUnsupported(missing string) error {
	return invalidRequest("the client that made the call does not support %s", missing)
}

// invalidRequest is the error that a server gets for its request.
func invalidRequest(format string, a ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf(format, a...)}
}
