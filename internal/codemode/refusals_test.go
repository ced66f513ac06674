package codemode

import (
	"context"
	"encoding/json"
	"errors"
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
		Servers: oneTool(func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
			made++
			return &mcp.CallToolResult{Content: content}, nil
		}),
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

// TestAudit_outcomes checks that the audit log tells how the calls that were made have ended.
func TestAudit_outcomes(t *testing.T) {
	for outcome, end := range map[string]func(endRun context.CancelFunc) (*mcp.CallToolResult, error){
		`outcome=ok code=""`:             func(context.CancelFunc) (*mcp.CallToolResult, error) { return &mcp.CallToolResult{}, nil },
		"outcome=failed code=tool_error": func(context.CancelFunc) (*mcp.CallToolResult, error) { return &mcp.CallToolResult{IsError: true}, nil },
		"outcome=cancelled code=interrupted": func(endRun context.CancelFunc) (*mcp.CallToolResult, error) {
			endRun()
			return nil, context.Canceled
		},
		"outcome=error code=interrupted": func(context.CancelFunc) (*mcp.CallToolResult, error) {
			return nil, &Error{Code: Interrupted, broken: true}
		},
		"outcome=error code=unavailable": func(context.CancelFunc) (*mcp.CallToolResult, error) { return nil, errors.New("gone") },
	} {
		var log strings.Builder
		run, endRun := context.WithCancel(t.Context())
		defer endRun()
		w := offering(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Servers: oneTool(func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
			return end(endRun)
		})})
		if _, err := w.Begin(Identity{}).Call(run, "tool", []byte(`{"name":"s.t"}`)); err != nil {
			t.Fatal(err)
		}
		if line := log.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "tool=t "+outcome+" ") {
			t.Errorf("the log has %s, want one line with %s", line, outcome)
		}
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

// TestAudit_failedCalls checks that each call that was made has a line, however it ends, and however
// many there are.
func TestAudit_failedCalls(t *testing.T) {
	for outcome, end := range map[string]func() (*mcp.CallToolResult, error){
		"outcome=failed code=tool_error":    func() (*mcp.CallToolResult, error) { return &mcp.CallToolResult{IsError: true}, nil },
		"outcome=error code=unavailable":    func() (*mcp.CallToolResult, error) { return nil, errors.New("gone") },
		"outcome=error code=timeout":        func() (*mcp.CallToolResult, error) { return nil, &Error{Code: Timeout} },
		"outcome=error code=input_required": func() (*mcp.CallToolResult, error) { return nil, &Error{Code: NeedsInput} },
	} {
		var log strings.Builder
		w := offering(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Servers: oneTool(func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
			return end()
		})})
		r := w.Begin(Identity{})
		for range 3 * refusalBurst {
			w.call(t, r, "s.t", `{}`)
		}
		if n := strings.Count(log.String(), "tool=t "+outcome+" "); n != 3*refusalBurst {
			t.Errorf("%d calls have %d lines with %s: %.300s", 3*refusalBurst, n, outcome, log.String())
		}
	}
}

// TestAudit_refusedBeforeLookup checks that a call that is refused before its tool is looked up has no line.
func TestAudit_refusedBeforeLookup(t *testing.T) {
	long := `{"name":"s.t","arguments":{"a":"` + strings.Repeat("x", 2<<10) + `"}}`
	for _, c := range []struct {
		name, args string
		change     func(*Options)
		code       Code
	}{
		{"no JSON", `{"name":`, nil, InvalidArguments},
		{"another type", `{"name":7}`, nil, InvalidArguments},
		{"no UTF-8", "{\"name\":\"s.t\xff\"}", nil, InvalidArguments},
		{"no memory", long, func(o *Options) { o.Memory = testMemory(1<<20, 4<<10) }, Exhausted},
		{"no request left", `{"name":"s.t"}`, func(o *Options) { o.RunBudget.Calls = 1 }, Exhausted},
	} {
		var log strings.Builder
		o := Options{Log: slog.New(slog.NewTextHandler(&log, nil))}
		if c.change != nil {
			c.change(&o)
		}
		w := offering(t, o, `{"type":"object"}`)
		r := w.Begin(Identity{})
		for range requestsPerCall { // uses up the budget of one call
			w.ask(t, r, "catalog", `{}`)
		}
		if _, failure := w.ask(t, r, "tool", c.args); codeOf(failure) != c.code || log.Len() > 0 {
			t.Errorf("%s: got %+v and the log %q, want the code %s and no line", c.name, failure, log.String(), c.code)
		}
		if w.call(t, w.Begin(Identity{}), "s.none", `{}`); strings.Count(log.String(), "\n") != 1 { // the log does work
			t.Errorf("%s: the log has %q for another call", c.name, log.String())
		}
	}
}
