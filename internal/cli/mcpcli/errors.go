package mcpcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/cassette"

	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// The exit codes of the commands below "glovebox mcp". They are part of the
// interface.
const (
	ExitOK          = 0 // done
	ExitFailure     = 1 // the server answered with an error, or something else failed
	ExitUsage       = 2 // an argument, a flag or the configuration is wrong
	ExitRefused     = 3 // not trusted, or not logged in
	ExitUnreachable = 4 // the server cannot be started or reached, or does not answer in time
	ExitTool        = 5 // the tool says that it failed
)

// kinds are the exit codes in words, for programs that read the errors.
var kinds = map[int]string{
	ExitFailure: "failed", ExitUsage: "usage", ExitRefused: "refused", ExitUnreachable: "unreachable", ExitTool: "tool",
}

// Error is an error with its exit code and what to do about it.
type Error struct {
	Code   int
	Err    error
	HintTo string // may be empty
	Silent bool   // it has been shown already
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode is what the program ends with.
func (e *Error) ExitCode() int { return e.Code }

// Hint is what to do about it, or "".
func (e *Error) Hint() string { return e.HintTo }

// Shown reports whether the error has been written already.
func (e *Error) Shown() bool { return e.Silent }

// usage is a wrong argument.
func usage(hint, format string, args ...any) *Error {
	return &Error{Code: ExitUsage, Err: fmt.Errorf(format, args...), HintTo: hint}
}

// classify returns err with its exit code and hint.
func (a *app) classify(err error) *Error {
	e := a.exitError(err)
	if e == nil || e.HintTo != "" || a.HintFor == nil {
		return e
	}
	hinted := *e
	hinted.HintTo = a.HintFor(err)
	return &hinted
}

// exitError is the table of exit codes, and of hints that depend on the code.
func (a *app) exitError(err error) *Error {
	var (
		own      *Error
		config   *mcpjson.Error
		unknown  *mcpkit.UnknownServerError
		answer   *jsonrpc.Error
		ended    *mcpkit.ServerExitedError
		timeout  interface{ Timeout() bool }
		dial     *net.OpError
		untrust  *mcpkit.Refusal
		outbound *outbound.Refusal
		needed   *login.RequiredError
		refused  *login.ServerError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &unknown):
		return &Error{Code: ExitUsage, Err: err, HintTo: suggestion(unknown.Name, unknown.Known, "glovebox mcp ls lists the servers")}
	case errors.Is(err, mcpkit.ErrDisabled), errors.Is(err, mcpkit.ErrToolDenied), errors.Is(err, mcpkit.ErrBadParams):
		return &Error{Code: ExitUsage, Err: err}
	case errors.Is(err, mcpkit.ErrTaskRequired):
		return &Error{Code: ExitUsage, Err: err, HintTo: "glovebox mcp tools SERVER marks the tools that need tasks; call one of the others"}
	case errors.As(err, &untrust):
		return &Error{Code: ExitRefused, Err: err, HintTo: a.lineFor("trust", untrust.Server) + " shows the definition and asks"}
	case errors.As(err, &outbound):
		return &Error{Code: ExitRefused, Err: err, HintTo: a.lineFor("trust", outbound.Server) + ", or one of --allow-http, --allow-localhost, --allow-private-ip, --allow-host"}
	case errors.As(err, &needed):
		return &Error{Code: ExitRefused, Err: err, HintTo: a.lineFor("login", needed.Server)}
	case errors.As(err, &refused):
		return &Error{Code: ExitRefused, Err: err}
	case errors.Is(err, mcpkit.ErrNoLogin):
		return &Error{Code: ExitUsage, Err: err, HintTo: "a server over HTTP without an Authorization header is one, unless its oauth is switched off"}
	case errors.As(err, &config), errors.Is(err, mcpjson.ErrNotFound):
		return &Error{Code: ExitUsage, Err: err}
	case cassette.IsNotRecorded(err):
		return &Error{Code: ExitFailure, Err: err, HintTo: "record it with --record FILE in place of --replay"}
	case errors.As(err, &answer) && answer.Code != codeUnsent:
		return &Error{Code: ExitFailure, Err: err}
	case errors.As(err, &ended), errors.As(err, &timeout) && timeout.Timeout(), errors.As(err, &dial),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, errConnect):
		return &Error{Code: ExitUnreachable, Err: err}
	}
	return &Error{Code: ExitFailure, Err: err}
}

// codeUnsent is what the SDK says in place of a server that a message did not reach.
const codeUnsent = -32005

// errConnect marks whatever kept a session from beginning.
var errConnect = errors.New("no connection")

// envelope is an error as --output json writes it to standard error, in one line.
func envelope(e *Error) string {
	var answer *jsonrpc.Error
	body := map[string]any{"code": e.Code, "kind": kinds[e.Code], "message": e.Error()}
	if e.HintTo != "" {
		body["hint"] = e.HintTo
	}
	if errors.As(e.Err, &answer) && answer.Code != codeUnsent {
		rpc := map[string]any{"code": answer.Code, "message": answer.Message}
		if len(answer.Data) > 0 {
			rpc["data"] = answer.Data
		}
		body["jsonrpc"] = rpc
	}
	b, err := json.Marshal(map[string]any{"error": body})
	if err != nil {
		return err.Error() // data of the server that is no JSON
	}
	return string(b)
}

// suggestion is a hint that names what may have been meant.
func suggestion(name string, known []string, otherwise string) string {
	if near := nearest.Of(name, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return otherwise
}
