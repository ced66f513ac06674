package tools

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// A family is the format of a tool's errors. Clients of two earlier servers expect
// different ones. The session tools return plain text or, with --tool-errors=protocol,
// a JSON-RPC error. The others return JSON, {"error", "code"}.
type family struct {
	text  bool   // JSON in the text
	other string // if text: the code where the table has none
	arg   string // if text: the code of an invalid name; "" INVALID_PARAMS
}

var (
	sessionErrors = family{}
	runErrors     = family{text: true, other: "EXECUTION_FAILED"}
	createErrors  = family{text: true, other: "CONTEXT_CREATION_FAILED", arg: "INVALID_CONTEXT_NAME"}
	stopErrors    = family{text: true, other: "STOP_FAILED"}

	snapshotErrors = family{text: true, other: "SNAPSHOT_FAILED"}
)

// An errorSpec maps one error code of package box to the fields of a client's error.
type errorSpec struct {
	code     int64  // of JSON-RPC
	word     string // error.data.error_code
	prefix   string // of the message, unless it begins so already
	category string // configuration, resource, network, execution, session or system
	severity string // low, medium, high or critical
	text     string // the code of a text error; "" the tool's own
	suggest  []string
}

// errorSpecs maps every error code of package box.
var errorSpecs = map[box.Code]errorSpec{
	box.CodeInvalid: {jsonrpc.CodeInvalidParams, "INVALID_PARAMETERS", "Invalid parameters: ", "execution", "low", "INVALID_PARAMS",
		[]string{"Correct the parameter that the message names and call again."}},
	box.CodeUnsupportedLanguage: {jsonrpc.CodeInvalidParams, "UNSUPPORTED_LANGUAGE", "Invalid parameters: ", "configuration", "low", "INVALID_LANGUAGE",
		[]string{"Use a language that this server offers."}},
	box.CodeUnsupported: {jsonrpc.CodeInternalError, "UNSUPPORTED_OPERATION", "Configuration error: ", "configuration", "medium", "UNSUPPORTED_OPERATION",
		[]string{"Do without it, or ask the operator for a server that can."}},
	box.CodeNotFound: {jsonrpc.CodeInvalidParams, "SESSION_NOT_FOUND", "Session not found: ", "session", "low", "CONTEXT_NOT_FOUND",
		[]string{"List what there is with get_sessions or list_contexts.", "Create a new one."}},
	box.CodeGone: {jsonrpc.CodeInternalError, "SESSION_ENDED", "Session ended: ", "session", "medium", "",
		[]string{"Call again: a new box takes its place, without the variables and files of the old one."}},
	box.CodeLimit: {jsonrpc.CodeInvalidRequest, "RESOURCE_LIMIT_ERROR", "Resource limit exceeded: ", "resource", "high", "",
		nil}, // see limitSuggestions
	box.CodeBusy: {jsonrpc.CodeInvalidRequest, "SESSION_BUSY", "", "resource", "medium", "",
		[]string{"Wait for the calls under way in this box, or use another one."}},
	box.CodeHeld: {jsonrpc.CodeInvalidRequest, "SESSION_IN_USE", "", "session", "medium", "CONTEXT_IN_USE", nil},
	box.CodeNotReady: {jsonrpc.CodeInternalError, "SERVER_NOT_READY", "Wrapper error: ", "system", "high", "SERVER_NOT_READY",
		[]string{"Try again in a few seconds."}},
	box.CodeStartFailed: {jsonrpc.CodeInternalError, "SANDBOX_CREATION_ERROR", "Sandbox creation failed: ", "resource", "high", "",
		[]string{"Try again.", "Ask the operator to run 'glovebox doctor'."}},
	box.CodeExecFailed: {jsonrpc.CodeInternalError, "CODE_EXECUTION_ERROR", "Code execution failed: ", "execution", "medium", "EXECUTION_FAILED",
		[]string{"Try again.", "Start over in a new session."}},
	box.CodeStopFailed: {jsonrpc.CodeInternalError, "STOP_FAILED", "Wrapper error: ", "session", "medium", "STOP_FAILED",
		[]string{"Wait for the running code to end and stop it again."}},
	box.CodeFileNotFound: {jsonrpc.CodeInvalidParams, "FILE_NOT_FOUND", "", "execution", "low", "FILE_NOT_FOUND",
		[]string{"List the directory with list_files."}},
	box.CodeFileExists: {jsonrpc.CodeInvalidParams, "FILE_EXISTS", "", "execution", "low", "FILE_EXISTS",
		[]string{"Choose another path, or pass overwrite true."}},
	box.CodeFileTooLarge: {jsonrpc.CodeInvalidParams, "FILE_TOO_LARGE", "", "resource", "low", "FILE_TOO_LARGE",
		[]string{"Move the file in parts."}},
	box.CodePathNotAllowed: {jsonrpc.CodeInvalidParams, "PATH_NOT_ALLOWED", "", "execution", "low", "PATH_NOT_ALLOWED",
		[]string{"Use a path below the home directory."}},
	box.CodeNoSpace: {jsonrpc.CodeInvalidRequest, "NO_SPACE", "Resource limit exceeded: ", "resource", "medium", "NO_SPACE",
		[]string{"Remove files that are no longer needed.", "Use a larger flavor."}},
	box.CodeCancelled: {jsonrpc.CodeInternalError, "CANCELLED", "", "execution", "low", "EXECUTION_FAILED", nil},
	box.CodeInternal: {jsonrpc.CodeInternalError, "INTERNAL_ERROR", "", "system", "critical", "",
		[]string{"Try again.", "Give the id of this error to the operator."}},
}

