package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// diary is a server with a tool that reads and tools that do not, which records its calls.
type diary struct {
	mu    sync.Mutex
	calls []string // guarded by mu
}

func (d *diary) Names() []string { return []string{"diary"} }

func (d *diary) Tools(context.Context, string) (all []codemode.Tool) {
	for _, name := range []string{"read", "write", "delete"} {
		all = append(all, codemode.Tool{Server: "diary", Tool: &mcp.Tool{
			Name: name, InputSchema: map[string]any{"type": "object"}, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: name == "read"},
		}})
	}
	return all
}

func (d *diary) Unavailable(context.Context, string, string) *codemode.Error { return nil }

func (d *diary) Withheld(context.Context, string) []string { return nil }

func (d *diary) Hold() (release func()) { return func() {} }

func (d *diary) Call(_ context.Context, t codemode.Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, t.Name+" "+string(arguments))
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: t.Name + " done"}}}, nil
}

// called returns the calls since the last time.
func (d *diary) called() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	slices.Sort(calls)
	return calls
}

// withApprovals gives the server boxes whose code can call the tools of a diary.
func withApprovals(tb testing.TB, o approval.Options) (*diary, *box.Manager, func(*Options)) {
	d := &diary{}
	boxes := withBoxes(tb, func(c *box.Config) { c.StopWait = 200 * time.Millisecond })
	var made Options
	boxes(&made)
	o.Park = box.Park
	approver := approval.New(o)
	broker := codemode.New(codemode.Options{Servers: d, Approve: approver.Approve, Called: approver.Called})
	return d, made.Tools.Boxes, func(o *Options) {
		boxes(o)
		o.Tools.Code = func(box.Owner) *codemode.Broker { return broker }
		o.Tools.Approvals = approver
	}
}

// asker answers elicitations with decisions, in order and then for ever the last.
type asker struct {
	decisions []string

	mu    sync.Mutex
	asked []string // guarded by mu
}

func (a *asker) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		decision := a.decisions[min(len(a.asked), len(a.decisions)-1)]
		a.asked = append(a.asked, req.Params.Message)
		if decision == "decline" || decision == "cancel" {
			return &mcp.ElicitResult{Action: decision}, nil
		}
		content := map[string]any{}
		for name := range req.Params.RequestedSchema.(map[string]any)["properties"].(map[string]any) {
			content[name] = decision
		}
		return &mcp.ElicitResult{Action: "accept", Content: content}, nil
	}}
}

// questions returns how many questions there were since the last time.
func (a *asker) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.asked)
	a.asked = nil
	return n
}

// clientOverStdio connects a client over pipes. end ends its input and waits for the server.
func clientOverStdio(tb testing.TB, s *Server, version string, o *mcp.ClientOptions) (cs *mcp.ClientSession, end func()) {
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStdio(context.Background(), in, out) }()
	cs = connect(tb, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, version, o)
	end = sync.OnceFunc(func() {
		toServer.Close()
		if err := <-ended; err != nil {
			tb.Errorf("serve stdio: %v", err)
		}
	})
	tb.Cleanup(func() { _ = cs.Close(); end() })
	return cs, end
}

// attempt is a program that calls a tool and prints how that went.
const attempt = `
def attempt(tool, **kw):
    try:
        print(tools.diary[tool](**kw))
    except ToolError as e:
        print(e.code)
`

