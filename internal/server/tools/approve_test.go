package tools

import (
	"context"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
)

// TestApprovable_continues checks that a request that continues an earlier one does not run
// the code again if code mode is off for its connection or its owner by then.
func TestApprovable_continues(t *testing.T) {
	for name, approver := range map[string]*approval.Approver{"no approvals": nil, "no tools": approval.New(approval.Options{})} {
		ran := false
		do := func(context.Context) (*mcp.CallToolResult, error) {
			ran = true
			return &mcp.CallToolResult{}, nil
		}
		req := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "execute_code", RequestState: "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}}
		if res, err := (&Call{}).approvable(t.Context(), approver, req, do); !errors.Is(err, approval.ErrNotPending) || ran {
			t.Errorf("%s: got %+v, %v; the code ran: %t", name, res, err, ran)
		}
		req.Params.RequestState, req.Params.InputResponses = "", mcp.InputResponseMap{"approval-ABCDEFGHIJKLMNOPQRSTUVWXYZ": &mcp.ElicitResult{Action: "accept"}}
		if res, err := (&Call{}).approvable(t.Context(), approver, req, do); !errors.Is(err, approval.ErrNotPending) || ran {
			t.Errorf("%s, an answer without its state: got %+v, %v; the code ran: %t", name, res, err, ran)
		}
		req.Params.InputResponses = mcp.InputResponseMap{}
		if _, err := (&Call{}).approvable(t.Context(), approver, req, do); err != nil || !ran {
			t.Errorf("%s: a new request: got %v; the code ran: %t", name, err, ran)
		}
	}
}
