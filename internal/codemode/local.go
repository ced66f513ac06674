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
func (w withLocal) means(server string) bool {
	return server == w.local.Name && !slices.Contains(w.Servers.Names(), server)
}

func (w withLocal) Names() []string {
	names := w.Servers.Names()
	if w.means(w.local.Name) {
		names = append(slices.Clip(names), w.local.Name)
	}
	return names
}

func (w withLocal) Tools(ctx context.Context, server string) []Tool {
	var all []Tool
	local := w.means(w.local.Name)
	if server != w.local.Name || !local {
		all = slices.Clip(w.Servers.Tools(ctx, server))
	}
	if local && (server == "" || server == w.local.Name) {
		for _, t := range w.local.Tools {
			all = append(all, Tool{Server: w.local.Name, Tool: t.Def})
		}
	}
	return all
}

func (w withLocal) Unavailable(ctx context.Context, server, tool string) *Error {
	if w.means(server) {
		return nil
	}
	return w.Servers.Unavailable(ctx, server, tool)
}

func (w withLocal) Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	if !w.means(t.Server) {
		return w.Servers.Call(ctx, t, arguments)
	}
	i := slices.IndexFunc(w.local.Tools, func(l LocalTool) bool { return l.Def == t.Tool })
	if i < 0 {
		return nil, &Error{Code: Changed, Message: fmt.Sprintf("The server %q is another one than when the call began. The tool was not called. Repeat the call.", t.Server)}
	}
	return w.local.Tools[i].Handler(ctx, &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{Name: t.Name, Arguments: arguments},
		Extra:  &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: w.owner}},
	})
}