// TestApprovals_stockClients checks each decision with clients of the SDK, over each
// transport and revision.
func TestApprovals_stockClients(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{})
	s, url := serve(t, change)
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		for _, transport := range []string{"http", "stdio"} {
			if transport == "stdio" && version == "2025-06-18" {
				continue // the same code as the next revision, and each box takes seconds
			}
			t.Run(version+" over "+transport, func(t *testing.T) {
				a := &asker{}
				var cs *mcp.ClientSession
				if transport == "http" {
					cs = connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, a.options())
				} else {
					cs, _ = clientOverStdio(t, s, version, a.options())
				}
				id := ""
				for _, tc := range []struct {
					name, code string
					decisions  []string
					want       string
					calls      []string
					questions  int
				}{
					{"read", "attempt('read')", []string{"deny"}, "read done\n", []string{"read {}"}, 0},
					{"once", "attempt('write', a=1); attempt('write', a=1)", []string{"once", "deny"}, "write done\ndenied\n", []string{`write {"a":1}`}, 2},
					{"run", "attempt('write', a=1); attempt('write', a=2); attempt('delete')", []string{"run", "decline"}, "write done\nwrite done\ndenied\n", []string{`write {"a":1}`, `write {"a":2}`}, 2},
					{"the next run", "attempt('write', a=1)", []string{"cancel"}, "approval_required\n", nil, 1},
					{"a dismissed question", "attempt('write', a=1); attempt('write', a=1)", []string{"cancel", "once"}, "approval_required\nwrite done\n", []string{`write {"a":1}`}, 2},
					{"always", "attempt('write', a=1); attempt('write', a=1); attempt('write', a=2)", []string{"always", "deny"}, "write done\nwrite done\ndenied\n", []string{`write {"a":1}`, `write {"a":1}`}, 2},
					{"parallel", "import asyncio\nprint(sum(x == 'write done' for x in await asyncio.gather(*[tools.diary.write(a=i % 3) for i in range(6)])))", []string{"once"}, "6\n", []string{`write {"a":0}`, `write {"a":0}`, `write {"a":1}`, `write {"a":1}`, `write {"a":2}`, `write {"a":2}`}, 1},
				} {
					a.decisions = tc.decisions
					m, said := must(t, cs, "execute_code", args{"code": attempt + tc.code, "session_id": id})
					id, _ = m["session_id"].(string)
					if m["stdout"] != tc.want {
						t.Errorf("%s: got %s, want %q", tc.name, said, tc.want)
					}
					if calls := d.called(); !slices.Equal(calls, tc.calls) {
						t.Errorf("%s: calls %q, want %q", tc.name, calls, tc.calls)
					}
					// On a busy machine, parallel calls may come too late for the same question.
					most := tc.questions
					if tc.name == "parallel" {
						most = len(tc.calls) - 1
					}
					if n := a.questions(); n < tc.questions || n > most {
						t.Errorf("%s: %d questions, want %d to %d", tc.name, n, tc.questions, most)
					}
				}
				a.decisions = []string{"once"}
				if m, said := must(t, cs, "execute_command", args{"command": "glovebox-tool diary.write a=1", "session_id": id}); m["stdout"] != "write done\n" {
					t.Errorf("execute_command: got %s", said)
				}
				if m, said := must(t, cs, "run_code", args{"code": attempt + "attempt('delete')"}); m["stdout"] != "delete done\n" {
					t.Errorf("run_code: got %s", said)
				}
				d.called()
			})
		}
	}
}

// TestApprovals_nobody checks that clients that cannot ask a person get an error with the remedy.
func TestApprovals_nobody(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{Remedy: func(server, tool string) string { return "Add a rule for " + server + " " + tool + "." }})
	_, url := serve(t, change)
	const code = "try:\n    tools.diary.write()\nexcept ToolError as e:\n    print(e.code, e.message)"
	const want = "approval_required the tool needs approval, and this client cannot be asked: it does not declare elicitation; the tool was not called. Add a rule for diary write.\n"
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, nil)
		if m, said := must(t, cs, "execute_code", args{"code": code}); m["stdout"] != want {
			t.Errorf("%s: got %s", version, said)
		}
	}
	h := header{"Accept": "application/json, text/event-stream"}
	if _, body := do(t, "POST", url, h, toolCall(1, "execute_code", `{"code":"tools.diary.write()"}`)); !strings.Contains(body, "cannot be asked") {
		t.Errorf("without a session: got %s", body)
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
}

// rawClient makes modern requests and sees the input-required results.
type rawClient struct {
	*mcp.ClientSession
	t *testing.T
}

