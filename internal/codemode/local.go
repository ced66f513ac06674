package codemode

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A Local is a server that is part of this program. Code calls its tools like those of
// others, under the same rules and budgets.
type Local struct {
	Name  string
	Tools []LocalTool
}

// A LocalTool is a tool of this program. The handler gets no session, and the owner as
// the user of the token.
type LocalTool struct {
	Def     *mcp.Tool // read-only
	Handler mcp.ToolHandler
}

// WithLocal adds a server of this program to the servers of an owner. As long as one of
// those has its name, that one takes precedence.
func WithLocal(s Servers, owner string, l Local) Servers { return withLocal{s, owner, l} }

type withLocal struct {
	Servers
	owner string
	local Local
}

// means reports whether a name of a server means the local one.
func (s withLocal) means(server string) bool {
	return server == s.local.Name && !slices.Contains(s.Servers.Names(), server)
}

func (s withLocal) Names() []string {
	names := s.Servers.Names()
	if s.means(s.local.Name) {
		names = append(slices.Clip(names), s.local.Name)
	}
	return names
}

func (s withLocal) Tools(ctx context.Context, server string) []Tool {
	var all []Tool
	local := s.means(s.local.Name)
	if server != s.local.Name || !local {
		all = slices.Clip(s.Servers.Tools(ctx, server))
	}
	if local && (server == "" || server == s.local.Name) {
		for _, t := range s.local.Tools {
			all = append(all, Tool{Server: s.local.Name, Tool: t.Def})
		}
	}
	return all
}

func (s withLocal) Unavailable(ctx context.Context, server, tool string) *Error {
	if s.means(server) {
		return nil
	}
	return s.Servers.Unavailable(ctx, server, tool)
}

func (s withLocal) Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	if !s.means(t.Server) {
		return s.Servers.Call(ctx, t, arguments)
	}
	i := slices.IndexFunc(s.local.Tools, func(l LocalTool) bool { return l.Def == t.Tool })
	if i < 0 {
		return nil, &Error{Code: Changed, Message: fmt.Sprintf("The server %q is another one than when the call began. The tool was not called. Repeat the call.", t.Server)}
	}
	return s.local.Tools[i].Handler(ctx, &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{Name: t.Name, Arguments: arguments},
		Extra:  &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: s.owner}},
	})
}