// data is the data of a JSON-RPC error.
type data struct {
	ErrorCode   string            `json:"error_code"`
	Category    string            `json:"category"`
	Severity    string            `json:"severity"`
	Suggestions []string          `json:"recovery_suggestions"`
	Context     map[string]string `json:"context"`
}

// answer returns the answer to a failed call. By default that is a tool result
// (SEP-1303): many clients hide JSON-RPC errors from the model.
func (f family) answer(deps Deps, tool string, err error) (*mcp.CallToolResult, error) {
	e := describe(deps.Log, tool, err)
	m := errorSpecOf(e)
	if f.text {
		return f.result(e, m)
	}
	context := map[string]string{"tool": tool}
	maps.Copy(context, e.Context)
	if p := e.Partial; p != nil && deps.ProtocolErrors { // a result has it as its output
		context["stdout"], context["stderr"] = p.Stdout, p.Stderr
	}
	coded := rpcError(m, text(e, m.prefix), m.suggest, context) // the text has the hint
	if deps.ProtocolErrors {
		return nil, coded
	}
	words := coded.Message
	switch e.Code {
	case box.CodeInvalid, box.CodeUnsupportedLanguage: // the message says what to do
	default:
		words = m.advise(words, e)
	}
	return &mcp.CallToolResult{
		Meta:    mcp.Meta{metaError: coded},
		Content: []mcp.Content{&mcp.TextContent{Text: words}},
		IsError: true,
	}, nil
}

// advise appends the first suggestion to a message, unless e has a hint.
func (s errorSpec) advise(words string, e *box.Error) string {
	if e.Hint != "" || len(s.suggest) == 0 {
		return words
	}
	return sentence(words) + " " + s.suggest[0]
}

// errorSpecOf returns the row for an error, adjusted by its context.
func errorSpecOf(e *box.Error) errorSpec {
	m := errorSpecs[e.Code]
	switch reason := box.Reason(e.Context["reason"]); {
	case e.Code == box.CodeNotFound && e.Context["snapshot_id"] != "":
		m.word, m.prefix, m.text, m.suggest = "SNAPSHOT_NOT_FOUND", "", "SNAPSHOT_NOT_FOUND", nil
	case e.Code == box.CodeNotFound && e.Context["session_id"] != "":
		m.text = "SESSION_NOT_FOUND"
	case e.Code == box.CodeHeld && e.Context["session_id"] != "":
		m.text = "SESSION_IN_USE"
	case e.Code == box.CodeUnsupported && e.Op == opDescribeTools: // MCP servers of code mode
		m.word, m.prefix, m.text, m.suggest = "TOOLS_UNAVAILABLE", "", "TOOLS_UNAVAILABLE", nil // the message says what to do
	case e.Code == box.CodeExecFailed && e.Op == "run command":
		m.word, m.prefix = "COMMAND_EXECUTION_ERROR", "Command execution failed: "
	case e.Code == box.CodeBusy && reason == reasonExpired:
		m.word, m.text, m.category, m.suggest = "RUN_EXPIRED", "RUN_EXPIRED", "execution", []string{"Repeat the request to run the program again, or change the code to do only what is missing."}
	case e.Code == box.CodeGone && (reason == box.ReasonHibernated || reason == box.ReasonRolledBack):
		m.word, m.prefix = "CALL_INTERRUPTED", ""
		m.suggest = []string{"Call again: the box is there, only what this call did is lost."}
	case e.Code == box.CodeCancelled && reason == reasonStopping:
		m.word, m.prefix = "CALL_INTERRUPTED", ""
		m.suggest = []string{"When the server runs again, variables and files are there if it writes sessions to disk."}
	case e.Code == box.CodeGone && e.Context["saved"] != "":
		m.suggest = nil // the hint says what to do
	case e.Code == box.CodeLimit:
		m.suggest = limitSuggestions(e.Context["limit"])
	}
	return m
}