func newRawClient(t *testing.T, url string) *rawClient {
	o := (&asker{}).options()
	o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	return &rawClient{connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2026-07-28", o), t}
}

// run calls execute_code. state continues an earlier call with a decision.
func (c *rawClient) run(code, state, decision string) (*mcp.CallToolResult, error) {
	var responses mcp.InputResponseMap
	if state != "" {
		responses = mcp.InputResponseMap{"approval-" + state: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": decision}}}
	}
	return c.answer(code, state, responses)
}

// answer is run with the responses of the client.
func (c *rawClient) answer(code, state string, responses mcp.InputResponseMap) (*mcp.CallToolResult, error) {
	return c.CallTool(c.t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: args{"code": attempt + code}, RequestState: state, InputResponses: responses})
}

func (c *rawClient) asked(code string) (state, question string) {
	c.t.Helper()
	res, err := c.run(code, "", "")
	if err != nil || res.RequestState == "" || len(res.InputRequests) != 1 || len(res.Content) > 0 {
		c.t.Fatalf("got %+v, %v", res, err)
	}
	return res.RequestState, res.InputRequests["approval-"+res.RequestState].(*mcp.ElicitParams).Message
}

// TestApprovals_replay checks that an answer counts once and for its request only, and that
// the program goes on meanwhile as if nothing had been.
func TestApprovals_replay(t *testing.T) {
	var log polltest.Buffer
	d, m, change := withApprovals(t, approval.Options{Audit: slog.New(slog.NewTextHandler(&log, nil))})
	_, url := serve(t, change)
	c := newRawClient(t, url)
	const code = "attempt('write', path='/tmp/a'); attempt('write', path='/etc/passwd')"
	state, question := c.asked(code)
	if !strings.Contains(question, "1. diary.write (may change or delete data)\n   path: \"/tmp/a\"\n") {
		t.Errorf("the question is %q", question)
	}
	if st := m.Stats(); st.Running != 1 {
		t.Errorf("%d calls run while the program is parked", st.Running)
	}
	for name, f := range map[string]func() (*mcp.CallToolResult, error){
		"other code":         func() (*mcp.CallToolResult, error) { return c.run("attempt('delete')", state, "once") },
		"a changed state":    func() (*mcp.CallToolResult, error) { return c.run(code, "A"+state[1:25]+"A", "once") },
		"a state of our own": func() (*mcp.CallToolResult, error) { return c.run(code, `{"approved":true}`, "once") },
		"an answer alone": func() (*mcp.CallToolResult, error) {
			return c.answer(code, "", mcp.InputResponseMap{"approval-" + state: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "once"}}})
		},
	} {
		res, err := f()
		if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: got %+v, %v", name, res, err)
		}
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q without approval", calls)
	}
	for _, decision := range []string{"", "all"} {
		res, err := c.run(code, state, decision)
		if err != nil || res.RequestState == "" || res.RequestState == state {
			t.Fatalf("the decision %q: got %+v, %v, want the question again", decision, res, err)
		}
		state = res.RequestState
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q without approval", calls)
	}
	// The approval of the first call is not one of the second, which has other arguments.
	res, err := c.run(code, state, "once")
	if err != nil || res.RequestState == "" {
		t.Fatalf("got %+v, %v", res, err)
	}
	if calls := d.called(); !slices.Equal(calls, []string{`write {"path":"/tmp/a"}`}) {
		t.Errorf("calls %q", calls)
	}
	if _, err := c.run(code, state, "once"); err == nil {
		t.Error("the first answer counts again")
	}
	if res, err = c.run(code, res.RequestState, "deny"); err != nil || !strings.HasPrefix(text(t, res), "write done\ndenied\n") {
		t.Errorf("got %+v, %v", res, err)
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
	if got := log.String(); strings.Count(got, "msg=approval who=local") != 2 || !strings.Contains(got, "decision=once via=input_required") || strings.Contains(got, "/tmp/a") {
		t.Errorf("audit log:\n%s", got)
	}
}

