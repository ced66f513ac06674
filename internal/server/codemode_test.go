package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/revision"
)

// shelf is a server with two tools, of one owner.
type shelf struct{ owner string }

func (shelf) Names() []string { return []string{"shelf", "gone"} }

func (shelf) Tools(_ context.Context, server string) []codemode.Tool {
	if server == "gone" {
		return nil
	}
	return []codemode.Tool{
		{Server: "shelf", Tool: &mcp.Tool{
			Name: "count-books", Description: "Counts the books of an author. Takes all editions.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
			InputSchema:  json.RawMessage(`{"type":"object","properties":{"author":{"type":"string","description":"full name"}},"required":["author"]}`),
			OutputSchema: json.RawMessage(`{"type":"object"}`),
		}},
		{Server: "shelf", Tool: &mcp.Tool{Name: "burn", Description: "Burns all books."}},
	}
}

func (shelf) Withheld(context.Context, string) []string { return nil }

func (shelf) Hold() (release func()) { return func() {} }

func (shelf) Unavailable(_ context.Context, server, _ string) *codemode.Error {
	if server == "gone" {
		return &codemode.Error{Code: codemode.Unavailable, Message: `The server "gone" is not available: it has ended.`}
	}
	return nil
}

// picture is a PNG image of one pixel.
const picture = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\rIDATx\xdac\x64\xf8\xcf\x50\x0f\x00\x03\x86\x01\x80\x5a\x34\x7d\x6b\x00\x00\x00\x00IEND\xaeB`\x82"

func (s shelf) Call(context.Context, codemode.Tool, json.RawMessage) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{
		&mcp.TextContent{Text: fmt.Sprintf(`{"books": 3, "owner": %q}`, s.owner)}, &mcp.ImageContent{MIMEType: "image/png", Data: []byte(picture)},
	}}, nil
}

// withCode gives owners whose names begin with one of those a broker.
func withCode(o *Options, owners ...string) {
	brokers := make(map[box.Owner]*codemode.Broker)
	for _, owner := range owners {
		brokers[box.Owner(owner)] = codemode.New(codemode.Options{Servers: shelf{owner}, Policy: codemode.Policy{{Tool: "burn", Decision: codemode.Deny}}})
	}
	o.Toolsets = []string{"sessions", "contexts"}
	o.Tools.Code = func(owner box.Owner) *codemode.Broker { return brokers[owner] }
}

// toolNames returns the names of the tools that a client gets, and the description of
// execute_code.
func toolNames(t *testing.T, cs *mcp.ClientSession) (names []string, description string) {
	t.Helper()
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if tool.Name == "execute_code" {
			description = tool.Description
		}
	}
	return names, description
}

func textOf(res *mcp.CallToolResult) string {
	text := ""
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	return text
}

// TestCodeMode_ToolsOfServer calls tools from code in boxes, in each era of the protocol.
func TestCodeMode_ToolsOfServer(t *testing.T) {
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		withCode(o, "")
	})
	for _, version := range []string{"2025-06-18", revision.Modern} {
		cs := dial(t, url, version)
		names, description := toolNames(t, cs)
		if !slices.Contains(names, "search_tools") || !slices.Contains(names, "describe_tools") || !strings.Contains(description, "tools.SERVER.TOOL(") {
			t.Errorf("%s: tools %q, execute_code: %s", version, names, description)
		}
		for _, c := range []struct{ tool, args, want string }{
			{"execute_code", `{"code": "print(tools.shelf.count_books(author='Eco')[0]['books'])"}`, "3\n"},
			{"execute_code", `{"code": "console.log((await tools.shelf.count_books({author: 'Eco'}))[0].books)", "language": "javascript"}`, "3\n"},
			{"execute_code", `{"code": "try:\n    tools.shelf.count_books(writer='Eco')\nexcept ToolError as e:\n    print(e.code)"}`, "invalid_arguments\n"},
			{"execute_code", `{"code": "try:\n    tools.shelf.burn()\nexcept ToolError as e:\n    print(e.code)"}`, "denied\n"},
			{"execute_command", `{"command": "glovebox-tool shelf.count-books author=Eco | cut -c 1-12"}`, `[{"books":3,` + "\n"},
			{"run_code", `{"code": "print(tools.shelf.count_books(author='Eco')[0]['books'])"}`, `"stdout": "3\n`},
			{"search_tools", `{"query": "books"}`, "tools.shelf.count_books(*, author: str) -> dict  # Counts the books of an author."},
			{"search_tools", `{"query": "books", "language": "javascript"}`, "await tools.shelf.count_books({author: string}): object  // Counts the books"},
			{"search_tools", `{}`, "# Burns all books. [denied: do not call it]\n[2 tools]\nThe server \"gone\" is not available: it has ended."},
			{"search_tools", `{"detail": "names"}`, "shelf.count-books\nshelf.burn [denied: do not call it]\n[2 tools]"},
			{"search_tools", `{"detail": "full", "language": "javascript"}`, "count_books(args: {author: string}): Promise<object>;"},
			{"describe_tools", `{"names": ["shelf.count_books"]}`, "class shelf:  # tools.shelf\n    @staticmethod\n    def count_books(*, author: str) -> dict:\n        \"\"\"Counts the books of an author. Takes all editions.\n        author: full name\"\"\"\n"},
			{"describe_tools", `{"names": ["shelf"], "detail": "signatures"}`, "tools.shelf.count_books(*, author: str) -> dict"},
			{"describe_tools", `{"names": ["shelf.count"]}`, `there is no tool "count" in tools.shelf`},
			{"describe_tools", `{"names": ["self"]}`, `did you mean shelf?`},
			{"describe_tools", `{"names": ["shelf"], "detail": "schema"}`, `{"name":"shelf.count_books","input_schema":{"type":"object"`},
			{"describe_tools", `{"names": ["shelf.count_books", "shelf.count", "gone"]}`, "full name\"\"\"\n[1 tool]\nthere is no tool \"count\" in tools.shelf"},
			{"describe_tools", `{"names": ["self", "shelf.count_books", "gone"], "detail": "signatures"}`, "-> dict  # Counts the books of an author.\n[1 tool]\nthere is no server \"self\"; did you mean shelf?"},
			{"describe_tools", `{"names": []}`, "no name is given"},
			{"search_tools", `{"query": "count"}`, "[1 tool]\nNot available: gone. Describe one of these servers to see why."},
			{"search_tools", `{"query": "gone"}`, "[0 tools]\n"},
			{"describe_tools", `{"names": ["gone"]}`, `The server "gone" is not available`},
		} {
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: json.RawMessage(c.args)})
			if err != nil {
				t.Fatalf("%s: %s(%s): %v", version, c.tool, c.args, err)
			}
			if text := textOf(res); !strings.Contains(text, c.want) {
				t.Errorf("%s: %s(%s): got %q, want %q", version, c.tool, c.args, text, c.want)
			}
			if images := len(res.Content) - 1; (images > 0) != (strings.Contains(c.args, "Eco") && !strings.Contains(c.args, "writer")) {
				t.Errorf("%s: %s(%s): %d images", version, c.tool, c.args, images)
			}
			if text := textOf(res); strings.Contains(text, "burn") && c.tool != "execute_code" && !strings.Contains(c.args, "schema") && !strings.Contains(text, "[denied: do not call it]") {
				t.Errorf("%s: %s(%s): a denied tool is not marked in %q", version, c.tool, c.args, text)
			}
		}
	}
}