// limitSuggestions returns what helps at a limit, which package box names in the context of its
// error.
func limitSuggestions(limit string) []string {
	const stop, later = "Stop a session or context that is no longer needed.", "Try again later."
	switch limit {
	case "snapshots", "snapshot_disk", "snapshot_disk_per_owner":
		return []string{"Delete snapshots that are no longer needed."}
	case "count", "per_owner":
		return []string{stop, later}
	case "memory", "memory_per_owner", "disk":
		return []string{stop, "Use a smaller flavor.", later}
	}
	return []string{later}
}

// ErrShutdown is the cause of the context of a call that the server cancels because it stops. Its
// client is still there, and gets an answer.
var ErrShutdown = box.ErrStopping

// reasonStopping is the reason of the error for such a call.
const reasonStopping = "stopping"

// interruptedByStop returns the error for a call that ended because the server stops, with what
// err, its own error, has of its box and its output.
func interruptedByStop(err error) *box.Error {
	e := box.Error{Code: box.CodeCancelled}
	if own, ok := errors.AsType[*box.Error](err); ok {
		e = *own
	}
	where := ""
	for _, kind := range []box.Kind{box.KindSession, box.KindContext} {
		if id := e.Context[string(kind)+"_id"]; id != "" {
			where = fmt.Sprintf(" in the %s %s", kind, clip(id))
		}
	}
	e.Msg, e.Err, e.Context = "The server is shutting down and interrupted this call"+where+", which may have done a part of its work", nil, maps.Clone(e.Context)
	if e.Context == nil {
		e.Context = make(map[string]string)
	}
	e.Context["reason"] = reasonStopping
	if e.Hint != "" {
		e.Hint += " " + errorSpecOf(&e).suggest[0] // a hint takes its place
	}
	return &e
}

// ProtocolError returns a JSON-RPC error for a failure outside of tools. context may
// be nil.
func ProtocolError(code box.Code, text string, context map[string]string) *jsonrpc.Error {
	if context == nil {
		context = map[string]string{}
	}
	m := errorSpecs[code]
	return rpcError(m, text, m.suggest, context)
}

func rpcError(m errorSpec, text string, suggestions []string, context map[string]string) *jsonrpc.Error {
	if suggestions == nil {
		suggestions = []string{}
	}
	raw, _ := json.Marshal(data{m.word, m.category, m.severity, suggestions, context}) // strings only
	return &jsonrpc.Error{Code: m.code, Message: text, Data: raw}
}

func (f family) result(e *box.Error, m errorSpec) (*mcp.CallToolResult, error) {
	word := m.text
	switch {
	case e.Code == box.CodeInvalid && f.arg != "" && e.Context["field"] == "name":
		word = f.arg
	case word == "":
		word = f.other
	}
	words := text(e, "")
	switch e.Code {
	case box.CodeFileNotFound, box.CodeFileExists:
		words = m.advise(words, e)
	}
	partial := cmp.Or(e.Partial, &box.Partial{})
	body, err := plainjson.Marshal(struct {
		Error  string `json:"error"`
		Code   string `json:"code"`
		Stdout string `json:"stdout,omitempty"` // of a program whose box ended while it ran
		Stderr string `json:"stderr,omitempty"`
	}{words, word, partial.Stdout, partial.Stderr})
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: indent(body)}},
		IsError: true,
	}, nil
}

// text returns the message of an error with its hint.
func text(e *box.Error, prefix string) string {
	s := e.Msg
	if prefix != "" && !strings.HasPrefix(strings.ToLower(s), strings.ToLower(prefix)) {
		s = prefix + s
	}
	if e.Hint == "" {
		return s
	}
	return sentence(s) + " " + e.Hint
}

