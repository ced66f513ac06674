package codemode

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/loglimit"
)

// TestAudit_resultBeyondBudget checks that the error and the audit log say of a call whose
// result exceeds the rest of the budget that it was made.
func TestAudit_resultBeyondBudget(t *testing.T) {
	var log strings.Builder
	made := 0
	image := &mcp.ImageContent{MIMEType: "image/png", Data: make([]byte, 600)}
	text := &mcp.TextContent{Text: strings.Repeat("x", 600)}
	content := []mcp.Content{text}
	w := offering(t, Options{
		RunBudget: Budget{Bytes: 1000}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Servers: fakeServers{
			tools: func() []Tool {
				return []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{"type": "object"}}}}
			},
			call: func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
				made++
				return &mcp.CallToolResult{Content: content}, nil
			},
		},
	})
	r := w.Begin(Identity{})
	if _, failure := w.call(t, r, "s.t", `{}`); failure != nil {
		t.Fatalf("got %+v", failure)
	}
	for _, content = range [][]mcp.Content{{text}, {image}} {
		log.Reset()
		before := made
		_, failure := w.call(t, r, "s.t", `{}`)
		if made != before+1 {
			t.Fatal("the tool did not run")
		}
		if failure == nil || failure.Code != TooLarge || !strings.Contains(failure.Message, "the tool ran") || strings.Contains(failure.Message, "another run") {
			t.Errorf("got %+v", failure)
		}
		if line := log.String(); !strings.Contains(line, "outcome=error code=too_large") {
			t.Errorf("the log has %s", line)
		}
	}
	log.Reset()
	if _, failure := w.call(t, r, "s.t", `{"a": "`+strings.Repeat("x", 1000)+`"}`); codeOf(failure) != Exhausted || made != 3 {
		t.Errorf("arguments beyond the budget: got %+v after %d calls", failure, made)
	}
	if line := log.String(); !strings.Contains(line, "outcome=refused code=budget") {
		t.Errorf("the log has %s", line)
	}
}

// TestAudit_manyRefusals checks that calls which are not made, of whatever kind, cannot fill
// the log, and that they hide neither calls that are made nor those of another owner.
func TestAudit_manyRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		w := offering(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, `{"type":"object","properties":{"a":{"type":"integer"}}}`)
		lines := func(what string) int { return strings.Count(log.String(), what) }
		bad := []struct{ name, arguments string }{{"s.t", `{"a":"x"}`}, {"s.none", `{}`}, {"none.t", `{}`}}
		for range 3 {
			r := w.Begin(Identity{Owner: "a", Box: "1"})
			for i := range 300 {
				one := bad[i%len(bad)]
				if _, failure := w.call(t, r, one.name, one.arguments); failure == nil {
					t.Fatal("no error")
				}
			}
		}
		if lines(`server=s tool="" outcome=refused code=unknown_tool`) == 0 || lines(`server="" tool="" outcome=refused code=unknown_server`) == 0 {
			t.Errorf("refusals name the configured servers, and no others: %s", log.String())
		}
		if n := lines("who=a"); n < 5 || n > 2*refusalBurst {
			t.Errorf("900 refused calls have %d lines", n)
		}
		r := w.Begin(Identity{Owner: "a", Box: "1"})
		for range 50 {
			if _, failure := w.call(t, r, "s.t", `{}`); failure != nil {
				t.Fatalf("got %+v", failure)
			}
		}
		if n := lines("outcome=ok"); n != 50 {
			t.Errorf("50 calls have %d lines", n)
		}
		w.call(t, w.Begin(Identity{Owner: "b", Box: "2"}), "s.none", `{}`)
		if lines("who=b") != 1 {
			t.Error("the refusals of one owner hide that of another")
		}
		time.Sleep(loglimit.Interval)
		w.call(t, r, "s.none", `{}`)
		if lines("omitted=880") != 1 {
			t.Errorf("the log does not count what it leaves out; it ends with %s", log.String()[max(0, log.Len()-400):])
		}
	})
}
