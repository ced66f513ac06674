package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// TestUnknownTool_OlderClient: older clients get MethodNotFound with suggestions, on
// either code path.
func TestUnknownTool_OlderClient(t *testing.T) {
	s, url := serve(t, nil)
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_cod","arguments":{}}}`
	asking := strings.Replace(call, `"arguments":{}`, `"arguments":{},"_meta":{"progressToken":1}`, 1)
	check := func(what, body string) {
		t.Helper()
		r := parse(t, body)
		if r.Error == nil || r.Error.Code != -32601 || !strings.Contains(r.Error.Message, "'execute_code'") ||
			r.Error.Data.ErrorCode != "TOOL_NOT_FOUND" || r.Error.Data.Severity == "" || len(r.Error.Data.Suggestions) == 0 {
			t.Errorf("%s: %s", what, body)
		}
	}
	for what, h := range map[string]header{"in a session": session(t, url), "bare": {}, "bare, JSON": {"Accept": "application/json"}, "bare, either": {"Accept": mcpAccept}} {
		for _, body := range []string{call, asking} {
			_, out := do(t, "POST", url, h, body)
			check(what, out)
		}
	}
	_, out := do(t, "POST", url, header{}, "["+call+","+strings.Replace(ping, `"id":1`, `"id":2`, 1)+"]")
	var all []json.RawMessage
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 2 {
		t.Fatalf("batch: %s", out)
	}
	if bytes.Contains(all[0], []byte(`"result"`)) {
		all[0], all[1] = all[1], all[0]
	}
	check("batch", string(all[0]))

	var piped bytes.Buffer
	if err := s.ServeStdio(t.Context(), strings.NewReader(initBody+"\n"+call+"\n"), &piped); err != nil {
		t.Fatal(err)
	}
	_, last, _ := strings.Cut(piped.String(), "\n")
	check("stdio", last)
}

// TestRequestID_IsEchoed: an answer has the id of its request byte for byte. A request
// whose id could not be repeated exactly is refused.
func TestRequestID_IsEchoed(t *testing.T) {
	_, url := serve(t, nil)
	h := session(t, url)
	for _, id := range []string{`1`, `0`, `-7`, `9007199254740991`, `"x"`, `""`, `"9007199254740993"`, `"ü\u00e9\n"`, `"` + strings.Repeat("x", 5000) + `"`} {
		for what, h := range map[string]header{"bare": {}, "session": h, "bare stream": {"Accept": mcpAccept}} {
			for _, method := range []string{`"ping"`, `"tools/call","params":{"name":"get_sessions","arguments":{}}`} {
				_, body := do(t, "POST", url, h, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%s}`, id, method))
				var got, want string
				r := parse(t, body)
				_ = json.Unmarshal(r.ID, &got)
				_ = json.Unmarshal([]byte(id), &want)
				if r.Error != nil || (string(r.ID) != id && (want == "" || got != want)) {
					t.Errorf("%s, %s: %.200s", what, method, body)
				}
			}
		}
	}
	for _, id := range []string{`1.5`, `9007199254740993`, `1e99`, `-0.1`} {
		res, body := do(t, "POST", url, header{}, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"get_sessions","arguments":{}}}`, id))
		if r := parse(t, body); res.StatusCode != 200 || string(r.ID) != id || r.Error != nil {
			t.Errorf("directly: %s %s", res.Status, body)
		}
		res, body = do(t, "POST", url, header{}, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id))
		if r := parse(t, body); res.StatusCode != 400 || string(r.ID) != id || r.Error == nil || r.Error.Code != -32600 {
			t.Errorf("by the SDK: %s %s", res.Status, body)
		}
	}
}

// TestRequestID_Duplicate: two concurrent calls of a session cannot have the same id.
func TestRequestID_Duplicate(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	_, url := serve(t, func(o *Options) { o.Extend.Tools = slow(release, started) })
	h, other := session(t, url), session(t, url)
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, h, toolCall(1, "slow", "{}"))
		ended <- body
	}()
	<-started
	for _, body := range []string{toolCall(1, "slow", "{}"), ping} {
		if res, out := do(t, "POST", url, h, body); res.StatusCode != 400 || parse(t, out).Error == nil || parse(t, out).Error.Code != -32600 {
			t.Errorf("%s: %s %s", body, res.Status, out)
		}
	}
	if res, out := do(t, "POST", url, other, ping); res.StatusCode != 200 {
		t.Errorf("in another session: %s %s", res.Status, out)
	}
	release <- struct{}{}
	select {
	case body := <-ended:
		if !strings.Contains(body, "done") {
			t.Errorf("the first: %s", body)
		}
	case <-time.After(time.Minute):
		t.Fatal("the first call does not end")
	}
	if res, out := do(t, "POST", url, h, ping); res.StatusCode != 200 {
		t.Errorf("afterwards: %s %s", res.Status, out)
	}
}

// TestRequestID_ReusableAfterAnswer: a session can use the id of a request again once it
// is answered.
func TestRequestID_ReusableAfterAnswer(t *testing.T) {
	// Each answer is left before its end, and with it a connection.
	_, url := serve(t, func(o *Options) { o.Limits.Connections, o.Limits.Calls = 2000, 2000 })
	h := session(t, url)
	for _, body := range []string{ping, toolCall(1, "get_sessions", "{}"), toolCall(1, "nope", "{}")} {
		for i := range 300 {
			res := openStream(t, t.Context(), "POST", url, h, body)
			if res.StatusCode != 200 {
				t.Fatalf("%s: at the %dth time %s", body, i, res.Status)
			}
			in := bufio.NewScanner(res.Body)
			for in.Scan() && !strings.Contains(in.Text(), `"jsonrpc"`) {
			}
		}
	}
}

// TestErrorData_OfPanicsAndPlainErrors: errors that no tool made have the same data as
// errors of tools, and the audit log tells whose fault they are.
func TestErrorData_OfPanicsAndPlainErrors(t *testing.T) {
	started := make(chan struct{}, 1)
	audit := &people{}
	s, url := serve(t, func(o *Options) {
		o.Audit = slog.New(slog.NewJSONHandler(audit, nil))
		o.Extend.Tools = append(slow(nil, started),
			extra("boom", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { panic("boom") }),
			extra("plain", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return nil, errors.New("plain")
			}))
	})
	go func() {
		<-started
		s.calls.cancel(nil, tools.ErrShutdown)
	}()
	for _, c := range []struct {
		tool, word string
		code       int64
		outcome    outcome
	}{
		{"boom", "INTERNAL_ERROR", -32603, outcomeError},
		{"plain", "INTERNAL_ERROR", -32603, outcomeError},
		{"slow", "CANCELLED", -32603, outcomeCancelled},
		{"", "INVALID_PARAMETERS", -32602, outcomeRefused},
	} {
		_, body := do(t, "POST", url, header{}, toolCall(1, c.tool, "{}"))
		r := parse(t, body)
		if r.Error == nil || r.Error.Code != c.code || r.Error.Data.ErrorCode != c.word || r.Error.Data.Category == "" ||
			r.Error.Data.Severity == "" || r.Error.Data.Suggestions == nil || r.Error.Data.Context == nil {
			t.Errorf("%q: %s", c.tool, body)
		}
		lines := audit.lines(t)
		if last := fmt.Sprintf("%v %v %v", lines[len(lines)-1]["tool"], lines[len(lines)-1]["outcome"], lines[len(lines)-1]["code"]); last != fmt.Sprintf("%s %s %d", c.tool, c.outcome, c.code) {
			t.Errorf("%q: the audit log has %s", c.tool, last)
		}
	}
}
