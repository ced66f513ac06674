package server

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// TestCallerOf_Unknown: a request without a source has no scope and no boxes.
func TestCallerOf_Unknown(t *testing.T) {
	c := callerOf(t.Context(), &mcp.CallToolRequest{Extra: &mcp.RequestExtra{}})
	for _, scope := range []auth.Scope{auth.Read, auth.Use, auth.Metrics} {
		if c.has(scope) {
			t.Errorf("an unknown caller has the scope %v", scope)
		}
	}
	if c.owner() == "" {
		t.Error("an unknown caller has the boxes of the local user")
	}
}