// TestCodeMode_cannotAsk: the instructions of a client that cannot ask its user say what that
// means for calls that need approval, and of another they do not.
func TestCodeMode_cannotAsk(t *testing.T) {
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		withCode(o, "")
		o.Tools.Approvals = approval.New(approval.Options{})
	})
	for _, version := range []string{"2025-06-18", revision.Modern} {
		for _, able := range []bool{false, true} {
			var o mcp.ClientOptions
			if able {
				o.ElicitationHandler = func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "decline"}, nil
				}
			}
			cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, &o)
			if text := cs.InitializeResult().Instructions; strings.Count(text, "cannot ask its user") != map[bool]int{false: 1, true: 0}[able] {
				t.Errorf("%s, can ask %t: instructions %q", version, able, text)
			}
		}
		cs := dial(t, url+"?codemode=false", version)
		if text := cs.InitializeResult().Instructions; strings.Contains(text, "cannot ask its user") {
			t.Errorf("%s, without code mode: instructions %q", version, text)
		}
	}
}

// TestCodeMode_declined connects with ?codemode=false: the client gets the descriptions of
// a server without code mode, whose boxes have an image here.
func TestCodeMode_declined(t *testing.T) {
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		withCode(o, "")
		o.Image = true
	})
	_, plain := serve(t, func(o *Options) {
		boxes(o)
		o.Image = true
		o.Toolsets = []string{"sessions", "contexts"}
	})
	for _, version := range []string{"2025-06-18", revision.Modern} {
		cs := dial(t, url+"?codemode=false", version)
		want, wantDescription := toolNames(t, dial(t, plain, version))
		if names, description := toolNames(t, cs); !slices.Equal(names, want) || description != wantDescription || !strings.Contains(description, "container image") {
			t.Errorf("%s: tools %q, execute_code: %s", version, names, description)
		}
		if text := cs.InitializeResult().Instructions; strings.Contains(text, "search_tools") {
			t.Errorf("%s: instructions %q", version, text)
		}
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"code": "tools.shelf.count_books(author='Eco')"}})
		if err != nil || !res.IsError {
			t.Errorf("%s: a call from code: got %+v, %v", version, res, err)
		}
		_, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "search_tools", Arguments: map[string]any{}})
		if err == nil || !strings.Contains(err.Error(), "code mode") || strings.Count(err.Error(), "search_tools") != 1 || !strings.Contains(err.Error(), "execute_code") {
			t.Errorf("%s: search_tools: %v", version, err)
		}
		for _, near := range []string{"search_tool", "nothing like it"} {
			if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: near, Arguments: map[string]any{}}); err == nil || strings.Contains(err.Error(), "search_tools") {
				t.Errorf("%s: %s: got %v, which offers a tool that the client does not have", version, near, err)
			}
		}
	}
}

