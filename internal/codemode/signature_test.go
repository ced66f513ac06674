package codemode

import (
	"encoding/json"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The members of objects are in the types: a model cannot guess them.
func TestSignature_objects(t *testing.T) {
	tool := Tool{Server: "memory", Tool: &mcp.Tool{
		Name:         "create-entities",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"entities":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"tags":{"type":"array","items":{"type":"string"}}},"required":["name"]}}},"required":["entities"]}`),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`),
	}}
	for l, want := range map[Language]string{
		Python:     `tools.memory.create_entities(*, entities: list[{"name": str, "tags": NotRequired[list[str]]}]) -> {"n": int}`,
		JavaScript: `await tools.memory.create_entities({entities: {name: string, tags?: string[]}[]}): {n: number}`,
	} {
		if got := (signatureWriter{&declarations{}, l}).signature(tool); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
