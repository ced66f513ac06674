package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// maxQuestion bounds a server's question in an error, in bytes.
const maxQuestion = 300

// errAsked is the cause of a program's call that ended because its server asked a question.
var errAsked = errors.New("the server asked its user, and a program made the call")

// refuseProgram refuses a server's question about the call of a program. If no other call can be
// meant, it ends the call at once: some servers wait for an answer for ever. Otherwise all calls
// that may be meant are marked, and the one that fails was meant.
func (g *Gateway) refuseProgram(ctx context.Context, c *call, params mcp.InputRequest) error {
	calls := []*call{c}
	if _, named := ctx.Value(callKey{}).(*call); !named {
		calls = g.serializer.inProgress(c.server)
	}
	question := questionOf(params)
	for _, one := range calls {
		one.mu.Lock()
		one.question = question
		one.mu.Unlock()
	}
	if len(calls) == 1 {
		c.cancel(errAsked)
	}
	return invalidRequest("a program made the call and cannot answer; ask in a call of a client")
}

// questionOf says what a server asks.
func questionOf(params mcp.InputRequest) string {
	switch p := params.(type) {
	case *mcp.ElicitParams:
		return fmt.Sprintf("It asks: %q", truncate.Bytes(p.Message, maxQuestion))
	case *mcp.CreateMessageParams:
		return "It requests an answer from a model"
	}
	return "It asks for input"
}

// whyAsked returns the error of a program's call that failed because its server asked a question;
// nil if it asked none.
func (c *call) whyAsked(res *mcp.CallToolResult, err error) *UnavailableError {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	question := c.question
	c.mu.Unlock()
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && answer.Code == mcp.CodeURLElicitationRequired {
		question = "It asks the user to open a page"
	}
	if question == "" || err == nil && !res.IsError {
		return nil
	}
	return &UnavailableError{ReasonAsks, fmt.Sprintf(
		"the tool asks for input during the call, which a program cannot give. %s. What the tool did before is unknown. Pass what it needs as arguments, or tell the user to call it in another client", question)}
}