// TestCodeMode_switchedOff calls from a session that used tools before, over an endpoint without code
// mode: the program learns how to go on.
func TestCodeMode_switchedOff(t *testing.T) {
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		withCode(o, "")
	})
	for language, code := range map[string]string{"python": "tools.shelf.count_books(author='Eco')", "javascript": "await tools.shelf.count_books({author: 'Eco'})"} {
		with := args{"code": code, "session_id": "off-" + language, "language": language}
		on, off := dial(t, url, revision.Modern), dial(t, url+"?codemode=false", revision.Modern)
		if res, err := try(t, on, "execute_code", with); err != nil || res.IsError {
			t.Fatalf("%s: got %+v, %v", language, res, err)
		}
		res, err := try(t, off, "execute_code", with)
		if err != nil {
			t.Fatal(err)
		}
		got := textOf(res)
		for _, want := range []string{"code mode is off for this connection", "Call shelf.count_books directly", "connect without ?codemode=false", "[denied]"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %q, want %q", language, got, want)
			}
		}
	}
}

// TestCodeMode_owners checks that code calls the tools of its owner, and that an owner
// without tools does not see code mode.
func TestCodeMode_owners(t *testing.T) {
	p := newPeople(t)
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		o.Auth = p.v
		withCode(o, "token alice", "token bob")
	})
	const call = `{"name":"execute_code","arguments":{"code":"print(tools.shelf.count_books(author='Eco')[0]['owner'])"}}`
	for who, want := range map[string]string{"alice": "token alice", "bob": "token bob", "carol": "NameError"} {
		if res, body := do(t, "POST", url, p.as(who), rpc("tools/call", call)); res.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %q", who, res.StatusCode, body, want)
		}
		if _, body := do(t, "POST", url, p.as(who), rpc("tools/list", "{}")); strings.Contains(body, "search_tools") != (who != "carol") {
			t.Errorf("%s: tools/list: %s", who, body)
		}
	}
	// Listing tools may start servers.
	for _, call := range []string{`{"name":"search_tools","arguments":{}}`, `{"name":"describe_tools","arguments":{"names":["shelf"]}}`} {
		if res, _ := do(t, "POST", url, p.as("reader"), rpc("tools/call", call)); res.StatusCode != 403 {
			t.Errorf("%s with the scope read: %d", call, res.StatusCode)
		}
	}
}

// dial connects a client of a revision over HTTP.
func dial(t *testing.T, url, version string) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, nil)
}

// TestCodeMode_BadValueInURL checks that a typing error does not leave code mode on.
func TestCodeMode_BadValueInURL(t *testing.T) {
	s := New(Options{})
	for value, want := range map[string]int{"": 200, "?codemode": 200, "?codemode=False": 200, "?codemode=on": 200, "?codemode=0": 200, "?codemode=no": 200, "?codemode=off&codemode=flase": 200, "?codemode=flase": 400, "?codemode=%00": 400} {
		r := httptest.NewRequest("POST", "http://127.0.0.1/mcp"+value, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: got status %d, want %d: %s", value, w.Code, want, w.Body)
		}
		if want == 400 && !strings.Contains(w.Body.String(), "write codemode=false to leave out code mode") {
			t.Errorf("%q: got body %s", value, w.Body)
		}
	}
}
