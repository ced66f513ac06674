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
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// The exit codes of the commands below "glovebox mcp". They are part of the
// interface.
const (
	ExitOK          = 0 // success
	ExitFailure     = 1 // the server answered with an error, or something else failed
	ExitUsage       = 2 // invalid argument, flag or configuration
	ExitRefused     = 3 // not trusted, or not logged in
	ExitUnreachable = 4 // the server could not be started or reached, or timed out
	ExitTool        = 5 // the tool reported a failure
)

// kinds are the names of the exit codes in JSON errors.
var kinds = map[int]string{
	ExitFailure: "failed", ExitUsage: "usage", ExitRefused: "refused", ExitUnreachable: "unreachable", ExitTool: "tool",
}

// Error is an error with its exit code and remedy.
type Error struct {
	Code   int
	Err    error
	HintTo string // may be empty
	Silent bool   // it was printed already
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode returns the exit code of the program.
func (e *Error) ExitCode() int { return e.Code }

// Hint returns the remedy, or "".
func (e *Error) Hint() string { return e.HintTo }

// Shown reports whether the error was printed already.
func (e *Error) Shown() bool { return e.Silent }

// usage is the error for an invalid argument.
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
		return &Error{Code: ExitRefused, Err: err, HintTo: a.lineFor("trust", untrust.Server) + " shows its definition and asks"}
	case errors.As(err, &outbound):
		return &Error{Code: ExitRefused, Err: err, HintTo: a.lineFor("trust", outbound.Server) + ", or one of --allow-http, --allow-localhost, --allow-private-ip, --allow-host"}
	case errors.As(err, &needed):
		return &Error{Code: ExitRefused, Err: err, HintTo: a.lineFor("login", needed.Server)}
	case errors.As(err, &refused):
		return &Error{Code: ExitRefused, Err: err}
	case errors.Is(err, mcpkit.ErrNoLogin):
		return &Error{Code: ExitUsage, Err: err, HintTo: "login applies to HTTP servers without an Authorization header and with oauth enabled"}
	case errors.As(err, &config), errors.Is(err, mcpjson.ErrNotFound):
		return &Error{Code: ExitUsage, Err: err}
	case cassette.IsNotRecorded(err):
		return &Error{Code: ExitFailure, Err: err, HintTo: "record it with --record FILE instead of --replay"}
	case errors.As(err, &answer) && answer.Code != codeUnsent:
		return &Error{Code: ExitFailure, Err: err}
	case errors.As(err, &ended), errors.As(err, &timeout) && timeout.Timeout(), errors.As(err, &dial),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, errConnect):
		return &Error{Code: ExitUnreachable, Err: err}
	}
	return &Error{Code: ExitFailure, Err: err}
}

// codeUnsent is the SDK's code for a message that did not reach the server.
const codeUnsent = -32005

// errConnect marks errors of connecting.
var errConnect = errors.New("no connection")

// envelope formats an error as one line of JSON, for --output json.
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
		return err.Error() // the server's data is not JSON
	}
	return string(visible.JSON(b))
}

// suggestion returns a hint with the name that was probably meant.
func suggestion(name string, known []string, otherwise string) string {
	if near := nearest.Of(name, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return otherwise
}
