package gateway

import (
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// programError is an error whose text is for a program.
type programError struct {
	text  string
	cause error
}

func (e *programError) Error() string { return e.text }

// Unwrap returns the error with the text for the log.
func (e *programError) Unwrap() error { return e.cause }

// codeRejected is the code of the error with which the SDK wraps those of a transport. It is
// not the server's.
const codeRejected = -32005

// textFor returns the text of an error for a program. It leaves out what the server's
// program wrote to its standard error, which may have secrets of the host; cause tells where
// to find that. With Options.HideHost the text has only what the server said, and limits.
func (g *Gateway) textFor(err error, cause string) string {
	if ended, ok := errors.AsType[*mcpkit.ServerExitedError](err); ok {
		return fmt.Sprintf("mcp server %q ended: %s%s", ended.Name, ended.State, cause)
	}
	if !g.hideHost {
		return err.Error()
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time"
	}
	if large, ok := errors.AsType[*outbound.TooLargeError](err); ok {
		return large.Error()
	}
	if errors.Is(err, mcpkit.ErrTooManyValues) {
		return err.Error()
	}
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && answer.Code != codeRejected {
		return answer.Message
	}
	return "it failed, and the operator finds the cause in the log"
}

// unavailableText returns the text of an error that made a server unavailable, for a sentence that
// names the server. It tells where the cause is unless the server gave it in an answer.
func (g *Gateway) unavailableText(server string, err error) string {
	cause := g.startCause(server)
	text := withoutName(g.textFor(err, cause), server)
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	_, large := errors.AsType[*outbound.TooLargeError](err)
	switch {
	case answered && answer.Code != codeRejected, large, errors.Is(err, mcpkit.ErrTooManyValues), strings.HasSuffix(text, cause):
		return text
	}
	return text + cause
}

// withoutName returns a text of textFor for a sentence that names the server already.
func withoutName(text, server string) string {
	name := fmt.Sprintf("mcp server %q", server)
	if rest, found := strings.CutPrefix(text, name+" ended"); found {
		return "its program ended" + rest
	}
	for _, before := range []string{" of ", " "} {
		text = strings.Replace(text, before+name, "", 1)
	}
	return text
}

// startCause tells where to find why a server's program ended before it could be listed. A
// new start shows the cause to the user of this machine.
func (g *Gateway) startCause(server string) string {
	if g.hideHost {
		return g.callCause()
	}
	return "; the user sees the cause with: " + g.toolsCommand(server)
}

// callCause tells where to find why a server's program ended during a call.
func (g *Gateway) callCause() string {
	if g.hideHost {
		return ", and the operator finds the cause in the log"
	}
	return "; the log of Glovebox has the cause"
}

// causeFor tells the reader of a program's output where the cause of a failure is.
func (g *Gateway) causeFor() string {
	if g.hideHost {
		return "The operator finds the cause in the log."
	}
	return "The log of Glovebox has the cause."
}

// remedyFor tells the reader of a program's output who can allow or review what is refused.
// The log has the command.
func (g *Gateway) remedyFor(verb, command string) string {
	if g.hideHost {
		return "The operator can " + verb + " it, and finds the command in the log."
	}
	return "Its user can " + verb + " it with: " + command
}
