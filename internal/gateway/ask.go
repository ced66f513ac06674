package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sample puts a request for a model's words to the client whose call it is of.
func (g *Gateway) sample(ctx context.Context, server string, params *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error) {
	answer, err := g.ask(ctx, server, params)
	if err != nil {
		return nil, err
	}
	switch a := answer.(type) {
	case *mcp.CreateMessageResult:
		return a, nil
	case *mcp.CreateMessageWithToolsResult:
		if len(a.Content) != 1 {
			return nil, wrong("the client's answer has %d contents, want one", len(a.Content))
		}
		return &mcp.CreateMessageResult{Meta: a.Meta, Content: a.Content[0], Model: a.Model, Role: a.Role, StopReason: a.StopReason}, nil
	}
	return nil, wrong("the client's answer is none to sampling")
}

// elicit puts a question for the user to the client whose call it is of. The user is
// told which of the servers asks: the client knows only one.
func (g *Gateway) elicit(ctx context.Context, server string, params *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	named := *params
	named.Meta = nil
	named.Message = server + ": " + params.Message
	answer, err := g.ask(ctx, server, &named)
	if err != nil {
		return nil, err
	}
	if a, ok := answer.(*mcp.ElicitResult); ok {
		return a, nil
	}
	return nil, wrong("the client's answer is none to elicitation")
}

// roots are those of the client. An older server keeps them for its connection, and
// asks when it likes: it can be told those of a client that is the only one.
func (g *Gateway) roots(ctx context.Context, server string) ([]*mcp.Root, error) {
	if _, known := ctx.Value(callKey{}).(*call); !known {
		if !g.alone {
			return nil, wrong("the server is shared by clients, each of which may have other roots; name them in the configuration")
		}
		only, err := g.only.meet(ctx)
		if err != nil {
			return nil, wrong("%v", err)
		}
		if only != nil {
			c := clientOf(only, nil, nil)
			answer, err := put(ctx, only, &c, &mcp.ListRootsParams{})
			if err != nil {
				return nil, err
			}
			return answer.(*mcp.ListRootsResult).Roots, nil
		}
	}
	answer, err := g.ask(ctx, server, &mcp.ListRootsParams{})
	if err != nil {
		return nil, err
	}
	if a, ok := answer.(*mcp.ListRootsResult); ok {
		return a.Roots, nil
	}
	return nil, wrong("the client's answer has no roots")
}

// ask puts a question to the client whose call it belongs to, and to no other.
func (g *Gateway) ask(ctx context.Context, server string, params mcp.InputRequest) (mcp.InputResponse, error) {
	_, roots := params.(*mcp.ListRootsParams) // servers ask for them when they start, not for a call
	c, err := g.lines.whose(ctx, server, !roots)
	if err != nil {
		return nil, wrong("%v", err)
	}
	if c.client.modern {
		if lacks, ok := c.client.takes(params); !ok {
			return nil, unable(lacks)
		}
		return c.put(ctx, params)
	}
	waiting, session, _ := c.attended()
	if waiting == nil {
		return nil, wrong("%v", errNobody)
	}
	if p, ok := params.(*mcp.ElicitParams); ok && p.ElicitationID != "" {
		g.pages.open(server, p.ElicitationID, session)
	}
	// It goes where the call came from, and ends with the call or with the question.
	waiting, cancel := context.WithCancelCause(waiting)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	return put(waiting, session, &c.client, params)
}

// put puts a question to an older client.
func put(ctx context.Context, session *mcp.ServerSession, c *client, params mcp.InputRequest) (answer mcp.InputResponse, err error) {
	if lacks, ok := c.takes(params); !ok {
		return nil, unable(lacks)
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
		return nil, wrong("the client has not answered: %v", context.Cause(ctx))
	}
	var own *jsonrpc.Error
	if errors.As(err, &own) {
		return nil, own
	}
	return nil, wrong("ask the client: %v", err)
}

// unable is the answer for a client that was not asked.
func unable(lacks string) error {
	return wrong("the client that made the call does not take %s", lacks)
}

// wrong is what a server gets that asks in vain.
func wrong(format string, a ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf(format, a...)}
}
