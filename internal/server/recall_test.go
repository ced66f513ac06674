package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
)

// TestApprovals_lostQuestion checks that a client which repeats its request in a session with a
// parked program gets the question again, and with its answer the result of that program.
func TestApprovals_lostQuestion(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	raw := newRawClient(t, url)
	call := func(tool string, with args, state string) (*mcp.CallToolResult, error) {
		p := &mcp.CallToolParams{Name: tool, Arguments: with, RequestState: state}
		if state != "" {
			p.InputResponses = mcp.InputResponseMap{"approval-" + state: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "once"}}}
		}
		return raw.CallTool(t.Context(), p)
	}
	made, _ := must(t, raw.ClientSession, "create_context", args{"name": "lost", "language": "python"})
	for tool, with := range map[string]args{
		"execute_code": {"code": "print(tools.diary.write())", "session_id": "lost-session"},
		"run_code":     {"code": "print(tools.diary.write())", "context_id": made["context_id"]},
	} {
		first, err := call(tool, with, "")
		if err != nil || first.RequestState == "" {
			t.Fatalf("%s: got %+v, %v, want a question", tool, first, err)
		}
		if listed, _ := must(t, raw.ClientSession, "get_sessions", args{}); tool == "execute_code" && !strings.Contains(fmt.Sprint(listed), "status:waiting for approval") {
			t.Errorf("get_sessions: got %v", listed)
		}
		again, err := call(tool, with, "")
		if err != nil || again.RequestState == "" || again.RequestState == first.RequestState || len(again.Content) > 0 {
			t.Fatalf("%s: the request again: got %+v, %v, want the question", tool, again, err)
		}
		if res, err := call(tool, with, first.RequestState); err == nil {
			t.Errorf("%s: an answer to the lost question: got %+v", tool, res)
		}
		res, err := call(tool, with, again.RequestState)
		if err != nil || res.IsError || !strings.Contains(text(t, res), "write done") {
			t.Errorf("%s: got %+v, %v", tool, res, err)
		}
		if calls := d.called(); !slices.Equal(calls, []string{"write {}"}) {
			t.Errorf("%s: calls %q", tool, calls)
		}
	}
}

// TestApprovals_lostQuestionOfNewSession: the first call named no session. The same call with the
// id of the session that the server made gets the question, and so does its answer.
func TestApprovals_lostQuestionOfNewSession(t *testing.T) {
	d, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	raw := newRawClient(t, url)
	const code = "print(tools.diary.write())"
	call := func(with args, state string) (*mcp.CallToolResult, error) {
		p := &mcp.CallToolParams{Name: "execute_code", Arguments: with, RequestState: state}
		if state != "" {
			p.InputResponses = mcp.InputResponseMap{"approval-" + state: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "once"}}}
		}
		return raw.CallTool(t.Context(), p)
	}
	first, err := call(args{"code": code}, "")
	if err != nil || first.RequestState == "" {
		t.Fatalf("got %+v, %v, want a question", first, err)
	}
	listed, _ := must(t, raw.ClientSession, "get_sessions", args{})
	sessions, _ := listed["sessions"].([]any)
	if len(sessions) != 1 {
		t.Fatalf("sessions %v", listed)
	}
	id := sessions[0].(map[string]any)["session_id"]
	if res, err := call(args{"code": code + "#", "session_id": id}, ""); err == nil && (res.RequestState != "" || !strings.Contains(text(t, res), "with the same arguments and the session_id of this session: it is asked again")) {
		t.Errorf("other code: got %+v", res)
	}
	again, err := call(args{"session_id": id, "code": code}, "")
	if err != nil || again.RequestState == "" {
		t.Fatalf("with the id: got %+v, %v, want the question", again, err)
	}
	if res, err := call(args{"code": code}, again.RequestState); err == nil {
		t.Errorf("an answer to another request than the last: got %+v", res)
	}
	res, err := call(args{"code": code, "session_id": id}, again.RequestState)
	if err != nil || res.IsError || !strings.Contains(text(t, res), "write done") {
		t.Errorf("got %+v, %v", res, err)
	}
	if calls := d.called(); !slices.Equal(calls, []string{"write {}"}) {
		t.Errorf("calls %q", calls)
	}
}

// TestApprovals_progressAfterAnswer checks that the progress of a program goes to the request that
// answered its question. The program goes on until that has come.
func TestApprovals_progressAfterAnswer(t *testing.T) {
	_, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	came := make(chan struct{})
	told := sync.OnceFunc(func() { close(came) })
	o := (&asker{}).options()
	o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
	o.ProgressNotificationHandler = func(_ context.Context, n *mcp.ProgressNotificationClientRequest) {
		if n.Params.ProgressToken == "second" && strings.Contains(n.Params.Message, "after the answer") {
			told()
		}
	}
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2026-07-28", o)
	const code = `import os, time
tools.diary.write()
print("after the answer", flush=True)
for _ in range(1000):
    if os.path.exists("seen"):
        print("seen")
        break
    time.sleep(0.02)
`
	call := func(token, state string) (*mcp.CallToolResult, error) {
		p := &mcp.CallToolParams{Name: "execute_code", Arguments: args{"code": code, "session_id": "progress"}, RequestState: state}
		if state != "" {
			p.InputResponses = mcp.InputResponseMap{"approval-" + state: &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "once"}}}
		}
		p.SetProgressToken(token)
		return cs.CallTool(t.Context(), p)
	}
	asked, err := call("first", "")
	if err != nil || asked.RequestState == "" {
		t.Fatalf("got %+v, %v, want a question", asked, err)
	}
	go func() {
		select {
		case <-came:
			_, _ = try(t, cs, "upload_file", args{"path": "seen", "content": "", "session_id": "progress"})
		case <-time.After(15 * time.Second):
		case <-t.Context().Done():
		}
	}()
	res, err := call("second", asked.RequestState)
	if err != nil || !strings.Contains(text(t, res), "after the answer\nseen\n") {
		t.Errorf("got %+v, %v: no progress came for the request that answered", res, err)
	}
}

// TestApprovals_lostElicitation checks that a call which waits for a parked program gets an error
// that says that the question of an elicitation does not come again.
func TestApprovals_lostElicitation(t *testing.T) {
	_, _, change := withApprovals(t, approval.Options{})
	_, url := serve(t, change)
	asked, seen := make(chan struct{}), make(chan struct{})
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			close(asked)
			select {
			case <-seen:
			case <-ctx.Done():
			}
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	})
	with := args{"code": "print(tools.diary.write())", "session_id": "elicited"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = try(t, cs, "execute_code", with)
	}()
	<-asked
	res, err := try(t, cs, "execute_code", with)
	close(seen)
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, res); !res.IsError || !strings.Contains(got, "If the question is no longer on the screen, wait, since it cannot be asked again. Or: stop_session") {
		t.Errorf("got %q", got)
	}
}
