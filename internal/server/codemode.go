package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// codeModeParam is the parameter of the endpoint's URL with which a client leaves out code
// mode: a host that has a code mode of its own, for example, should not offer two.
const codeModeParam = "codemode"

// declinesCodeMode reports whether the URL of a request leaves out code mode. Each request
// of a client has it, since the client configures it as part of the endpoint.
func declinesCodeMode(r *http.Request) bool {
	with, ok := codeModeValues[codeModeValue(r)]
	return ok && !with
}

// codeModeValues are the values of codeModeParam, and whether they keep code mode.
var codeModeValues = map[string]bool{
	"": true, "true": true, "1": true, "on": true, "yes": true,
	"false": false, "0": false, "off": false, "no": false,
}

func codeModeValue(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return strings.ToLower(r.URL.Query().Get(codeModeParam))
}

// refuseCodeModeValue refuses a request whose URL has another value of codeModeParam than
// those that mean something, and reports whether it did: a typing error would otherwise leave
// code mode on.
func (s *Server) refuseCodeModeValue(w http.ResponseWriter, r *http.Request) bool {
	value := codeModeValue(r)
	if _, ok := codeModeValues[value]; ok {
		return false
	}
	s.refuse(w, http.StatusBadRequest, nil, codeRefused, fmt.Sprintf("Bad Request: %s=%.40q in the URL is neither true nor false: write %s=false to leave out code mode", codeModeParam, value, codeModeParam))
	return true
}

// offersCode reports whether the client of a request has code mode.
func (s *Server) offersCode(ctx context.Context, req mcp.Request) bool {
	if s.opts.Tools.Code == nil {
		return false
	}
	c := callerOf(ctx, req)
	return !c.declinesCode && s.opts.Tools.Code(box.Owner(c.owner())) != nil
}

// codeMode leaves out code mode for clients that decline it, and for owners without
// servers of their own: its tools, what descriptions say about it, and the calls of code.
func (s *Server) codeMode(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if s.offersCode(ctx, req) {
			res, err := next(ctx, method, req)
			return s.aboutApprovals(req, res), err
		}
		if call, ok := req.(*mcp.CallToolRequest); ok && call.Params != nil {
			if plain, ok := s.withoutCode[call.Params.Name]; ok && plain == nil {
				return nil, s.unknownTool(ctx, call.Params.Name, req)
			}
		}
		res, err := next(tools.WithoutCode(ctx), method, req)
		switch r := res.(type) {
		case *mcp.ListToolsResult:
			if err == nil {
				copied := *r
				copied.Tools = s.plainTools(r.Tools)
				res = &copied
			}
		case *mcp.InitializeResult:
			if err == nil {
				copied := *r
				copied.Instructions = s.opts.plainInstructions
				res = &copied
			}
		case *mcp.DiscoverResult:
			if err == nil {
				copied := *r
				copied.Instructions = s.opts.plainInstructions
				res = &copied
			}
		}
		return res, err
	}
}

// plainTools returns definitions as they are without code mode.
func (s *Server) plainTools(all []*mcp.Tool) []*mcp.Tool {
	var plain []*mcp.Tool
	for _, def := range all {
		if other, ok := s.withoutCode[def.Name]; ok {
			def = other
		}
		if def != nil {
			plain = append(plain, def)
		}
	}
	return slices.Clip(plain)
}

// aboutApprovals adds to instructions, for a client that cannot ask its user, what becomes of the
// calls that need approval.
func (s *Server) aboutApprovals(req mcp.Request, res mcp.Result) mcp.Result {
	var caps *mcp.ClientCapabilities
	switch r := req.(type) {
	case *mcp.ServerRequest[*mcp.InitializeParams]:
		if r.Params != nil {
			caps = r.Params.Capabilities
		}
	case interface {
		ClientCapabilities() *mcp.ClientCapabilities
	}:
		caps = r.ClientCapabilities()
	}
	if s.opts.Tools.Approvals != nil && tools.CanElicit(caps) {
		return res
	}
	switch r := res.(type) {
	case *mcp.InitializeResult:
		if r != nil {
			copied := *r
			copied.Instructions += "\n" + tools.CannotAsk
			return &copied
		}
	case *mcp.DiscoverResult:
		if r != nil {
			copied := *r
			copied.Instructions += "\n" + tools.CannotAsk
			return &copied
		}
	}
	return res
}
