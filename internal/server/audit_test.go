package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/loglimit"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// TestAudit: each call and each refusal leaves a line in the audit log. No log at any
// level contains code, files, output, arguments or tokens.
func TestAudit(t *testing.T) {
	const canary = "canary7cafe"
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) {
		withBoxes(t, func(c *box.Config) { c.MaxSessions = 3 })(o)
		o.Log = slog.New(slog.NewJSONHandler(p, &slog.HandlerOptions{Level: slog.LevelDebug}))
		o.Tools.Log = o.Log
		o.Limits.OwnerCalls = 100
	}))
	cs := connect(t, p.transport("alice", url), "2025-11-25", nil)
	code := fmt.Sprintf("x = %q\nprint(x)", canary)
	must(t, cs, "execute_code", args{"code": code, "session_id": "s1"})
	_, _ = try(t, cs, "execute_code", args{"code": "raise Exception('" + canary + "')", "session_id": "s1"})
	_, _ = try(t, cs, "execute_command", args{"command": "echo " + canary + "; exit 3", "session_id": "s1"})
	must(t, cs, "upload_file", args{"session_id": "s1", "path": canary + ".txt", "content": canary})
	must(t, cs, "download_file", args{"session_id": "s1", "path": canary + ".txt"})
	m, _ := must(t, cs, "create_context", args{"name": "mine", "description": canary})
	made, _ := m["context_id"].(string)
	must(t, cs, "run_code", args{"context_id": "mine", "code": code})
	_, _ = try(t, cs, "run_code", args{"context_id": "../" + canary + "\nwho=root", "code": code})
	_, _ = try(t, cs, "run_code", args{"context_id": "gone", "code": code})
	_, _ = try(t, cs, "run_code", args{"context_id": "mine", "code": code, canary: 1})
	_, _ = try(t, cs, canary, args{"code": code})
	_, _ = try(t, connect(t, p.transport("reader", url), "2025-11-25", nil), "execute_code", args{"code": code})
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	_, _ = cs.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: args{"session_id": "s1", "code": "import time; time.sleep(60) # " + canary}})
	cancel()
	_, bobs := do(t, "POST", url, p.as("bob", "X-Request-Id", canary), toolCall(7, "run_code", `{"code":"`+canary+`"}`)) // direct
	do(t, "POST", url, header{"Authorization": "Bearer " + canary + canary + canary}, toolCall(7, "run_code", `{"code":"`+canary+`"}`))
	modern := p.as("alice", "Accept", mcpAccept, headerVersion, revision.Modern, headerMethod, "resources/read", headerName, "glovebox://session/s/home/user/other.txt")
	do(t, "POST", url, modern, `{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"glovebox://session/s/home/user/`+canary+`.txt","_meta":{"io.modelcontextprotocol/protocolVersion":"`+revision.Modern+`"}}}`)
	do(t, "POST", url, p.as("alice"), `{"jsonrpc":"2.0","id":7,"method":"`+canary+` print(secret)"}`)
	do(t, "POST", url+"?token="+canary, header{"Accept": "*/*"}, toolCall(7, "run_code", `{"code":"1"}`))

	want := []string{
		"token alice execute_code s1 ok 0",
		"token alice execute_code s1 failed 0",
		"token alice execute_command s1 failed 0",
		"token alice upload_file s1 ok 0",
		"token alice download_file s1 ok 0",
		"token alice create_context " + made + " ok 0",
		"token alice run_code " + made + " ok 0",
		"token alice run_code  failed 0", // the id is no plain text
		"token alice run_code gone failed 0",
		"token alice run_code  failed 0", // the arguments were not read
		"token alice   refused -32601",   // there is no such tool
		"token alice execute_code s1 cancelled -32603",
		"token bob run_code " + regexp.MustCompile(`ctx-[0-9a-f-]{36}`).FindString(bobs) + " ok 0",
	}
	var calls, refusals []string
	polltest.Soon(20*time.Second, func() bool { // the cancelled call ends when its code has been interrupted
		calls, refusals = nil, nil
		for _, line := range p.lines(t) {
			switch line["msg"] {
			case "call":
				calls = append(calls, fmt.Sprintf("%v %v %v %v %v", line["who"], line["tool"], line["box"], line["outcome"], line["code"]))
			case "refused":
				refusals = append(refusals, fmt.Sprintf("%v %v", line["who"], line["reason"]))
			default:
				continue
			}
			if line["remote"] != "127.0.0.1" || len(fmt.Sprint(line["request"])) < 10 {
				t.Fatalf("line %v", line)
			}
		}
		return len(calls) >= len(want)
	})
	slices.Sort(calls)
	slices.Sort(want)
	if !slices.Equal(calls, want) {
		t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
	slices.Sort(refusals)
	if got := strings.Join(refusals, ", "); got != "token alice insufficient_scope, unknown no_token, unknown unknown" {
		t.Errorf("refusals: %s", got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.audit.String()
	for _, secret := range append(slices.Collect(maps.Values(p.tokens)), canary) {
		if i := strings.Index(log, secret); i >= 0 {
			t.Errorf("the log has %q: %s", secret, log[max(0, i-200):min(len(log), i+100)])
		}
	}
}

// TestCallQuota_RefusalIsLogged: a call over the owner's quota is refused, counted and
// logged in the audit log.
func TestCallQuota_RefusalIsLogged(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	refused := make(chan int, 1)
	_, url := serve(t, p.options(func(o *Options) {
		o.Limits.OwnerCalls, o.Extend.Tools = 1, slow(release, started)
		o.Refused = func(status int) { refused <- status }
	}))
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, p.as("alice"), toolCall(1, "slow", "{}"))
		ended <- body
	}()
	<-started
	res, body := do(t, "POST", url, p.as("alice"), toolCall(2, "list_contexts", "{}"))
	if r := parse(t, body); res.StatusCode != 429 || r.Error == nil || r.Error.Data.ErrorCode != "RESOURCE_LIMIT_ERROR" || string(r.ID) != "2" {
		t.Errorf("a call over the limit: %s %s", res.Status, body)
	}
	select {
	case status := <-refused:
		if status != 429 {
			t.Errorf("counted as %d", status)
		}
	default:
		t.Error("not counted")
	}
	lines := p.lines(t)
	if len(lines) == 0 {
		t.Error("the audit log is empty")
	} else if last := lines[len(lines)-1]; last["tool"] != "list_contexts" || last["outcome"] != "refused" || last["who"] != "token alice" || last["request"] != res.Header.Get(headerRequest) {
		t.Errorf("the audit log has %v", lines)
	}
	release <- struct{}{}
	if body := <-ended; !strings.Contains(body, "done") {
		t.Errorf("the first call: %s", body)
	}
}

