package mcpkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// rawParams and rawResult pass JSON through the SDK unchanged.
type rawParams struct {
	mcp.ParamsBase
	raw json.RawMessage
}

// MarshalJSON adds the metadata that the SDK has set.
func (p *rawParams) MarshalJSON() ([]byte, error) {
	if len(p.Meta) == 0 {
		if len(p.raw) == 0 {
			return []byte("{}"), nil
		}
		return p.raw, nil
	}
	members := make(map[string]json.RawMessage)
	if len(p.raw) > 0 {
		if err := json.Unmarshal(p.raw, &members); err != nil {
			return nil, err
		}
	}
	meta := p.Meta
	if own := members["_meta"]; own != nil {
		merged := make(mcp.Meta)
		if err := json.Unmarshal(own, &merged); err != nil {
			return nil, err
		}
		for k, v := range p.Meta {
			if _, ok := merged[k]; !ok {
				merged[k] = v
			}
		}
		meta = merged
	}
	b, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	members["_meta"] = b
	return json.Marshal(members)
}

// UnmarshalJSON stores the JSON.
func (p *rawParams) UnmarshalJSON(b []byte) error {
	p.raw = bytes.Clone(b)
	return nil
}

type rawResult struct {
	mcp.ResultBase
	raw json.RawMessage
}

// MarshalJSON returns the stored JSON.
func (r *rawResult) MarshalJSON() ([]byte, error) { return r.raw, nil }

// UnmarshalJSON stores the JSON.
func (r *rawResult) UnmarshalJSON(b []byte) error {
	r.raw = bytes.Clone(b)
	return nil
}

// ErrBadParams reports params that are not a JSON object, or not valid for the method.
var ErrBadParams = errors.New("invalid params")

// Request sends a request of any method and returns its result as JSON. params is an
// object, or nil. For methods that the protocol defines, the result has only the
// members that the SDK knows. tools/call is subject to the tool filter of the
// definition.
func (s *Session) Request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if err := checkParams(params); err != nil {
		return nil, fmt.Errorf("%s of mcp server %q: %w", method, s.def.Name, err)
	}
	if method == "tools/call" {
		var err error
		if params, err = s.checkToolCall(params); err != nil {
			return nil, err
		}
	}
	if err := s.registerMethod(ctx, method); err != nil {
		return nil, fmt.Errorf("%s of mcp server %q: %w", method, s.def.Name, err)
	}
	return request(ctx, s, method, func(ctx context.Context, cs *mcp.ClientSession) (json.RawMessage, error) {
		return sendRaw(ctx, cs, method, params)
	})
}

// RequestTyped is [Session.Request] with Go values instead of JSON.
func RequestTyped[R any](ctx context.Context, s *Session, method string, params any) (res R, err error) {
	var raw json.RawMessage
	if params != nil {
		if raw, err = json.Marshal(params); err != nil {
			return res, fmt.Errorf("%s of mcp server %q: %w", method, s.def.Name, err)
		}
	}
	answer, err := s.Request(ctx, method, raw)
	if err != nil {
		return res, err
	}
	if err := json.Unmarshal(answer, &res); err != nil {
		return res, fmt.Errorf("%s of mcp server %q: read the answer: %w", method, s.def.Name, err)
	}
	return res, nil
}

// checkToolCall returns the params of a tools/call of an allowed tool. If the
// definition filters tools, it returns them encoded again, because a server may read a
// duplicate member, or one with other capitals, as the name.
func (s *Session) checkToolCall(params json.RawMessage) (json.RawMessage, error) {
	if s.def.Tools.Allow == nil && len(s.def.Tools.Deny) == 0 {
		return params, nil
	}
	var members map[string]json.RawMessage
	var name string
	err := json.Unmarshal(params, &members)
	if err == nil {
		err = json.Unmarshal(members["name"], &name)
	}
	for key := range members {
		if key != "name" && strings.EqualFold(key, "name") {
			err = fmt.Errorf("found %q beside \"name\"", key)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("call a tool of mcp server %q: read its name: %w: %w", s.def.Name, ErrBadParams, err)
	}
	if !s.def.Tools.Allows(name) {
		return nil, fmt.Errorf("call tool %q of mcp server %q: %w", name, s.def.Name, ErrToolDenied)
	}
	return json.Marshal(members)
}

// registerMethod registers a method with the SDK when no request is in flight. Later
// connections register it from the start.
func (s *Session) registerMethod(ctx context.Context, method string) error {
	s.mu.Lock()
	known := standardMethods[method] != nil || s.methods[method]
	s.mu.Unlock()
	if known {
		return nil
	}
	if strings.HasPrefix(method, "notifications/") || method == "subscriptions/listen" {
		return errors.New("the method has no response; send a notification, or subscribe")
	}
	if err := s.methodLock.Acquire(ctx, methodLockSize); err != nil {
		return context.Cause(ctx)
	}
	defer s.methodLock.Release(methodLockSize)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.methods) >= maxMethods {
		return fmt.Errorf("more than %d custom methods", maxMethods)
	}
	if s.connection != nil {
		if err := addMethod(s.connection.client, method); err != nil {
			return err
		}
	}
	s.methods[method] = true
	return nil
}