// TestApprovals_answerOfAnother checks that an answer to a question counts neither with the token of another
// owner nor in another MCP session of the same one, and afterwards still where it was asked.
func TestApprovals_answerOfAnother(t *testing.T) {
	p := newPeople(t)
	d, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, p.options(change))
	client := func(key string) *rawClient {
		o := (&asker{}).options()
		o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
		return &rawClient{connect(t, p.transport(key, url), "2026-07-28", o), t}
	}
	const code = "attempt('write')"
	alice := client("alice")
	state, _ := alice.asked(code)
	if res, err := client("bob").run(code, state, "once"); err == nil || !strings.Contains(err.Error(), "no program waits for this answer") {
		t.Errorf("bob answers: got %+v, %v", res, err)
	}
	params, err := json.Marshal(map[string]any{
		"name": "execute_code", "arguments": args{"code": attempt + code}, "requestState": state,
		"inputResponses": args{"approval-" + state: args{"action": "accept", "content": args{"call_1": "once"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, body := do(t, "POST", url, p.sessionOf(t, url, "alice"), rpc("tools/call", string(params))); !strings.Contains(body, "no program waits for this answer") {
		t.Errorf("alice answers in another session: %s", body)
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q without approval", calls)
	}
	if res, err := alice.run(code, state, "once"); err != nil || !strings.HasPrefix(text(t, res), "write done\n") {
		t.Errorf("alice answers: got %+v, %v", res, err)
	}
}

// TestApprovals_undecided checks that a client that accepts without a choice is asked again in
// plain words, and that the program then goes on, with its output. The clients check no answer
// themselves, as the SDK's would.
func TestApprovals_undecided(t *testing.T) {
	_, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	const code = "print('before')\ntry:\n    tools.diary.write()\nexcept ToolError as e:\n    print(e.code, e.message)"
	check := func(what, had string, res *mcp.CallToolResult, err error, asked []string) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: got %v", what, err)
			return
		}
		want := "before\napproval_required the answer of the client to the question about the call " + had + "; the tool was not called."
		if got := text(t, res); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
		if len(asked) != 3 || !strings.HasPrefix(asked[1], "Your last answer "+had+". Nothing was called.") {
			t.Errorf("%s: asked %q", what, asked)
		}
	}
	for _, content := range []map[string]any{nil, {}, {"call_1": 7}, {"call_1": "yes"}} {
		had := "had no decision for call_1 (once, run, always or deny)"
		switch content["call_1"] {
		case 7:
			had = "had 7 for call_1 instead of once, run, always or deny"
		case "yes":
			had = `had "yes" for call_1 instead of once, run, always or deny`
		}
		answer := &mcp.ElicitResult{Action: "accept", Content: content}
		var asked []string
		c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, (&asker{}).options())
		c.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if p, ok := req.GetParams().(*mcp.ElicitParams); ok {
					asked = append(asked, p.Message)
					return answer, nil
				}
				return next(ctx, method, req)
			}
		})
		cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Fatal(err)
		}
		res, err := try(t, cs, "execute_code", args{"code": code})
		check(fmt.Sprint("by elicitation: ", content), had, res, err, asked)
		cs.Close()

		raw := newRawClient(t, url)
		asked = nil
		res, err = raw.run(code, "", "")
		for err == nil && res.RequestState != "" {
			key := "approval-" + res.RequestState
			asked = append(asked, res.InputRequests[key].(*mcp.ElicitParams).Message)
			res, err = raw.answer(code, res.RequestState, mcp.InputResponseMap{key: answer})
		}
		check(fmt.Sprint("by results: ", content), had, res, err, asked)
	}
}

// TestApprovals_othersAreToldAtOnce checks that a call which would wait for a parked program gets
// an error at once, with the tool and what to do, also in structured content; and that it runs
// once the question is answered.
func TestApprovals_othersAreToldAtOnce(t *testing.T) {
	_, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	raw := newRawClient(t, url)
	call := func(code, state string, responses mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		return raw.CallTool(t.Context(), &mcp.CallToolParams{
			Name: "execute_code", Arguments: args{"code": code, "session_id": "parked"}, RequestState: state, InputResponses: responses,
		})
	}
	const code = "try:\n    tools.diary.write()\nexcept ToolError as e:\n    print(e.code)"
	asked, err := call(code, "", nil)
	if err != nil || asked.RequestState == "" {
		t.Fatalf("got %+v, %v, want a question", asked, err)
	}
	res, err := call("print(1)", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, res)
	for _, want := range []string{"waits for the user's approval of diary.write", "This call did not run", " min ", "repeat the call that started the program", "stop_session"} {
		if !res.IsError || !strings.Contains(got, want) || strings.Contains(got, "limit") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	b, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		SessionID string `json:"session_id"`
		Stderr    string `json:"stderr"`
		ErrorCode string `json:"error_code"`
	}
	if err := json.Unmarshal(b, &out); err != nil || out.SessionID != "parked" || out.Stderr != got || out.ErrorCode == "" {
		t.Errorf("got structured content %s, %v", b, err)
	}
	answer := &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "deny"}}
	res, err = call(code, asked.RequestState, mcp.InputResponseMap{"approval-" + asked.RequestState: answer})
	if err != nil || res.RequestState != "" {
		t.Fatalf("got %+v, %v", res, err)
	}
	if res, err = call("print(1)", "", nil); err != nil || !strings.HasPrefix(text(t, res), "1\n") {
		t.Errorf("after the answer: got %+v, %v", res, err)
	}
}

