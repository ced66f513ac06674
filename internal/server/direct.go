package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"

	callTool = "tools/call"
)

// direct returns the tool call of a request that needs nothing but its one answer,
// so that it can do without the SDK: it makes a session for each request that has
// none, and decodes each half a dozen times in any case, which costs more than all
// the rest of a short call.
//
// It takes what it can see to be right. Whatever is unusual, or wrong, is the
// SDK's to serve or to refuse, with ok false.
func (s *Server) direct(r *http.Request, m *postBody) (call *mcp.CallToolRequest, ok bool) {
	if m.batch || m.Kind != envelope.Request || m.Method != callTool || s.handlers[m.Tool] == nil ||
		r.Header.Get(headerSession) != "" && m.session == nil || r.Header.Get(headerLastEvent) != "" {
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
	case version == revision.Modern && m.Version == version:
		client, told := m.Meta[mcp.MetaKeyClientInfo]
		able := m.Meta[mcp.MetaKeyClientCapabilities]
		if r.Header.Get(headerMethod) != m.Method || r.Header.Get(headerName) != m.Tool ||
			!object[mcp.ClientCapabilities](able) || told && !object[mcp.Implementation](client) {
			return nil, false
		}
		params.Meta = mcp.Meta{mcp.MetaKeyProtocolVersion: version, mcp.MetaKeyClientCapabilities: able}
		if s.opts.Trace != nil {
			keepTrace(params.Meta, &m.Envelope)
		}
	case version < revision.Modern && m.Version == "" && (version == "" || slices.Contains(s.versions, version)):
	default:
		return nil, false
	}
	call = &mcp.CallToolRequest{
		Params: params,
		Extra:  &mcp.RequestExtra{TokenInfo: auth.TokenInfoFromContext(r.Context()), Header: r.Header},
	}
	if m.session != nil {
		call.Session = m.session.mcp
	}
	return call, true
}

// object reports whether raw is an object that T can be read from.
func object[T any](raw json.RawMessage) bool {
	var v T
	return len(raw) > 0 && raw[0] == '{' && json.Unmarshal(raw, &v) == nil
}

// serveDirect answers a direct call in the goroutine of its request: as JSON, or,
// if it takes so long that the client has to be told that we are alive, as an
// event. With ok false it is the SDK's to answer after all: the tool asks a client
// that has a session for input.
func (s *Server) serveDirect(ctx context.Context, res *response, r *http.Request, m *postBody, call *mcp.CallToolRequest) (ok bool) {
	modern := m.IsModern()
	if !modern && m.request == nil {
		ctx = context.WithoutCancel(ctx) // as with the SDK: older clients cancel by a message
	}
	if m.request != nil && r.Header.Get(headerVersion) >= revision.Resumable {
		res.follow(&track{events: s.replay, session: m.session.id, stream: m.request.stream, taken: &m.request.taken})
	}
	result, err := s.call(context.WithValue(ctx, directKey{}, true), callTool, call)
	if asked, ok := result.(*mcp.CallToolResult); ok && m.session != nil && asked.InputRequests != nil && !m.Inexact {
		res.leave()
		return false
	}
	if m.session != nil && m.session.requests.isUnwanted(envelope.Key(m.ID)) {
		res.drop()
		return true
	}
	answer := directAnswer{Version: "2.0", ID: m.ID}
	status := http.StatusOK
	if err == nil {
		answer.Result, err = s.directResult(result, modern)
	}
	if err != nil {
		answer.Error = coded(err)
		if modern {
			status = errorStatus(answer.Error.Code)
		}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(answer); err != nil {
		s.log.Error("encode answer", logkey.Tool, m.Tool, logkey.Error, err)
		status = http.StatusInternalServerError
		buf.Reset()
		buf.Write(envelope.ErrorReply(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"}))
	}
	res.answer(status, bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
	return true
}

// directKey marks the context of a direct call.
type directKey struct{}

// directAnswer is a JSON-RPC response.
type directAnswer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *jsonrpc.Error  `json:"error,omitempty"`
}

// directResult is an [mcp.CallToolResult] with the member that the SDK keeps to
// itself.
type directResult struct {
	Meta       mcp.Meta            `json:"_meta,omitempty"`
	Content    []mcp.Content       `json:"content,omitzero"`
	Structured any                 `json:"structuredContent,omitempty"`
	IsError    bool                `json:"isError,omitempty"`
	Requests   mcp.InputRequestMap `json:"inputRequests,omitzero"`
	State      string              `json:"requestState,omitempty"`
	Type       string              `json:"resultType,omitempty"`
}

// directResult is a result as it goes over the wire. A modern one says who we are
// and whether it is complete.
func (s *Server) directResult(result mcp.Result, modern bool) (any, error) {
	meta := mcp.Meta(result.GetMeta())
	if modern {
		meta = s.signed(meta)
	}
	r, ok := result.(*mcp.CallToolResult)
	if !ok {
		result.SetMeta(meta)
		return result, nil
	}
	d := &directResult{Meta: meta, Content: r.Content, Structured: r.StructuredContent, IsError: r.IsError}
	switch {
	case r.InputRequests != nil && !modern:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the tool asks for input, for which an older client needs a session"}
	case r.InputRequests != nil:
		d.Content, d.Requests, d.State, d.Type = nil, r.InputRequests, r.RequestState, "input_required"
		return d, nil
	case d.Content == nil:
		d.Content = []mcp.Content{}
	}
	if modern {
		d.Type = "complete"
	}
	return d, nil
}

// signed is the metadata of a result with who we are.
func (s *Server) signed(meta mcp.Meta) mcp.Meta {
	if len(meta) == 0 {
		return s.self
	}
	meta = maps.Clone(meta)
	maps.Copy(meta, s.self)
	return meta
}

// coded is the error as it goes over the wire.
func coded(err error) *jsonrpc.Error {
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
	case jsonrpc.CodeInvalidParams, mcp.CodeHeaderMismatch, mcp.CodeMissingRequiredClientCapabilities, mcp.CodeUnsupportedProtocolVersion:
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

// openDirect makes what direct calls need besides their handlers.
func (s *Server) openDirect(middleware []mcp.Middleware) {
	s.versions = mcp.SupportedProtocolVersions()
	s.self = mcp.Meta{mcp.MetaKeyServerInfo: &mcp.Implementation{Name: s.opts.Name, Title: title, Version: s.opts.Version}}
	s.call = chain(middleware, s.callHandler)
}
