package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/plainjson"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"

	callTool     = "tools/call"
	readResource = "resources/read"
)

// direct returns the tool call of a request that needs nothing but its one answer, and
// so no session of the SDK: with one, a short call costs twice as much.
//
// Requests that are unusual, or invalid, are left to the SDK: then ok is false.
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
		client, named := m.Meta[mcp.MetaKeyClientInfo]
		able := m.Meta[mcp.MetaKeyClientCapabilities]
		if r.Header.Get(headerMethod) != m.Method || r.Header.Get(headerName) != m.Tool ||
			!object[mcp.ClientCapabilities](able) || named && !object[mcp.Implementation](client) {
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
		Extra:  &mcp.RequestExtra{Header: r.Header},
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

// serveDirect serves a direct call in the goroutine of its POST. It reports false if the
// SDK has to serve it after all: the tool asks a client with a session for input.
func (s *Server) serveDirect(cl *call, req *mcp.CallToolRequest, modern bool) (served bool) {
	cl.handled.Store(true)
	req.Extra.TokenInfo = source{cl.caller, cl}.extra(nil).TokenInfo
	ctx := context.WithValue(context.WithValue(cl.ctx, callKey{}, cl), directKey{}, true)
	result, err := s.call(ctx, callTool, req)
	if repeated(ctx, result) {
		return false
	}
	var encoded []byte
	if err == nil {
		var wire any
		if wire, err = s.directResult(result, modern); err == nil {
			encoded, err = encode(wire)
		}
	}
	s.answer(cl, encoded, err)
	return true
}

// repeated reports whether a result is that of a direct call which the SDK will serve again.
func repeated(ctx context.Context, result mcp.Result) bool {
	if direct, _ := ctx.Value(directKey{}).(bool); !direct {
		return false
	}
	asked, ok := result.(*mcp.CallToolResult)
	cl := callIn(ctx)
	return ok && asked != nil && asked.InputRequests != nil && cl != nil && cl.session != nil && !cl.inexact
}

// encode encodes a result as the SDK does.
func encode(v any) ([]byte, error) {
	b, err := plainjson.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return b, nil
}

// directKey marks the contexts of direct calls.
type directKey struct{}

// directResult is an [mcp.CallToolResult] with the member resultType, which the SDK does
// not export.
type directResult struct {
	Meta       mcp.Meta            `json:"_meta,omitempty"`
	Content    []mcp.Content       `json:"content,omitzero"`
	Structured any                 `json:"structuredContent,omitempty"`
	IsError    bool                `json:"isError,omitempty"`
	Requests   mcp.InputRequestMap `json:"inputRequests,omitzero"`
	State      string              `json:"requestState,omitempty"`
	Type       string              `json:"resultType,omitempty"`
}

// directResult returns a result for the wire. A modern one names the server and says
// whether it is complete.
func (s *Server) directResult(result mcp.Result, modern bool) (any, error) {
	meta := mcp.Meta(result.GetMeta())
	if modern {
		meta = s.withServerInfo(meta)
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

// withServerInfo adds the name of the server to the metadata of a result.
func (s *Server) withServerInfo(meta mcp.Meta) mcp.Meta {
	if len(meta) == 0 {
		return s.self
	}
	meta = maps.Clone(meta)
	maps.Copy(meta, s.self)
	return meta
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

// openDirect prepares direct calls.
func (s *Server) openDirect(middleware []mcp.Middleware) {
	s.self = mcp.Meta{mcp.MetaKeyServerInfo: &mcp.Implementation{Name: s.opts.Name, Title: title, Version: s.opts.Version}}
	s.call = chain(middleware, s.callHandler)
}