// TestApprovals_progress checks that a client that asked for progress gets some while its user is
// asked: SDKs can restart the time limit of a request with each.
func TestApprovals_progress(t *testing.T) {
	_, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	waiting := make(chan struct{})
	told := sync.OnceFunc(func() { close(waiting) })
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			select {
			case <-waiting:
			case <-time.After(20 * time.Second):
				t.Error("no progress while the question waits")
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "once"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, n *mcp.ProgressNotificationClientRequest) {
			if strings.Contains(n.Params.Message, "waiting for the user's answer") {
				told()
			}
		},
	})
	params := &mcp.CallToolParams{Name: "execute_code", Arguments: args{"code": "print(tools.diary.write())"}}
	params.SetProgressToken("token")
	res, err := cs.CallTool(t.Context(), params)
	if err != nil || !strings.HasPrefix(text(t, res), "write done\n") {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestApprovals_expiry checks that a parked program ends its wait with an error that it can
// catch, and that its result is there for the client that comes back.
func TestApprovals_expiry(t *testing.T) {
	var log polltest.Buffer
	d, _, change := withApprovals(t, approval.Options{Expiry: time.Second, Audit: slog.New(slog.NewTextHandler(&log, nil))})
	_, url := serve(t, change)
	c := newRawClient(t, url)
	const code = "attempt('write')"
	state, _ := c.asked(code)
	eventually(t, "the question expires", func() bool { return strings.Contains(log.String(), "decision=expired") })
	if res, err := c.run(code, state, "always"); err != nil || !strings.HasPrefix(text(t, res), "approval_expired\n") {
		t.Errorf("got %+v, %v", res, err)
	}
	if _, err := c.run(code, state, "always"); err == nil {
		t.Error("the answer is taken twice")
	}
	state, _ = c.asked(code)
	time.Sleep(2200 * time.Millisecond)
	if res, err := c.run(code, state, "always"); err == nil {
		t.Errorf("a very late answer: got %+v", res)
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
}

// TestApprovals_leave checks that nothing waits for a client that is gone: its session
// ended, its input ended, or the server stops.
func TestApprovals_leave(t *testing.T) {
	_, m, change := withApprovals(t, approval.Options{})
	s, url := serve(t, change)
	asked := make(chan struct{}, 10)
	never := &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	begin := func(ctx context.Context, cs *mcp.ClientSession) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: args{"code": "tools.diary.write()"}})
			done <- err
		}()
		<-asked
		return done
	}
	idle := func(what string) {
		t.Helper()
		for begun := time.Now(); m.Stats().Running > 0; time.Sleep(10 * time.Millisecond) {
			if time.Since(begun) > 10*time.Second {
				t.Fatalf("%s: the program still waits", what)
			}
		}
	}
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", never)
	done := begin(t.Context(), cs)
	req, err := http.NewRequest(http.MethodDelete, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerSession, cs.ID())
	if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode >= 300 {
		t.Fatalf("got %v, %v", res, err)
	}
	idle("the end of a session")
	<-done

	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		begun := time.Now()
		cs, end := clientOverStdio(t, s, version, never)
		ctx, cancel := context.WithCancel(t.Context())
		done := begin(ctx, cs)
		end()
		idle(version + ": the end of the input")
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("%s: the server ended %v after its input", version, took)
		}
		cancel()
		<-done
	}

	waits := begin(t.Context(), connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", never))
	c := newRawClient(t, url)
	c.asked("attempt('write')")
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 15*time.Second || m.Stats().Running > 0 {
		t.Errorf("shutdown took %v, and %d programs still run", took, m.Stats().Running)
	}
	<-waits
}

