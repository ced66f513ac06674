package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A program's call that needs input fails with the question, in both eras, also if the server
// waits for an answer for ever. The server can be called afterwards.
func TestCallTool_Asks(t *testing.T) {
	for era, name := range map[mcpkit.Era]string{mcpkit.Legacy: "legacy", mcpkit.Modern: "modern"} {
		t.Run(name, func(t *testing.T) {
			o := options(t.TempDir(), mcpkit.Trusted, "srv")
			o.Servers.Era = era
			g, _ := register(t, o)
			t.Cleanup(func() { g.Close() })
			tools := make(map[string]ServerTool)
			for _, tool := range g.ServerTools(t.Context(), "srv") {
				tools[tool.Tool.Name] = tool
			}
			ask := func(arguments, want string) {
				t.Helper()
				res, err := g.CallTool(t.Context(), tools["ask"], json.RawMessage(arguments))
				if why, ok := errors.AsType[*UnavailableError](err); !ok || why.Reason != ReasonAsks || !strings.Contains(why.Text, want) || !strings.Contains(why.Text, "Pass what it needs as arguments") {
					t.Errorf("%s: got %+v, %v", arguments, res, err)
				}
			}
			ask(`{"what":"form","hang":true}`, `It asks: "srv: who?"`)
			ask(`{"what":"page"}`, `It asks: "srv: log in"`)
			ask(`{"what":"sample"}`, "It requests an answer from a model")
			if era == mcpkit.Legacy {
				// Nothing tells which of two calls a question belongs to.
				at := g.serializer.get("srv")
				at.serialized = false
				var calls sync.WaitGroup
				for i := range 2 {
					calls.Go(func() { ask(fmt.Sprintf(`{"what":"form","wait":2,"rounds":%d}`, i+1), "who?") })
				}
				calls.Wait()
			}
			res, err := g.CallTool(t.Context(), tools["say"], json.RawMessage(`{"text":"on"}`))
			if err != nil || res.IsError {
				t.Errorf("the next call: %+v, %v", res, err)
			}
			if names := g.ServerTools(t.Context(), "srv"); !slices.ContainsFunc(names, func(s ServerTool) bool { return s.Tool.Name == "ask" }) {
				t.Error("the tool is offered no longer")
			}
		})
	}
}
