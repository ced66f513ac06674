package server

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// headerParam begins the headers that repeat an argument of a tool call.
const headerParam = "Mcp-Param-"

// nameMember is the member of params that the header Mcp-Name repeats, by method.
var nameMember = map[string]string{callTool: "name", "prompts/get": "name", "resources/read": "uri"}

// checkMessages checks the messages of a body against the headers of its request, as
// the transport prescribes. It returns the first message that is wrong and what is.
func (s *Server) checkMessages(r *http.Request, m *postBody) (id json.RawMessage, status int, err *jsonrpc.Error) {
	version := r.Header.Get(headerVersion)
	modern := revision.IsModern(version)
	if !modern && version != "" && !slices.Contains(s.versions, version) {
		return m.ID, http.StatusBadRequest, invalid("unsupported protocol version %.20q; supported are %s", version, strings.Join(s.versions, ", "))
	}
	if r.Header.Get(headerLastEvent) != "" {
		return m.ID, http.StatusBadRequest, invalid("Last-Event-ID must not be sent with POST")
	}
	for i := range m.messages {
		e := &m.messages[i]
		if e.Kind == envelope.Response {
			continue
		}
		notification := strings.HasPrefix(e.Method, "notifications/")
		switch {
		case e.Kind == envelope.Request && notification:
			return e.ID, http.StatusBadRequest, invalid("the notification %s must not have an id", e.Method)
		case e.Kind == envelope.Notification && !notification:
			return nil, http.StatusBadRequest, invalid("the request %s needs an id", e.Method)
		}
		if e.Version == "" && (!modern || e.Kind != envelope.Request) {
			continue
		}
		if err := checkVersion(version, e, m.session != nil); err != nil {
			return e.ID, http.StatusBadRequest, err
		}
	}
	if modern && len(m.messages) == 1 {
		if err := s.checkHeaders(r.Header, &m.messages[0]); err != nil {
			return m.ID, http.StatusBadRequest, err
		}
	}
	return nil, 0, nil
}

func invalid(format string, args ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: " + fmt.Sprintf(format, args...)}
}

func mismatch(format string, args ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Header mismatch: " + fmt.Sprintf(format, args...)}
}

// checkVersion checks that the revision in a message is that of its header.
func checkVersion(header string, e *envelope.Envelope, session bool) *jsonrpc.Error {
	switch {
	case session: // the session has a revision, which is an older one
		legacy := slices.DeleteFunc(mcp.SupportedProtocolVersions(), revision.IsModern)
		data, err := json.Marshal(mcp.UnsupportedProtocolVersionData{Supported: legacy, Requested: e.Version})
		if err != nil {
			data = nil
		}
		return &jsonrpc.Error{Code: mcp.CodeUnsupportedProtocolVersion, Message: fmt.Sprintf("Protocol version %.20q is not supported in a session", e.Version), Data: data}
	case header == "":
		return mismatch("Mcp-Protocol-Version is missing; requests with %q need it", mcp.MetaKeyProtocolVersion)
	case e.Version == "":
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("Invalid parameters: _meta needs %q, a string", mcp.MetaKeyProtocolVersion)}
	case header != e.Version:
		return mismatch("Mcp-Protocol-Version is %.20q and the message has %.20q", header, e.Version)
	}
	return nil
}

// checkHeaders checks that the headers of a modern message repeat what is in it.
func (s *Server) checkHeaders(h http.Header, e *envelope.Envelope) *jsonrpc.Error {
	if e.Kind == envelope.Response {
		return nil
	}
	switch method := h.Get(headerMethod); method {
	case e.Method:
	case "":
		return mismatch("Mcp-Method is missing")
	default:
		return mismatch("Mcp-Method is %.100q and the message has %.100q", method, e.Method)
	}
	if member := nameMember[e.Method]; member != "" {
		name := h.Get(headerName)
		var want string
		switch {
		case name == "":
			return mismatch("Mcp-Name is missing; %s needs it", e.Method)
		case json.Unmarshal(e.Params[member], &want) != nil && e.Params[member] != nil:
			return mismatch("the message has no %s that Mcp-Name could repeat", member)
		case name != want:
			return mismatch("Mcp-Name is %.100q and the message has %.100q", name, want)
		}
	}
	if e.Method == callTool {
		return checkArguments(h, s.argumentHeaders(e.Tool), e.Params["arguments"])
	}
	return nil
}

// An argumentHeader is an argument of a tool that a header repeats.
type argumentHeader struct {
	path []string // to the argument, through objects
	name string   // of the header
}

// argumentHeaders returns what the schema of a tool, as the server offers it now, says
// of headers.
func (s *Server) argumentHeaders(tool string) []argumentHeader {
	if known, ok := s.headers[tool]; ok {
		return known
	}
	if s.opts.Extend.Schema == nil {
		return nil
	}
	return headersOf(s.opts.Extend.Schema(tool))
}

// headersOf finds the arguments in a tool's input schema that headers repeat.
func headersOf(schema any) (found []argumentHeader) {
	type property struct {
		Header     json.RawMessage            `json:"x-mcp-header"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var walk func(raw json.RawMessage, path []string)
	walk = func(raw json.RawMessage, path []string) {
		var p property
		if json.Unmarshal(raw, &p) != nil {
			return
		}
		var name string
		if json.Unmarshal(p.Header, &name) == nil && name != "" && len(path) > 0 {
			found = append(found, argumentHeader{slices.Clone(path), headerParam + name})
		}
		for name, below := range p.Properties {
			walk(below, append(path, name))
		}
	}
	raw, ok := schema.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(schema); err != nil {
			return nil
		}
	}
	if strings.Contains(string(raw), `"x-mcp-header"`) {
		walk(raw, nil)
	}
	return found
}

// checkArguments checks that headers repeat the arguments of a tool call.
func checkArguments(h http.Header, headers []argumentHeader, arguments json.RawMessage) *jsonrpc.Error {
	for _, c := range headers {
		name, given := strings.Join(c.path, "."), h.Get(c.name)
		argument := arguments
		for _, member := range c.path {
			var object map[string]json.RawMessage
			if json.Unmarshal(argument, &object) != nil {
				object = nil
			}
			argument = object[member]
		}
		var want any
		absent := argument == nil || json.Unmarshal(argument, &want) != nil || want == nil
		switch {
		case absent && given == "":
		case absent:
			return mismatch("%s is there and the argument %q is not", c.name, name)
		case given == "":
			return mismatch("%s is missing; it repeats the argument %q", c.name, name)
		case !repeats(given, want):
			return mismatch("%s does not repeat the argument %q", c.name, name)
		}
	}
	return nil
}

// repeats reports whether a header repeats a value: a string, in base64 if it cannot
// stand in a header, a boolean, or an integer.
func repeats(header string, value any) bool {
	header = strings.Trim(header, " \t")
	if inner, ok := strings.CutPrefix(header, "=?base64?"); ok {
		if inner, ok = strings.CutSuffix(inner, "?="); ok {
			decoded, err := base64.StdEncoding.DecodeString(inner)
			if err != nil {
				return false
			}
			header = string(decoded)
		}
	}
	switch v := value.(type) {
	case string:
		return header == v
	case bool:
		return header == strconv.FormatBool(v)
	case float64:
		const exact = 1<<53 - 1
		n, err := strconv.ParseFloat(header, 64)
		return err == nil && n == v && v == math.Trunc(v) && math.Abs(v) <= exact
	}
	return false
}
