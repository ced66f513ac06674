//go:build linux

package tools

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// TestFailed_HasStructuredContent: a model that reads only the structured content of a failed call
// learns why it failed, whatever the tool, and a client that validates that content accepts it.
func TestFailed_HasStructuredContent(t *testing.T) {
	for _, tool := range All() {
		name := tool.Def.Name
		res, err := callAs(t, Deps{}, name, `{"no_such_argument":1}`)
		if err != nil {
			t.Errorf("%s with an unknown argument: got %v, want a result", name, err)
			continue
		}
		wantFailed(t, tool, res, "Unknown parameter: no_such_argument", "")
	}
}

// TestFailed_NamesTheKind: the code is that of the tool's errors, and nothing is said of results
// that do not exist.
func TestFailed_NamesTheKind(t *testing.T) {
	m := toolstest.Manager(t, nil)
	for _, tt := range []struct{ tool, args, reason, code string }{
		{"fork_session", `{"session_id":"gone"}`, "This server cannot fork session", "UNSUPPORTED_OPERATION"},
		{"stop_context", `{"context_id":"gone"}`, "gone", "CONTEXT_NOT_FOUND"},
		{"run_code", `{"context_id":"gone","code":"1"}`, "gone", "CONTEXT_NOT_FOUND"},
		{"list_files", `{"session_id":"gone"}`, "gone", "SESSION_NOT_FOUND"},
	} {
		res, err := callAs(t, Deps{Boxes: m}, tt.tool, tt.args)
		if err != nil {
			t.Fatalf("%s: got %v, want a result", tt.tool, err)
		}
		for _, tool := range All() {
			if tool.Def.Name == tt.tool {
				wantFailed(t, tool, res, tt.reason, tt.code)
			}
		}
	}
}

// wantFailed checks the structured content of a failed call. Any code will do for "".
func wantFailed(t *testing.T, tool Tool, res *mcp.CallToolResult, reason, code string) {
	t.Helper()
	name := tool.Def.Name
	raw, _ := res.StructuredContent.(json.RawMessage)
	if !res.IsError || raw == nil {
		t.Errorf("%s: got isError %v and structured content %s, want an error with content", name, res.IsError, raw)
		return
	}
	var got map[string]any
	var schema jsonschema.Schema
	if json.Unmarshal(raw, &got) != nil || json.Unmarshal(tool.Def.OutputSchema.(json.RawMessage), &schema) != nil {
		t.Fatalf("%s: cannot decode %s or %s", name, raw, tool.Def.OutputSchema)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(got); err != nil {
		t.Errorf("%s: %s is not valid for the schema of results: %v", name, raw, err)
	}
	said, _ := got["error"].(string)
	if name == "execute_code" || name == "execute_command" {
		said, _ = got["stderr"].(string)
	}
	if !strings.Contains(said, reason) {
		t.Errorf("%s: got %s, want it to say %q", name, raw, reason)
	}
	if kind := got["error_code"]; kind == nil || kind == "" || code != "" && kind != code {
		t.Errorf("%s: got error_code %v, want %q", name, kind, code)
	}
}
