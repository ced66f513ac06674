package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// twoServers offers the tools of two servers, and calls none.
type twoServers struct{}

func (twoServers) Names() []string { return []string{"many", "few"} }

func (twoServers) Tools(_ context.Context, server string) (all []codemode.Tool) {
	add := func(of, name string) {
		if server == "" || server == of {
			all = append(all, codemode.Tool{Server: of, Tool: &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}})
		}
	}
	for i := range 12 {
		add("many", fmt.Sprintf("t%d", i))
	}
	add("few", "one")
	return all
}

func (twoServers) Unavailable(context.Context, string, string) *codemode.Error { return nil }

func (twoServers) Withheld(context.Context, string) []string { return nil }

func (twoServers) Hold() (release func()) { return func() {} }

func (twoServers) Call(context.Context, codemode.Tool, json.RawMessage) (*mcp.CallToolResult, error) {
	return nil, fmt.Errorf("not called")
}

// TestSearchTools_allServers checks that a model which searches without words hears of each server.
func TestSearchTools_allServers(t *testing.T) {
	broker := codemode.New(codemode.Options{Servers: twoServers{}})
	handlers := Handlers(Deps{Code: func(box.Owner) *codemode.Broker { return broker }}, nil)
	for arguments, want := range map[string]string{
		`{"detail": "names"}`:                  "many.t8 [needs approval]\nfew.one [needs approval]\n[13 tools]\nTools by server: many (12), few (1).\n3 more match: narrow the query, or raise limit (to 100).",
		`{"detail": "names", "limit": 20}`:     "many.t11 [needs approval]\nfew.one [needs approval]\n[13 tools]",
		`{"detail": "names", "query": "t"}`:    "many.t9 [needs approval]\n[12 tools]\n2 more match: narrow the query, or raise limit (to 100).",
		`{"detail": "full", "limit": 2}`:       "class few:  # tools.few\n",
		`{"detail": "signatures", "limit": 1}`: "tools.many.t0() -> Any  # [needs approval]\n[13 tools]\nTools by server: ",
	} {
		res, err := handlers["search_tools"](t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "search_tools", Arguments: json.RawMessage(arguments)}})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(got+"\n", want+"\n") && !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", arguments, got, want)
		}
	}
	res, err := handlers["describe_tools"](t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "describe_tools", Arguments: json.RawMessage(`{"names": ["few"], "detail": "names"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(got, "few.one [needs approval]\n") {
		t.Errorf("names of describe_tools: got %q", got)
	}
	// Twice named, once described.
	res, err = handlers["describe_tools"](t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "describe_tools", Arguments: json.RawMessage(`{"names": ["few.one", "few", "few.one"]}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Content[0].(*mcp.TextContent).Text; strings.Count(got, "def one(") != 1 || !strings.Contains(got, "[1 tool]") {
		t.Errorf("got %q", got)
	}
}

// TestSearchTools_Languages checks that search and description know the names of languages that
// execute_code knows, and refuse others.
func TestSearchTools_Languages(t *testing.T) {
	broker := codemode.New(codemode.Options{Servers: twoServers{}})
	handlers := Handlers(Deps{Code: func(box.Owner) *codemode.Broker { return broker }}, nil)
	for language, want := range map[string]string{
		"": "tools.few.one() -> Any", "python": "tools.few.one() -> Any", "Python3": "tools.few.one() -> Any",
		"javascript": "await tools.few.one()", "JavaScript": "await tools.few.one()", "js": "await tools.few.one()", "node": "await tools.few.one()", " NodeJS ": "await tools.few.one()",
		"shell": "glovebox-tool few.one", "bash": "glovebox-tool few.one",
		"ruby": "Invalid parameters: Unsupported language: ruby. Must be 'python', 'javascript' or 'shell'",
	} {
		for tool, arguments := range map[string]map[string]any{
			"search_tools":   {"query": "one", "language": language},
			"describe_tools": {"names": []string{"few.one"}, "detail": "signatures", "language": language},
		} {
			raw, err := json.Marshal(arguments)
			if err != nil {
				t.Fatal(err)
			}
			res, err := handlers[tool](t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: tool, Arguments: raw}})
			if err != nil {
				t.Fatal(err)
			}
			if got := res.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(got, want) {
				t.Errorf("%s, language %q: got %q, want %q", tool, language, got, want)
			}
		}
	}
}

// lockedServer is a server without tools, which its user has not trusted.
type lockedServer struct{ twoServers }

func (lockedServer) Names() []string { return []string{"locked"} }

func (lockedServer) Tools(context.Context, string) []codemode.Tool { return nil }

func (lockedServer) Unavailable(context.Context, string, string) *codemode.Error {
	return &codemode.Error{Code: codemode.Untrusted, Message: "Trust it first."}
}

// TestSearchTools_NoToolsAtAll checks that a search where no server can be used does not say that
// other words would find more.
func TestSearchTools_NoToolsAtAll(t *testing.T) {
	broker := codemode.New(codemode.Options{Servers: lockedServer{}})
	handlers := Handlers(Deps{Code: func(box.Owner) *codemode.Broker { return broker }}, nil)
	res, err := handlers["search_tools"](t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "search_tools", Arguments: json.RawMessage(`{"query": "write"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	const notes = "Not trusted: locked. Describe one of these servers to see why."
	if got, want := res.Content[0].(*mcp.TextContent).Text, "[0 tools]\n"+notes; strings.TrimSpace(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	answer, err := broker.Begin(codemode.Identity{}).Call(t.Context(), "search", []byte(`{"query": "write"}`))
	if err != nil || !strings.Contains(string(answer), notes) || strings.Contains(string(answer), "no tool matches") {
		t.Errorf("a program: got %s, %v", answer, err)
	}
}
