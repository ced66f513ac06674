package codemode

import (
	"context"
	"errors"

	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// Code is the kind of a failed call, for programs.
type Code string

// The closed set of codes.
const (
	UnknownServer    Code = "unknown_server"
	UnknownTool      Code = "unknown_tool"
	InvalidArguments Code = "invalid_arguments"
	Denied           Code = "denied"            // by the policy
	ApprovalRequired Code = "approval_required" // the call needs approval, and no user gave it
	ApprovalExpired  Code = "approval_expired"  // nobody answered in time
	Untrusted        Code = "untrusted"         // the user has not trusted the server
	Changed          Code = "changed"           // the tool differs from when it was first used
	Exhausted        Code = "budget"            // of the run, the box or the owner, before the call
	ToolFailed       Code = "tool_error"        // the tool ran and failed
	NeedsInput       Code = "input_required"    // the tool asks its user something
	TooLarge         Code = "too_large"         // the tool ran, and its result exceeds a limit or the budget
	Unavailable      Code = "unavailable"       // the server cannot be used
	Timeout          Code = "timeout"           // whether the tool ran is unknown
	Interrupted      Code = "interrupted"       // the run or the connection ended; whether the tool ran is unknown
)

// refused reports whether nothing was called.
func (c Code) refused() bool {
	switch c {
	case UnknownServer, UnknownTool, InvalidArguments, Denied, ApprovalRequired, ApprovalExpired, Untrusted, Changed, Exhausted:
		return true
	}
	return false
}

// An Error is a failed call as the program sees it.
type Error struct {
	Server    string `json:"server,omitempty"`
	Tool      string `json:"tool,omitempty"`
	Code      Code   `json:"code"`
	Message   string `json:"message"`
	Signature string `json:"signature,omitempty"` // of the tool, if the call did not fit it

	broken   bool // an interrupted call ended with its connection, not with its run
	unsent   bool // the server got no call
	starting bool // the server has not been listed yet
}

func (e *Error) Error() string { return e.Message }

// errBudgetTime is the cause of a call that used up the time of its run.
var errBudgetTime = errors.New("the time for calls is used up")

// maxMessage bounds the text of an error, which may come from a server.
const maxMessage = 8 << 10

// asError converts any error for the program.
func asError(ctx context.Context, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		said := *e
		said.Message = safe(e.Message)
		return &said
	}
	var timeout interface{ Timeout() bool }
	e := &Error{Code: Unavailable, Message: safe(err.Error()) + "; whether the tool ran is unknown"}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errBudgetTime):
		e.Code, e.Message = Timeout, "the run may wait no longer for calls; whether the tool ran is unknown"
	case ctx.Err() != nil && errors.Is(err, mcpkit.ErrNotSent):
		e.Code, e.Message = Interrupted, "the call ended with its run; the tool was not called"
	case ctx.Err() != nil:
		e.Code, e.Message = Interrupted, "the call ended with its run; whether the tool ran is unknown"
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Code = Timeout
	}
	return e
}

// withTool names the tool in an error, with the signature for a program of that language
// if the call may not have fitted it.
func (b *Broker) withTool(err error, t Tool, l Language) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	named := *e
	named.Server, named.Tool = t.Server, t.Name
	if named.Code == InvalidArguments || named.Code == ToolFailed {
		named.Signature = signatureWriter{&b.declarations, l}.signature(t)
	}
	return &named
}

// safe returns text of a server for a person or a model: bounded, and without characters
// that control a terminal or hide text.
func safe(s string) string {
	if len(s) > maxMessage {
		n := maxMessage
		for n > 0 && s[n]&0xc0 == 0x80 { // in the middle of a character
			n--
		}
		s = s[:n] + "…"
	}
	return visible.Text(s)
}
