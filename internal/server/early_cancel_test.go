package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestCancelled_BeforeItsCall: a cancellation whose POST comes before that of its call cancels it,
// on either code path; one of an ended call cancels no later call with its id.
func TestCancelled_BeforeItsCall(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprint("direct ", direct), func(t *testing.T) {
			ran := make(chan error, 1)
			tool := extra("wait", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				if strings.Contains(string(req.Params.Arguments), "short") {
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, ctx.Err()
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Second):
				}
				ran <- context.Cause(ctx)
				return nil, ctx.Err()
			})
			tool.Direct = direct
			_, url := serve(t, func(o *Options) { o.Extend.Tools = []Tool{tool} })
			res, _ := do(t, "POST", url, nil, initBody)
			h := header{"Accept": mcpAccept, headerSession: res.Header.Get(headerSession), headerVersion: "2025-11-25"}
			cancel := func(id string) {
				t.Helper()
				if res, body := do(t, "POST", url, h, fmt.Sprintf(cancelBody, id)); res.StatusCode != http.StatusAccepted {
					t.Fatalf("cancel: %s %s", res.Status, body)
				}
			}
			cancel("70")
			begun := time.Now()
			if res, body := do(t, "POST", url, h, toolCall(70, "wait", "{}")); res.StatusCode != http.StatusOK || strings.Contains(body, `"id":70`) {
				t.Errorf("got %s %q, want no answer", res.Status, body)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("the call ended after %v", took)
			}
			select {
			case err := <-ran: // it may not have run at all
				if err == nil {
					t.Error("the call ran to its end")
				}
			default:
			}
			for range 2 {
				if res, body := do(t, "POST", url, h, toolCall(71, "wait", `{"x":"short"}`)); !strings.Contains(body, "done") {
					t.Errorf("a call with the id of an ended one: %s %q", res.Status, body)
				}
				cancel("71")
			}
		})
	}
}

func TestEarlyCancels(t *testing.T) {
	var e earlyCancels
	now := time.Now()
	for i := range 10 * maxEarlyCancels {
		e.add(fmt.Sprint(i), now)
		e.end(fmt.Sprint("old", i))
	}
	e.add(strings.Repeat("x", maxEarlyKey+1), now)
	last := fmt.Sprint(10*maxEarlyCancels - 1)
	e.add("old"+last, now)
	if len(e.waiting) != maxEarlyCancels || len(e.ended) != maxEarlyCancels {
		t.Errorf("%d wait, %d have ended", len(e.waiting), len(e.ended))
	}
	if e.take("0", now) || e.take("old"+last, now) || !e.take(last, now) || e.take(last, now) {
		t.Error("taken: want only the last of those that wait, once")
	}
	e.add("late", now)
	if e.take("late", now.Add(earlyCancelWait+1)) || len(e.waiting) != 0 {
		t.Error("a cancellation waits for more than its time")
	}
}