// TestAudit_RefusedLinesAreBounded: neither a caller with a valid token nor an address without
// one can fill the log with requests that are refused.
func TestAudit_RefusedLinesAreBounded(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	_, url := serve(t, p.options(func(o *Options) {
		o.Limits.Rate, o.Limits.OwnerCalls, o.Extend.Tools = 0, 1, slow(release, started)
	}))
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, p.as("alice"), toolCall(1, "slow", "{}"))
		ended <- body
	}()
	<-started
	for _, refused := range []struct {
		line, value string // a member of the lines
		headers     header
		body        string
		status      int
	}{
		{"reason", "insufficient_scope", p.as("monitor"), toolCall(7, "list_contexts", "{}"), 403},
		{"reason", "unknown", header{"Authorization": "Bearer gbx_guess"}, ping, 401},
		{"reason", "no_token", nil, ping, 401},
		{"outcome", "refused", p.as("alice"), toolCall(7, "list_contexts", "{}"), 429},
		{"outcome", "refused", p.as("bob"), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}`, 200},
		{"outcome", "refused", p.as("carol"), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}`, 200}, // has lines of its own
	} {
		before := len(p.lines(t))
		for range 4 * refusedLineBurst {
			if res, body := do(t, "POST", url, refused.headers, refused.body); res.StatusCode != refused.status {
				t.Fatalf("%s %s: status %d %s, want %d", refused.line, refused.value, res.StatusCode, body, refused.status)
			}
		}
		lines := p.lines(t)[before:]
		for _, line := range lines {
			if line[refused.line] != refused.value {
				t.Errorf("got the line %v, want one with %s %s", line, refused.line, refused.value)
			}
		}
		if len(lines) < refusedLineBurst || len(lines) > 2*refusedLineBurst {
			t.Errorf("%s %s: %d lines of %d refusals, want %d to %d", refused.line, refused.value, len(lines), 4*refusedLineBurst, refusedLineBurst, 2*refusedLineBurst)
		}
	}
	close(release)
	if body := <-ended; !strings.Contains(body, "done") {
		t.Errorf("the first call: %s", body)
	}
}