// sentence ends a text with a period unless it ends as a sentence does.
func sentence(s string) string {
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

// describe converts err to a *box.Error. It logs an internal error with an id, and the
// result contains the id only.
func describe(log *slog.Logger, tool string, err error) *box.Error {
	var e *box.Error
	if !errors.As(err, &e) {
		e = &box.Error{Code: box.CodeOf(err), Err: err}
	}
	if _, known := errorSpecs[e.Code]; known && e.Code != box.CodeInternal {
		if e.Msg == "" {
			e = &box.Error{Code: e.Code, Op: e.Op, Msg: "The call was cancelled", Hint: e.Hint, Context: e.Context}
		}
		return e
	}
	id := rand.Text()[:10]
	log.Error("tool failed", logkey.Tool, tool, logkey.ErrorID, id, logkey.Operation, e.Op, logkey.Error, err)
	return &box.Error{
		Code: box.CodeInternal, Op: e.Op, Msg: "Internal error " + id + "; the server's log has the details",
		Context: map[string]string{"error_id": id},
	}
}

// TooManyCalls is the error for a caller at the limit of concurrent calls.
func TooManyCalls(limit int) *jsonrpc.Error {
	m := errorSpecs[box.CodeLimit]
	return rpcError(m, fmt.Sprintf("%s%d calls of this user are under way already", m.prefix, limit),
		[]string{"Wait for a running call to end."}, map[string]string{"limit": "calls_per_owner"})
}

// TooManyAnswers is the error in place of an answer of so many bytes, which does not fit
// beside the answers that its client has not read yet.
func TooManyAnswers(bytes, limit int) *jsonrpc.Error {
	m := errorSpecs[box.CodeLimit]
	return rpcError(m, fmt.Sprintf("%sthe call has run, and its answer of %d bytes does not fit in the %d bytes of answers that this user may leave unread", m.prefix, bytes, limit),
		[]string{"Read the answers of earlier calls, or ask for less at once."}, map[string]string{"limit": "unread_answers"})
}

// TooManyAnswersInAll is TooManyAnswers for the limit of all clients together.
func TooManyAnswersInAll(bytes, limit int) *jsonrpc.Error {
	m := errorSpecs[box.CodeLimit]
	return rpcError(m, fmt.Sprintf("%sthe call has run, and its answer of %d bytes does not fit in the %d bytes of answers that all users together may leave unread", m.prefix, bytes, limit),
		[]string{"If repeating the call does no harm, try again in a moment, or ask for less at once."}, map[string]string{"limit": "unread_answers_in_all"})
}

// UnknownTool is the error for a tool that is not among names, those that a server
// offers. ours is set for a server of this catalogue: the error then names the setting
// that adds the tool.
func UnknownTool(name string, names []string, ours bool) *jsonrpc.Error {
	m := errorSpec{jsonrpc.CodeMethodNotFound, "TOOL_NOT_FOUND", "", "execution", "low", "", nil}
	text := "Method not found: tool:" + clip(name)
	var suggest string
	i := slices.IndexFunc(catalogue(), func(t Tool) bool { return t.Def.Name == name })
	switch near := nearest.Of(name, names); {
	case ours && i >= 0:
		set := catalogue()[i].toolset()
		text = "Tool not offered: " + name
		suggest = "It is in the toolset " + set + ": the operator adds it with --toolset " + set + " or all."
		switch {
		case catalogue()[i].code:
			suggest = "It belongs to code mode: the operator enables that with --tools FILE, and a client leaves it out with ?codemode=false."
		case set == EverySet:
			suggest = "The operator adds it with --toolset all."
		}
		suggest += " " + toolList(names)
	case near != "":
		suggest = "Did you mean '" + near + "'?"
	default:
		suggest = toolList(names)
	}
	return rpcError(m, text+". "+suggest, []string{suggest}, map[string]string{"tool": clip(name)})
}

// maxListed bounds the names in an error: a gateway may offer hundreds of tools.
const maxListed = 40

func toolList(names []string) string {
	if len(names) == 0 {
		return "This server has no tools at the moment."
	}
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("The tools are: %s and %d more.", strings.Join(names[:maxListed], ", "), more)
	}
	return "The tools are: " + strings.Join(names, ", ") + "."
}
