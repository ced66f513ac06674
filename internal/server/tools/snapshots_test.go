//go:build linux

package tools

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// call calls a tool of the catalogue as a server does that answers with errors of
// the protocol.
func call(t *testing.T, m *box.Manager, name, args string) (*mcp.CallToolResult, error) {
	t.Helper()
	return callAs(t, Deps{Boxes: m, ProtocolErrors: true}, name, args)
}

func callAs(t *testing.T, deps Deps, name, args string) (*mcp.CallToolResult, error) {
	t.Helper()
	deps.Log = slog.New(slog.DiscardHandler)
	i := slices.IndexFunc(All(), func(tool Tool) bool { return tool.Def.Name == name })
	if i < 0 {
		t.Fatalf("no tool %s", name)
	}
	handle := All()[i].bind(deps)
	return handle(t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: name, Arguments: json.RawMessage(args)}})
}

// structured calls a tool that has to succeed.
func structured(t *testing.T, m *box.Manager, name, args string) map[string]any {
	t.Helper()
	res, err := call(t, m, name, args)
	if err != nil || res.IsError {
		t.Fatalf("%s %s: got %+v, %v", name, args, res, err)
	}
	var out map[string]any
	if err := json.Unmarshal(res.StructuredContent.(json.RawMessage), &out); err != nil {
		t.Fatal(err)
	}
	if source, ok := res.Meta[metaSource]; ok {
		out["source"] = source
	}
	return out
}

// Plain processes cannot be written to disk: the tools say so, each in the way of
// its family, and the boxes are unharmed.
func TestSnapshots_EngineWithout(t *testing.T) {
	m := toolstest.Manager(t, nil)
	c := structured(t, m, "create_context", `{"name":"c"}`)
	if c["source"] != "boot" {
		t.Errorf("create_context: got source %v, want boot", c["source"])
	}
	s := structured(t, m, "execute_code", `{"code":"x = 1","session_id":"s"}`)
	if s["source"] != "boot" || s["session_created"] != true {
		t.Errorf("execute_code: got %v, want a session of source boot", s)
	}
	if s = structured(t, m, "execute_command", `{"command":"true","session_id":"s"}`); s["source"] != nil || s["session_created"] != false {
		t.Errorf("execute_command: got %v, want no source", s)
	}
	for _, c := range []struct{ tool, args, want string }{
		{"fork_context", `{"context_id":"c"}`, "fork context"},
		{"fork_context", `{"context_id":"unknown"}`, "fork context"},
		{"snapshot_context", `{"context_id":"c","name":"n","description":"d"}`, "snapshot context"},
		{"restore_context", `{"snapshot_id":"x"}`, "restore context"},
		{"restore_context", `{"snapshot_id":"x","context_id":"c"}`, "restore context"},
		{"list_snapshots", `{}`, "list snapshots"},
		{"delete_snapshot", `{"snapshot_id":"x"}`, "delete snapshot"},
	} {
		res, err := call(t, m, c.tool, c.args)
		if err != nil {
			t.Errorf("%s %s: got error %v, want a result", c.tool, c.args, err)
			continue
		}
		text := res.Content[0].(*mcp.TextContent).Text
		if !res.IsError || !strings.Contains(text, `"error": "This server cannot `+c.want+`:`) || !strings.Contains(text, `"code": "UNSUPPORTED_OPERATION"`) {
			t.Errorf("%s %s: got %s", c.tool, c.args, text)
		}
	}
	for _, c := range []struct{ tool, args, want string }{
		{"fork_session", `{"session_id":"s"}`, "fork session"},
		{"fork_session", `{"session_id":"s","new_session_id":"t"}`, "fork session"},
		{"snapshot_session", `{"session_id":"s"}`, "snapshot session"},
		{"restore_session", `{"snapshot_id":"x"}`, "restore session"},
		{"restore_session", `{"snapshot_id":"x","session_id":"s"}`, "restore session"},
	} {
		_, err := call(t, m, c.tool, c.args)
		var e *jsonrpc.Error
		if !errors.As(err, &e) || e.Code != jsonrpc.CodeInternalError || !strings.HasPrefix(e.Message, "Configuration error: This server cannot "+c.want+":") ||
			!strings.Contains(string(e.Data), `"error_code":"UNSUPPORTED_OPERATION"`) {
			t.Errorf("%s %s: got %v", c.tool, c.args, err)
		}
	}
	if s = structured(t, m, "execute_code", `{"code":"print(x)","session_id":"s"}`); s["stdout"] != "1\n" {
		t.Errorf("after all that: got %v", s)
	}
	if list := structured(t, m, "list_contexts", `{}`); list["total"] != 1.0 || list["contexts"].([]any)[0].(map[string]any)["status"] != "active" {
		t.Errorf("list_contexts: got %v, want the one, active", list)
	}
}

func TestSnapshots_InvalidArguments(t *testing.T) {
	m := box.New(box.DefaultConfig(), box.Parts{})
	for _, c := range []struct{ tool, args, want string }{
		{"fork_context", `{}`, "Missing required parameter: context_id"},
		{"fork_context", `{"context_id":" "}`, "Parameter 'context_id' must not be empty"},
		{"fork_context", `{"context_id":"c","new_name":"d"}`, "Unknown parameter: new_name. Did you mean 'name'?"},
		{"snapshot_context", `{"context_id":["c"]}`, "Parameter 'context_id' must be a string, got an array"},
		{"snapshot_context", `{"context_id":"c","description":"` + strings.Repeat("x", 4097) + `"}`, "Parameter 'description' must have at most 4096 characters"},
		{"restore_context", `{"context_id":"c"}`, "Missing required parameter: snapshot_id"},
		{"restore_context", `{"snapshot_id":"s","context_id":"c","name":"n"}`, "Pass either context_id or name and description"},
		{"list_snapshots", `{"context_id":"c"}`, "Unknown parameter: context_id. This tool takes no parameters."},
		{"delete_snapshot", `{"snapshot_id":""}`, "Parameter 'snapshot_id' must not be empty"},
		{"fork_session", `{"session_id":3}`, "Parameter 'session_id' must be a string, got a number"},
		{"snapshot_session", `{}`, "Missing required parameter: session_id"},
		{"restore_session", `{}`, "Missing required parameter: snapshot_id"},
	} {
		res, err := call(t, m, c.tool, c.args)
		got := ""
		if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
			got = e.Message
		} else if res != nil {
			got = res.Content[0].(*mcp.TextContent).Text
			if !res.IsError || !strings.Contains(got, `"INVALID_PARAMS"`) {
				t.Errorf("%s %.100s: got %s", c.tool, c.args, got)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s %.100s: got %q, %v, want %q", c.tool, c.args, got, err, c.want)
		}
	}
}