// TestAudit_BatchOfRefusedCalls: the calls of a batch that its token may not make have few lines.
func TestAudit_BatchOfRefusedCalls(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) { o.Limits.Rate = 0 }))
	if res, body := do(t, "POST", url, p.as("reader"), batchOf(4*refusedLineBurst, "run_code", "{}")); res.StatusCode != 200 || strings.Count(body, "does not have the scope") != 4*refusedLineBurst {
		t.Fatalf("got %s %s", res.Status, body)
	}
	if lines := p.lines(t); len(lines) == 0 || len(lines) > 2*refusedLineBurst {
		t.Errorf("%d lines of %d refusals, want few: %v", len(lines), 4*refusedLineBurst, lines)
	}
}

// TestAudit_ReadTokenHasLinesOfItsOwn: the refused calls of a read token leave those of use tokens of
// the same owner their lines.
func TestAudit_ReadTokenHasLinesOfItsOwn(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) { o.Limits.Rate = 0 }))
	malformed := rpc("tools/call", `{"name":7}`)
	for range 4 * refusedLineBurst {
		do(t, "POST", url, p.as("reader"), malformed)
	}
	before := len(p.lines(t))
	if before == 0 || before > 2*refusedLineBurst {
		t.Errorf("%d lines of %d refused calls, want few", before, 4*refusedLineBurst)
	}
	do(t, "POST", url, p.as("alice"), malformed)
	if lines := p.lines(t); len(lines) != before+1 {
		t.Errorf("%d lines more for a use token of the owner, want one", len(lines)-before)
	}
}

// TestAudit_RefusedLinesCountOmitted: a line about a refused request, or about a call that was refused
// before its tool got it, has the number of those that the log leaves out, of the same kind, caller and
// reason.
func TestAudit_RefusedLinesCountOmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := New(Options{Audit: slog.New(slog.NewTextHandler(&log, nil))})
		kinds := map[string]func(c *caller, reason string){
			"refused": func(c *caller, reason string) {
				s.auditRefusal(httptest.NewRequestWithContext(context.WithValue(t.Context(), callerKey{}, c), "POST", "/mcp", nil), reason)
			},
			"call": func(c *caller, reason string) {
				s.auditRefused(c, "run_code", reason, scopeError(auth.Use))
			},
		}
		for msg, refuse := range kinds {
			log.Reset()
			for range 3 * refusedLineBurst {
				refuse(&caller{rateKey: "alice"}, "insufficient_scope")
			}
			refuse(&caller{rateKey: "alice"}, "another")
			refuse(&caller{rateKey: "bob"}, "insufficient_scope")
			if n := strings.Count(log.String(), "msg="+msg+" "); n != refusedLineBurst+2 || strings.Contains(log.String(), "omitted") {
				t.Errorf("%d lines %q of three callers and reasons, want %d and nothing omitted before:\n%s", n, msg, refusedLineBurst+2, &log)
			}
		}
		for _, omitted := range []int{2 * refusedLineBurst, 2} {
			time.Sleep(loglimit.Interval)
			for msg, refuse := range kinds {
				log.Reset()
				for range 3 {
					refuse(&caller{rateKey: "alice"}, "insufficient_scope")
				}
				if want := fmt.Sprintf("omitted=%d\n", omitted); strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "msg="+msg+" ") || !strings.HasSuffix(log.String(), want) {
					t.Errorf("after a pause of %v, three refusals have the lines %s, want one %q that ends with %s", loglimit.Interval, &log, msg, want)
				}
			}
		}
	})
}

