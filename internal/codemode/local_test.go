package codemode

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

func TestWithLocal(t *testing.T) {
	local := func(name string) Local {
		return Local{name, []LocalTool{{
			Def: &mcp.Tool{Name: "whoami", Annotations: readOnly, InputSchema: map[string]any{"type": "object", "additionalProperties": false}},
			Handler: func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: r.Extra.TokenInfo.UserID + string(r.Params.Arguments)}}}, nil
			},
		}}}
	}
	w := newWorld(t, mcpkit.Trusted, Options{}, "files")
	w.o.Servers = WithLocal(w.o.Servers, "token alice", local("own"))
	r := w.Begin(Identity{Owner: "token alice"})
	for _, tc := range []struct{ name, arguments, want string }{
		{"own.whoami", `{}`, `"token alice{}"`},
		{"files.add", `{"a":1}`, `{"sum":1}`},
	} {
		if got, failure := w.call(t, r, tc.name, tc.arguments); failure != nil || got != tc.want {
			t.Errorf("%s: got %s, %+v", tc.name, got, failure)
		}
	}
	for _, tc := range []struct {
		name, arguments string
		code            Code
	}{{"own.whoamI", `{}`, UnknownTool}, {"own.whoami", `{"x":1}`, InvalidArguments}, {"owm.x", `{}`, UnknownServer}} {
		if _, failure := w.call(t, r, tc.name, tc.arguments); failure == nil || failure.Code != tc.code {
			t.Errorf("%s: got %+v, want %s", tc.name, failure, tc.code)
		}
	}
	if found, _ := w.Search(t.Context(), "whoami", 0, Python); len(found) != 1 || !strings.HasPrefix(found[0].Line, "tools.own.whoami()") {
		t.Errorf("search: %+v", found)
	}

	// A server of the user with the same name takes precedence.
	w.o.Servers = WithLocal(w.o.Servers.(withLocal).Servers, "", local("files"))
	if names := w.o.Servers.Names(); !slices.Equal(names, []string{"files"}) {
		t.Errorf("names %q", names)
	}
	r = w.Begin(Identity{})
	if got, failure := w.call(t, r, "files.add", `{"a":1}`); failure != nil || got != `{"sum":1}` {
		t.Errorf("got %s, %+v", got, failure)
	}
	if _, failure := w.call(t, r, "files.whoami", `{}`); failure == nil || failure.Code != UnknownTool {
		t.Errorf("got %+v", failure)
	}

	// A call is for one of the two, also if the other has the name by then.
	others := w.o.Servers.(withLocal).Servers
	for name, tc := range map[string]struct {
		local string
		call  func(Local) Tool
	}{
		"a tool of the local server": {"files", func(l Local) Tool { return Tool{Server: "files", Tool: l.Tools[0].Def} }},
		"a tool of the user's server": {"own", func(l Local) Tool {
			return Tool{Server: "own", Definition: "d", Tool: &mcp.Tool{Name: l.Tools[0].Def.Name}}
		}},
	} {
		l := local(tc.local)
		res, err := WithLocal(others, "", l).Call(t.Context(), tc.call(l), []byte(`{}`))
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != Changed {
			t.Errorf("%s: got %+v, %v", name, res, err)
		}
	}
}
