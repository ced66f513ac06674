package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/revision"
)

// approvable serves a call whose code may need approvals: while the code waits for one, the
// client is asked. do runs the code and returns its result. A request that has a state or input
// responses continues an earlier one, and never runs the code again.
func (c *Call) approvable(ctx context.Context, approver *approval.Approver, req *mcp.CallToolRequest, do func(context.Context) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	switch continues := req.Params.RequestState != "" || len(req.Params.InputResponses) > 0; {
	case approver == nil && continues:
		return nil, approval.ErrNotPending
	case approver == nil || c.broker == nil && !continues:
		return do(ctx)
	}
	caller := approval.Caller{Owner: string(c.Owner), Responses: req.Params.InputResponses, State: req.Params.RequestState}
	if c.holdCall != nil {
		caller.Hold = func() func() { return c.holdCall(c.Owner) }
	}
	if c.Client != nil {
		caller.Session = c.Client
	}
	switch able := CanElicit(req.ClientCapabilities()); {
	case able && revision.IsModern(req.ProtocolVersion()):
		caller.ByResult = true
	case able && req.Session != nil:
		caller.Elicit = req.Session.Elicit
	}
	if caller.ByResult || caller.State != "" {
		caller.Key = requestDigest(req.Params)
	}
	res, err := approver.Serve(ctx, caller, do)
	if caller.State != "" && err == nil {
		recordResult(ctx, res)
	}
	return res, err
}

// Within returns a context for calls of tools whose code ends with life, also while it waits
// for approval without a request.
func Within(ctx, life context.Context) context.Context { return approval.Within(ctx, life) }

// CanElicit reports whether a client supports forms, with which it asks its user for approval.
func CanElicit(caps *mcp.ClientCapabilities) bool {
	return caps != nil && caps.Elicitation != nil && (caps.Elicitation.Form != nil || caps.Elicitation.URL == nil)
}

// requestDigest returns the same digest for calls of the same tool with equal arguments.
func requestDigest(p *mcp.CallToolParamsRaw) string {
	arguments := p.Arguments
	if same, err := codemode.Canonical(arguments); err == nil {
		arguments = same
	}
	h := sha256.New()
	h.Write([]byte(p.Name))
	h.Write([]byte{0})
	h.Write(arguments)
	return hex.EncodeToString(h.Sum(nil))
}

// recordResult is recordFields for the result of code that an earlier request began.
func recordResult(ctx context.Context, res *mcp.CallToolResult) {
	structured, _ := res.StructuredContent.(json.RawMessage)
	var named struct {
		SessionID string `json:"session_id"`
		ContextID string `json:"context_id"`
	}
	if json.Unmarshal(structured, &named) == nil {
		recordFields(ctx, named)
	}
}
