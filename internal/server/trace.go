package server

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// The members of _meta, and headers, that carry the trace context.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// trace begins the span of a request, and for a call that of its tool below it.
func (s *Server) trace(ctx context.Context, method, tool string, req mcp.Request) (_ context.Context, request, call tracing.Span) {
	if s.opts.Trace == nil {
		return ctx, request, call
	}
	name := method
	if !known[method] {
		name = "other"
	}
	ctx, request = s.opts.Trace.Request(ctx, traceOf(req), name)
	request.Set("mcp.method.name", name)
	if tool != "" {
		request.Set("gen_ai.tool.name", tool)
		ctx, call = tracing.Start(ctx, "tool "+tool)
	}
	return ctx, request, call
}

// traceOf returns the trace context of a request: that of its message or, without one,
// of its HTTP header.
func traceOf(req mcp.Request) (c tracing.Caller) {
	if revision.IsModernRequest(req) {
		meta := req.GetParams().GetMeta()
		c.Parent, _ = meta[traceParent].(string)
		c.State, _ = meta[traceState].(string)
	}
	if extra := req.GetExtra(); c.Parent == "" && extra != nil && extra.Header != nil {
		c.Parent, c.State = extra.Header.Get(traceParent), extra.Header.Get(traceState)
	}
	return c
}

// endTrace ends the spans of a request.
func endTrace(request, call tracing.Span, o *Observation) {
	switch {
	case o.Code != 0:
		request.SetInt("rpc.jsonrpc.error_code", o.Code)
		request.Fail("error")
		call.Fail("error")
	case o.ToolErr:
		request.Set("error.type", "tool_error")
		call.Fail("tool_error")
	}
	call.End(nil)
	request.End(nil)
}

// keepTrace copies the trace context of a message.
func keepTrace(to mcp.Meta, from *envelope.Envelope) {
	for _, name := range []string{traceParent, traceState} {
		var value string
		if raw, ok := from.Meta[name]; ok && json.Unmarshal(raw, &value) == nil {
			to[name] = value
		}
	}
}