// maxMethods bounds the methods of a session that the protocol does not define.
const maxMethods = 1000

func addMethod(c *mcp.Client, method string) error {
	return mcp.AddSendingCustomMethod[*rawParams, *rawResult](c, method)
}

// A sender sends a request and returns its result.
type sender func(ctx context.Context, cs *mcp.ClientSession, method string, params json.RawMessage) (json.RawMessage, error)

// standardMethods are the requests that the SDK knows. It requires its own types for
// their results.
var standardMethods = map[string]sender{
	"ping":                     noResult((*mcp.ClientSession).Ping),
	"initialize":               initializeResult,
	"server/discover":          initializeResult,
	"tools/list":               typed[*mcp.ListToolsResult],
	"tools/call":               typed[*mcp.CallToolResult],
	"resources/list":           typed[*mcp.ListResourcesResult],
	"resources/templates/list": typed[*mcp.ListResourceTemplatesResult],
	"resources/read":           typed[*mcp.ReadResourceResult],
	"resources/subscribe":      noResult((*mcp.ClientSession).Subscribe),
	"resources/unsubscribe":    noResult((*mcp.ClientSession).Unsubscribe),
	"prompts/list":             typed[*mcp.ListPromptsResult],
	"prompts/get":              typed[*mcp.GetPromptResult],
	"completion/complete":      typed[*mcp.CompleteResult],
	"logging/setLevel":         noResult((*mcp.ClientSession).SetLoggingLevel),
}

func checkParams(params json.RawMessage) error {
	if len(params) == 0 {
		return nil
	}
	if b := bytes.TrimSpace(params); !json.Valid(b) || b[0] != '{' {
		return fmt.Errorf("%w: they must be a JSON object", ErrBadParams)
	}
	return nil
}

// sendRaw sends a request with its params unchanged.
func sendRaw(ctx context.Context, cs *mcp.ClientSession, method string, params json.RawMessage) (json.RawMessage, error) {
	if send := standardMethods[method]; send != nil {
		return send(ctx, cs, method, params)
	}
	res, err := mcp.CallCustomMethod[*rawParams, *rawResult](ctx, cs, method, &rawParams{raw: params})
	if err != nil {
		return nil, err
	}
	return res.raw, nil
}

// initializeResult returns the result of the handshake, which is complete in every
// session.
func initializeResult(_ context.Context, cs *mcp.ClientSession, _ string, _ json.RawMessage) (json.RawMessage, error) {
	return json.Marshal(cs.InitializeResult())
}

// typed sends a request and decodes its result.
func typed[R mcp.Result](ctx context.Context, cs *mcp.ClientSession, method string, params json.RawMessage) (json.RawMessage, error) {
	res, err := mcp.CallCustomMethod[*rawParams, R](ctx, cs, method, &rawParams{raw: params})
	if err != nil {
		return nil, err
	}
	return json.Marshal(res)
}

// noResult sends requests whose result is empty.
func noResult[P any](do func(*mcp.ClientSession, context.Context, *P) error) sender {
	return func(ctx context.Context, cs *mcp.ClientSession, _ string, params json.RawMessage) (json.RawMessage, error) {
		p := new(P)
		if len(params) > 0 {
			if err := json.Unmarshal(params, p); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrBadParams, err)
			}
		}
		if err := do(cs, ctx, p); err != nil {
			return nil, err
		}
		return json.RawMessage("{}"), nil
	}
}

// Notify sends a notification of any method. It has no response, so nothing tells
// whether the server understood it.
func (s *Session) Notify(ctx context.Context, method string, params json.RawMessage) error {
	if err := checkParams(params); err != nil {
		return fmt.Errorf("notify mcp server %q of %s: %w", s.def.Name, method, err)
	}
	unlock, err := s.lockMethods(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	l, err := s.connect(ctx)
	if err != nil {
		return err
	}
	return s.attempt(ctx, "notify "+method, l, func(ctx context.Context, _ *mcp.ClientSession) error {
		m := &jsonrpc.Request{Method: method, Params: params}
		if l.state.conn != nil {
			return l.state.conn.Write(ctx, m)
		}
		b, err := jsonrpc.EncodeMessage(m)
		if err != nil {
			return err
		}
		return l.state.post(ctx, method, b)
	})
}
