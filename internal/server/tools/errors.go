package tools

import (
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
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// A family is how the errors of a tool reach the client. There are two, as clients
// of two earlier servers expect them: the tools of sessions say what is wrong in
// plain text or, where the operator asks for it, with an error of the protocol; the
// others with JSON, {"error", "code"}.
type family struct {
	text  bool
	other string // the word for what the table has no word for, if text
	arg   string // the word for a name that cannot be; "" INVALID_PARAMS
}

var (
	sessionErrors = family{}
	runErrors     = family{text: true, other: "EXECUTION_FAILED"}
	createErrors  = family{text: true, other: "CONTEXT_CREATION_FAILED", arg: "INVALID_CONTEXT_NAME"}
	stopErrors    = family{text: true, other: "STOP_FAILED"}

	snapshotErrors = family{text: true, other: "SNAPSHOT_FAILED"}
)

// A errorSpec is how one code of the boxes meets the client.
type errorSpec struct {
	code     int64  // of JSON-RPC
	word     string // error.data.error_code
	prefix   string // of the message, unless it is there
	category string // configuration, resource, network, execution, session or system
	severity string // low, medium, high or critical
	text     string // the code of a text error; "" the tool's own
	suggest  []string
}

// errorSpecs is the one table of errors.
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
		[]string{"Stop a session or context that is no longer needed.", "Use a smaller flavor.", "Try again later."}},
	box.CodeBusy: {jsonrpc.CodeInvalidRequest, "SESSION_BUSY", "Resource limit exceeded: ", "resource", "medium", "",
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

// data is the error.data of the sessions tools.
type data struct {
	ErrorCode   string            `json:"error_code"`
	Category    string            `json:"category"`
	Severity    string            `json:"severity"`
	Suggestions []string          `json:"recovery_suggestions"`
	Context     map[string]string `json:"context"`
}

// meet makes the answer to a call that failed. A model reads what is wrong if it is
// the result of the tool (SEP-1303): many clients keep errors of the protocol from
// it.
func (f family) answer(deps Deps, tool string, err error) (*mcp.CallToolResult, error) {
	e := describe(deps.Log, tool, err)
	m := errorSpecOf(e)
	if f.text {
		return f.result(e, m)
	}
	suggestions := append([]string(nil), m.suggest...)
	if e.Hint != "" {
		suggestions = append([]string{e.Hint}, suggestions...)
	}
	context := map[string]string{"tool": tool}
	maps.Copy(context, e.Context)
	coded := rpcError(m, text(e, m.prefix), suggestions, context)
	if deps.ProtocolErrors {
		return nil, coded
	}
	words := coded.Message
	switch e.Code {
	case box.CodeInvalid, box.CodeUnsupportedLanguage: // the message says it
	default:
		words = m.advise(words, e)
	}
	return &mcp.CallToolResult{
		Meta:    mcp.Meta{metaError: coded},
		Content: []mcp.Content{&mcp.TextContent{Text: words}},
		IsError: true,
	}, nil
}

// advise appends what to do next to the words for e, unless a hint of e says it.
func (m errorSpec) advise(words string, e *box.Error) string {
	if e.Hint != "" || len(m.suggest) == 0 {
		return words
	}
	return sentence(words) + " " + m.suggest[0]
}

// errorSpecOf is the row of the table, but for what depends on more than the code.
func errorSpecOf(e *box.Error) errorSpec {
	m := errorSpecs[e.Code]
	switch reason := box.Reason(e.Context["reason"]); {
	case e.Code == box.CodeNotFound && e.Context["snapshot_id"] != "":
		m.word, m.prefix, m.text, m.suggest = "SNAPSHOT_NOT_FOUND", "", "SNAPSHOT_NOT_FOUND", nil
	case e.Code == box.CodeNotFound && e.Context["session_id"] != "":
		m.text = "SESSION_NOT_FOUND"
	case e.Code == box.CodeHeld && e.Context["session_id"] != "":
		m.text = "SESSION_IN_USE"
	case e.Code == box.CodeExecFailed && e.Op == "run command":
		m.word, m.prefix = "COMMAND_EXECUTION_ERROR", "Command execution failed: "
	case e.Code == box.CodeGone && (reason == box.ReasonHibernated || reason == box.ReasonRolledBack):
		m.suggest = []string{"Call again: the box is there, only what this call did is lost."}
	case e.Code == box.CodeGone && e.Context["saved"] != "":
		m.suggest = nil // the hint says it
	}
	return m
}

// ProtocolError returns an error of the protocol that is none of a tool's, with the data that
// all have. Context may be nil.
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
	body, err := encode(struct {
		Error string `json:"error"`
		Code  string `json:"code"`
	}{words, word})
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: indent(body)}},
		IsError: true,
	}, nil
}

// text is what a person or model reads.
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

// sentence ends a text with a stop, if it does not end as a sentence does.
func sentence(s string) string {
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

// describe makes err one of ours. What is our own fault is logged with an id
// and told by the id alone.
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
	log.Error("tool failed", "tool", tool, "id", id, "op", e.Op, "err", err)
	return &box.Error{
		Code: box.CodeInternal, Op: e.Op, Msg: "Internal error " + id + "; the server's log has the details",
		Context: map[string]string{"error_id": id},
	}
}

// TooManyCalls is the error for a caller who has as many calls under way as they
// may.
func TooManyCalls(limit int) *jsonrpc.Error {
	m := errorSpecs[box.CodeLimit]
	return rpcError(m, fmt.Sprintf("%s%d calls of this user are under way already", m.prefix, limit),
		[]string{"Wait for a running call to end."}, map[string]string{"limit": "calls_per_owner"})
}

// UnknownTool is the error for a name that is not among the names of the tools
// that a server offers. ours says that the server offers a part of the catalogue,
// so that the error can say which setting adds the tool.
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
		if set == EverySet {
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

// maxListed bounds the names in an answer: a gateway may offer hundreds of tools.
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