// TestApprovals_killed checks that the client of a parked program gets to know that its box
// has ended.
func TestApprovals_killed(t *testing.T) {
	_, m, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	c := newRawClient(t, url)
	const code = "attempt('write')"
	state, _ := c.asked(code)
	boxes, err := m.List("", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		if _, err := m.Stop(t.Context(), "", b.Kind, b.ID); err != nil && box.CodeOf(err) != box.CodeStopFailed {
			t.Fatal(err)
		}
	}
	res, err := c.run(code, state, "once")
	if err != nil || !res.IsError || !strings.Contains(text(t, res), "has ended") {
		t.Errorf("got %+v, %v", res, err)
	}
}

// taskReply is the result of a request about a task.
type taskReply struct {
	TaskID, Status string
	InputRequests  map[string]json.RawMessage
	Result         json.RawMessage
}

// postTask makes a request of a client that declares tasks.
func postTask(t *testing.T, url string, id int, method, name, params string) (result taskReply) {
	t.Helper()
	_, body := sendTask(t, url, nil, id, method, name, params)
	r := parse(t, body)
	if r.Error != nil {
		t.Fatalf("%s: %s", method, body)
	}
	if err := json.Unmarshal(r.Result, &result); err != nil {
		t.Fatal(err)
	}
	return result
}