// TestAudit_CallsAtLimitAreBounded: calls of a batch, and files read as resources, that are beyond the
// owner's limit of calls have few lines.
func TestAudit_CallsAtLimitAreBounded(t *testing.T) {
	const calls = 16 * refusedLineBurst // a quarter more are requests of other kinds
	for name, send := range map[string]func(p *people, url string) (refused int){
		"batch": func(p *people, url string) int {
			_, body := do(t, "POST", url, p.as("alice"), batchOf(4*refusedLineBurst, "list_contexts", "{}"))
			return strings.Count(body, "RESOURCE_LIMIT_ERROR")
		},
		"resources": func(p *people, url string) (refused int) {
			for range 4 * refusedLineBurst {
				_, body := do(t, "POST", url, p.as("alice"), rpc("resources/read", `{"uri":"glovebox://session/s/home/user/x"}`))
				refused += strings.Count(body, "RESOURCE_LIMIT_ERROR")
			}
			return refused
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeople(t)
			release, started := make(chan struct{}), make(chan struct{}, calls)
			defer close(release)
			_, url := serve(t, p.options(func(o *Options) {
				o.Limits.Rate, o.Limits.Calls, o.Limits.OwnerCalls, o.Extend.Tools = 0, 2*calls, calls, slow(release, started)
			}))
			dialWire(t, url).post(t, p.as("alice"), batchOf(calls, "slow", "{}"))
			for range calls {
				<-started
			}
			if n := send(p, url); n != 4*refusedLineBurst {
				t.Fatalf("%d calls were refused, want %d", n, 4*refusedLineBurst)
			}
			if lines := p.lines(t); len(lines) < refusedLineBurst || len(lines) > 2*refusedLineBurst {
				t.Errorf("%d lines of %d refusals, want %d to %d", len(lines), 4*refusedLineBurst, refusedLineBurst, 2*refusedLineBurst)
			}
		})
	}
}

// TestAudit_BoxOfSnapshot: the line of a call that names a snapshot alone has its id, unless that is too
// long for one, or has other characters.
func TestAudit_BoxOfSnapshot(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(nil))
	for i, c := range []struct{ id, want string }{{"snap-1", "snap-1"}, {strings.Repeat("x", 128), strings.Repeat("x", 128)}, {strings.Repeat("x", 129), ""},
		{"a b_c.D-1", "a b_c.D-1"}, {"a:b", ""}, {"a/b", ""}, {"é", ""}} {
		do(t, "POST", url, p.as("alice"), toolCall(1, "delete_snapshot", `{"snapshot_id":"`+c.id+`"}`))
		if lines := p.lines(t); len(lines) != i+1 || lines[i]["tool"] != "delete_snapshot" || lines[i]["box"] != c.want || lines[i]["outcome"] != "failed" {
			t.Errorf("%s: the lines %v", c.id, lines)
		}
	}
}

// TestAudit_ToolErrors: invalid arguments and a full server are failures, or errors of the protocol where
// tools of sessions report them as such.
func TestAudit_ToolErrors(t *testing.T) {
	for protocol, want := range map[bool]string{false: "[ok failed failed failed]", true: "[ok refused refused failed]"} {
		p := newPeople(t)
		_, url := serve(t, p.options(func(o *Options) {
			withBoxes(t, func(c *box.Config) { c.MaxSessions = 1; c.Evict = false })(o)
			o.Tools.ProtocolErrors = protocol
		}))
		for i, call := range []struct{ tool, args string }{
			{"execute_code", `{"code":"1","session_id":"one"}`},
			{"execute_code", `{}`},
			{"execute_code", `{"code":"1","session_id":"two"}`}, // the server is full
			{"run_code", `{"context_id":"x"}`},
		} {
			do(t, "POST", url, p.as("alice"), toolCall(i, call.tool, call.args))
		}
		var got []any
		for _, line := range p.lines(t) {
			got = append(got, line["outcome"])
		}
		if fmt.Sprint(got) != want {
			t.Errorf("errors of the protocol: %t: outcomes %v, want %s", protocol, got, want)
		}
	}
}

// TestAudit_AnswerWithoutRoom: a call that has run, but whose answer has no room, is refused.
func TestAudit_AnswerWithoutRoom(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(withBoxes(t, nil)))
	for _, other := range []string{"x", "y"} {
		s.answers.take(account{owner: other}, s.answers.each)
	}
	if _, body := do(t, "POST", url, p.as("alice"), toolCall(1, "execute_code", `{"code":"print('x'*40000)"}`)); !strings.Contains(body, "the call has run, and its answer") {
		t.Fatalf("the answer has room: %.300s", body)
	}
	if lines := p.lines(t); len(lines) != 1 || lines[0]["outcome"] != "refused" {
		t.Errorf("the lines %v, want one of a refused call", lines)
	}
}
