package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
	"github.com/glovebox-dev/glovebox/internal/tools"
)

const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"

	callTool = "tools/call"
)

// direct returns the tool call of a request without a session that needs nothing
// but its one answer, so that it can do without the session that the SDK makes
// for each such request, which costs more than all the rest of a short call.
//
// It takes what it can see to be right. Whatever is unusual, or wrong, is the
// SDK's to serve or to refuse, with ok false.
func (s *Server) direct(r *http.Request, m *envelope.Envelope) (call *mcp.CallToolRequest, ok bool) {
	if m.Kind != envelope.Request || m.Method != callTool || s.handlers[m.Tool] == nil ||
		r.Header.Get(headerSession) != "" || r.Header.Get("Last-Event-Id") != "" {
		return nil, false
	}
	params := &mcp.CallToolParamsRaw{Name: m.Tool, Arguments: m.Params["arguments"]}
	for name := range m.Params {
		if name != "name" && name != "arguments" && name != "_meta" {
			return nil, false
		}
	}
	if _, asked := m.Meta["progressToken"]; asked {
		return nil, false
	}
	switch version := r.Header.Get(headerVersion); {
	case version == envelope.Modern && m.Version == version:
		client, told := m.Meta[mcp.MetaKeyClientInfo]
		if r.Header.Get(headerMethod) != m.Method || r.Header.Get(headerName) != m.Tool ||
			!object[mcp.ClientCapabilities](m.Meta[mcp.MetaKeyClientCapabilities]) ||
			told && !object[mcp.Implementation](client) {
			return nil, false
		}
		params.Meta = mcp.Meta{mcp.MetaKeyProtocolVersion: version}
	case version < envelope.Modern && m.Version == "" && (version == "" || slices.Contains(s.versions, version)):
	default:
		return nil, false
	}
	return &mcp.CallToolRequest{
		Params: params,
		Extra:  &mcp.RequestExtra{TokenInfo: auth.TokenInfoFromContext(r.Context()), Header: r.Header},
	}, true
}

// object reports whether raw is an object that T can be read from.
func object[T any](raw json.RawMessage) bool {
	var v T
	return len(raw) > 0 && raw[0] == '{' && json.Unmarshal(raw, &v) == nil
}

// serveDirect answers a direct call in the goroutine of its request: as JSON, or,
// if it takes so long that the client has to be told that we are alive, as an
// event.
func (s *Server) serveDirect(res *response, r *http.Request, m *envelope.Envelope, call *mcp.CallToolRequest) {
	ctx := r.Context()
	modern := m.IsModern()
	if !modern {
		ctx = context.WithoutCancel(ctx) // as with the SDK: older clients cancel by a message
	}
	result, err := s.call(ctx, callTool, call)
	answer := directAnswer{Version: "2.0", ID: m.ID}
	status := http.StatusOK
	if err != nil {
		answer.Error = coded(err)
		if modern {
			status = errorStatus(answer.Error.Code)
		}
	} else if answer.Result = newDirectResult(result); modern {
		answer.Result.Type = "complete"
		answer.Result.Meta = s.self
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(answer); err != nil {
		s.log.Error("encode answer", "tool", m.Tool, "err", err)
		status = http.StatusInternalServerError
		buf.Reset()
		buf.Write(envelope.ErrorReply(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"}))
	}
	res.answer(status, bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
}

// directAnswer is a JSON-RPC response.
type directAnswer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  *directResult   `json:"result,omitempty"`
	Error   *jsonrpc.Error  `json:"error,omitempty"`
}

// directResult is an [mcp.CallToolResult] with the member that the SDK keeps to
// itself.
type directResult struct {
	Meta       mcp.Meta      `json:"_meta,omitempty"`
	Content    []mcp.Content `json:"content"`
	Structured any           `json:"structuredContent,omitempty"`
	IsError    bool          `json:"isError,omitempty"`
	Type       string        `json:"resultType,omitempty"`
}

func newDirectResult(result mcp.Result) *directResult {
	r := result.(*mcp.CallToolResult)
	d := &directResult{Content: r.Content, Structured: r.StructuredContent, IsError: r.IsError}
	if d.Content == nil {
		d.Content = []mcp.Content{}
	}
	return d
}

// coded is the error as it goes over the wire.
func coded(err error) *jsonrpc.Error {
	if full, ok := err.(interface{ Full() *jsonrpc.Error }); ok {
		return full.Full()
	}
	if e, ok := err.(*jsonrpc.Error); ok {
		return e
	}
	e := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	if inner := (*jsonrpc.Error)(nil); errors.As(err, &inner) {
		e.Code = inner.Code
	}
	return e
}

// errorStatus is the status of HTTP that a modern client gets with an error.
func errorStatus(code int64) int {
	switch code {
	case jsonrpc.CodeMethodNotFound:
		return http.StatusNotFound
	case jsonrpc.CodeInvalidParams:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// callHandler is the innermost handler of a direct call.
func (s *Server) callHandler(ctx context.Context, _ string, req mcp.Request) (mcp.Result, error) {
	call := req.(*mcp.CallToolRequest)
	res, err := s.handlers[call.Params.Name](ctx, call)
	if err != nil {
		return nil, err // a nil result in an interface is none
	}
	return res, nil
}

// openDirect makes what direct calls need. Whoever extends the server may replace
// tools and add middleware, and has all calls go through the SDK.
func (s *Server) openDirect(middleware []mcp.Middleware) {
	if s.opts.Extend != nil {
		return
	}
	s.handlers = tools.Handlers(s.opts.Tools, s.keep)
	s.versions = mcp.SupportedProtocolVersions()
	s.self = mcp.Meta{mcp.MetaKeyServerInfo: &mcp.Implementation{Name: s.opts.Name, Title: title, Version: s.opts.Version}}
	s.call = s.callHandler
	for _, m := range slices.Backward(middleware) {
		s.call = m(s.call)
	}
}