// sendTask is postTask with further headers, for a request that may be refused.
func sendTask(t *testing.T, url string, more header, id int, method, name, params string) (status int, body string) {
	t.Helper()
	const caps = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
	h := header{"Accept": "application/json, text/event-stream", headerVersion: "2026-07-28", headerMethod: method, headerName: name}
	maps.Copy(h, more)
	res, body := do(t, "POST", url, h, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s,%s}}`, id, method, params, caps))
	return res.StatusCode, body
}

// TestApprovals_ends checks that a program that waits for approval without a request ends
// with the token of its client and with its task, and counts as a call of its owner until then.
func TestApprovals_ends(t *testing.T) {
	_, m, change := withApprovals(t, approval.Options{})
	p := newPeople(t)
	s, url := serve(t, p.options(change))
	o := (&asker{}).options()
	o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	c := &rawClient{connect(t, p.transport("alice", url), "2026-07-28", o), t}
	c.asked("attempt('write')")
	eventually(t, "only the program counts", func() bool { return s.quota.value() == 1 })
	if n := m.Stats().Running; n != 1 {
		t.Fatalf("%d programs run", n)
	}
	p.remove(t, "alice")
	eventually(t, "the program ends with the token", func() bool { return m.Stats().Running == 0 && s.quota.value() == 0 })

	_, m, change = withApprovals(t, approval.Options{})
	s, url = serve(t, change)
	id := postTask(t, url, 1, "tools/call", "execute_code", `"name":"execute_code","arguments":{"code":"print(tools.diary.write())"}`).TaskID
	eventually(t, "the task asks", func() bool {
		return postTask(t, url, 2, "tasks/get", id, `"taskId":"`+id+`"`).Status == "input_required" && s.quota.value() == 1
	})
	if n := m.Stats().Running; n != 1 {
		t.Fatalf("%d programs run", n)
	}
	postTask(t, url, 3, "tasks/cancel", id, `"taskId":"`+id+`"`)
	eventually(t, "the program ends with the task", func() bool { return m.Stats().Running == 0 && s.quota.value() == 0 })
}

// TestApprovals_task checks that a call that became a task asks through it, and that each
// answer counts for its question only.
func TestApprovals_task(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	post := func(id int, method, name, params string) taskReply { return postTask(t, url, id, method, name, params) }
	begun := post(1, "tools/call", "execute_code", `"name":"execute_code","arguments":{"code":"print(tools.diary.write(a=1))\nprint(tools.diary.write(a=2))"}`)
	id, n := begun.TaskID, 1
	if id == "" {
		t.Fatalf("got %+v", begun)
	}
	// next returns the key of the question once the task has left a status.
	next := func(key string) string {
		for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
			n++
			now := post(n, "tasks/get", id, `"taskId":"`+id+`"`)
			for k := range now.InputRequests {
				if k != key {
					return k
				}
			}
			if now.Status == "completed" {
				return string(now.Result)
			}
		}
		return "nothing for 10 seconds"
	}
	answer := func(key, decision string) {
		n++
		post(n, "tasks/update", id, `"taskId":"`+id+`","inputResponses":{"`+key+`":{"action":"accept","content":{"call_1":"`+decision+`"}}}`)
	}
	first := next("")
	answer(first, "once")
	second := next(first)
	// A client that repeats its update answers no other question.
	answer(first, "once")
	if again := next(""); again != second {
		t.Fatalf("a repeated answer counted for the next question: got %s, want %s", again, second)
	}
	if calls := d.called(); !slices.Equal(calls, []string{`write {"a":1}`}) {
		t.Errorf("calls %q", calls)
	}
	answer(second, "deny")
	if result := next(second); !strings.Contains(result, "write done") || !strings.Contains(result, "the user denied this call") || len(d.called()) > 0 {
		t.Errorf("got %s", result)
	}
}

// TestApprovals_readToken checks that a read token does not answer the question of a task that a
// use token of the owner began, which then still waits for the answer of that token.
func TestApprovals_readToken(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{})
	p := newPeople(t)
	_, url := serve(t, p.options(change))
	n := 0
	send := func(who, method, name, params string) (int, string) {
		t.Helper()
		n++
		return sendTask(t, url, p.as(who), n, method, name, params)
	}
	result := func(body string) (got taskReply) {
		t.Helper()
		if err := json.Unmarshal(parse(t, body).Result, &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return got
	}
	_, body := send("alice", "tools/call", "execute_code", `"name":"execute_code","arguments":{"code":"print(tools.diary.write())"}`)
	id := result(body).TaskID
	if id == "" {
		t.Fatalf("got %s", body)
	}
	// state returns what the task is and what it asks.
	state := func() (status, key string) {
		t.Helper()
		_, body := send("alice", "tasks/get", id, `"taskId":"`+id+`"`)
		got := result(body)
		for k := range got.InputRequests {
			key = k
		}
		return got.Status, key
	}
	key := ""
	eventually(t, "the task asks", func() bool {
		_, key = state()
		return key != ""
	})
	answer := `"taskId":"` + id + `","inputResponses":{"` + key + `":{"action":"accept","content":{"call_1":"once"}}}`
	if status, body := send("reader", "tasks/update", id, answer); status != 403 || !strings.Contains(body, "scope") {
		t.Errorf("the answer of a read token: got %d %s", status, body)
	}
	if status, still := state(); status != "input_required" || still != key {
		t.Errorf("after the answer of a read token the task is %s and asks %q, want %q", status, still, key)
	}
	if calls := d.called(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
	if status, body := send("second", "tasks/update", id, answer); status != 200 {
		t.Errorf("the answer of another use token: got %d %s", status, body)
	}
	eventually(t, "the task ends", func() bool {
		status, _ := state()
		return status == "completed"
	})
	if calls := d.called(); !slices.Equal(calls, []string{"write {}"}) {
		t.Errorf("calls %q", calls)
	}
}

// TestApprovals_otherClients checks that a question goes to the client whose request runs the code,
// and not to another one of the same owner that is connected, has the same box and would approve.
func TestApprovals_otherClients(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{})
	p := newPeople(t)
	_, url := serve(t, p.options(change))
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		denies, approves := &asker{decisions: []string{"deny"}}, &asker{decisions: []string{"once"}}
		first := connect(t, p.transport("alice", url), version, denies.options())
		second := connect(t, p.transport("second", url), version, approves.options()) // alice's as well
		for _, tc := range []struct {
			name         string
			cs           *mcp.ClientSession
			asked, other *asker
			want         string
			calls        []string
		}{
			{"the one that denies", first, denies, approves, "denied\n", nil},
			{"the one that approves", second, approves, denies, "write done\n", []string{"write {}"}},
			{"the one that denies, again", first, denies, approves, "denied\n", nil},
		} {
			if m, said := must(t, tc.cs, "execute_code", args{"code": attempt + "attempt('write')", "session_id": "shared"}); m["stdout"] != tc.want {
				t.Errorf("%s: %s: got %s, want %q", version, tc.name, said, tc.want)
			}
			if calls := d.called(); !slices.Equal(calls, tc.calls) {
				t.Errorf("%s: %s: calls %q, want %q", version, tc.name, calls, tc.calls)
			}
			if own, other := tc.asked.questions(), tc.other.questions(); own != 1 || other != 0 {
				t.Errorf("%s: %s was asked %d times, and the other one %d times", version, tc.name, own, other)
			}
		}
	}
}
