//go:build linux

package tools

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// lose makes a session and ends it, so that the next call learns of a loss.
func lose(t *testing.T, m *box.Manager) {
	t.Helper()
	structured(t, m, "execute_code", `{"code":"x = 1","session_id":"s"}`)
	if _, err := m.Stop(t.Context(), "", box.KindSession, "s"); err != nil {
		t.Fatal(err)
	}
}

// wantLoss calls a tool, and wants its text to say that the earlier session is gone.
func wantLoss(t *testing.T, m *box.Manager, name, args string) {
	t.Helper()
	const note = "The earlier session s ended at"
	for i, want := range []bool{true, false} {
		res, err := call(t, m, name, args)
		if err != nil || res.IsError {
			t.Fatalf("%s: got %+v, %v", name, res, err)
		}
		if text := res.Content[0].(*mcp.TextContent).Text; strings.Contains(text, note) != want {
			t.Errorf("%s, call %d: its text is %q; contains %q: want %t", name, i+1, text, note, want)
		}
	}
}

// TestLoss_InNotFound: tools that make no session say why there is none any more, and leave the
// report to the call that makes one.
func TestLoss_InNotFound(t *testing.T) {
	m := toolstest.Manager(t, nil)
	lose(t, m)
	for name, args := range map[string]string{
		"list_files":    `{"session_id":"s"}`,
		"download_file": `{"path":"f","session_id":"s"}`,
	} {
		res, err := call(t, m, name, args)
		if err != nil {
			t.Fatal(err)
		}
		text := res.Content[0].(*mcp.TextContent).Text
		for _, want := range []string{"Session not found: s; it was stopped", "Its variables and files are gone. execute_code with the same session_id makes a new one."} {
			if !res.IsError || !strings.Contains(text, want) {
				t.Errorf("%s of a session that was stopped: %q, want %q", name, text, want)
			}
		}
	}
	wantLoss(t, m, "execute_code", `{"code":"1","session_id":"s"}`)
}

// TestLoss_InText: a model that reads only the text of an answer learns of a loss from
// every tool that uses a box, once.
func TestLoss_InText(t *testing.T) {
	for name, args := range map[string]string{
		"execute_code":    `{"code":"1","session_id":"s"}`,
		"execute_command": `{"command":"true","session_id":"s"}`,
		"upload_file":     `{"path":"f","content":"x","session_id":"s"}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := toolstest.Manager(t, nil)
			lose(t, m)
			wantLoss(t, m, name, args)
		})
	}
}

// TestLoss_OfFailedCall: a call that fails after it has reached the new box cannot report
// the loss of the earlier one; the next call does.
func TestLoss_OfFailedCall(t *testing.T) {
	m := toolstest.Manager(t, nil)
	lose(t, m)
	res, err := call(t, m, "upload_file", `{"path":"/proc/x","content":"x","session_id":"s"}`)
	if err == nil && !res.IsError {
		t.Fatalf("an upload to /proc: got %+v, %v; want a failed call", res, err)
	}
	wantLoss(t, m, "execute_command", `{"command":"true","session_id":"s"}`)
}

// TestLoss_OfCancelledCall: the same for a call that is cancelled while its code runs.
func TestLoss_OfCancelledCall(t *testing.T) {
	m := toolstest.Manager(t, nil)
	lose(t, m)
	i := slices.IndexFunc(All(), func(tool Tool) bool { return tool.Def.Name == "execute_code" })
	handle := All()[i].bind(Deps{Boxes: m, Log: slog.New(slog.DiscardHandler)})
	runs := filepath.Join(t.TempDir(), "runs")
	args, err := json.Marshal(map[string]string{"session_id": "s", "code": "import time; open('" + runs + "', 'w'); time.sleep(60)"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := handle(ctx, &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "execute_code", Arguments: args}})
		done <- err
	}()
	polltest.Until(t, 20*time.Second, "the code runs", func() bool { _, err := os.Stat(runs); return err == nil })
	cancel()
	if err := <-done; err == nil {
		t.Fatal("the cancelled call succeeded")
	}
	wantLoss(t, m, "execute_command", `{"command":"true","session_id":"s"}`)
}

// TestLoss_BesideReaders: callers who may only read keep the report from no call that runs beside
// theirs.
func TestLoss_BesideReaders(t *testing.T) {
	m := toolstest.Manager(t, nil)
	lose(t, m)
	if res, err := call(t, m, "upload_file", `{"path":"/proc/x","content":"x","session_id":"s"}`); err == nil && !res.IsError {
		t.Fatalf("an upload to /proc: got %+v, %v; want a failed call", res, err)
	}
	c := &Call{Boxes: m}
	defer c.release(false)
	files, err := c.openFiles(OnlyReads(t.Context()), "s")
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	if len(files.notes) == 0 {
		t.Error("a caller who reads is not told of the loss")
	}
	wantLoss(t, m, "execute_command", `{"command":"true","session_id":"s"}`)
}

// TestInterrupted_KeepsOutput: the result of a call whose box was hibernated under it has what the
// program had put out, and does not say that the session has ended.
func TestInterrupted_KeepsOutput(t *testing.T) {
	gone := &box.Error{
		Code: box.CodeGone, Op: "run code", Msg: "The call was interrupted: session s was hibernated just now", Hint: "Call again.",
		Context: map[string]string{"session_id": "s", "reason": string(box.ReasonHibernated)},
		Partial: &box.Partial{Stdout: "step 1 done\n", Stderr: "row", Duration: 1500 * time.Millisecond},
	}
	deps := Deps{Log: slog.New(slog.DiscardHandler)}
	const why = "The call was interrupted: session s was hibernated just now. Call again."
	check := func(res *mcp.CallToolResult, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		content := res.Content[0].(*mcp.TextContent).Text
		got, _ := res.StructuredContent.(json.RawMessage)
		for _, w := range want {
			if !strings.Contains(string(got), w) {
				t.Errorf("got %s, want %s in it", got, w)
			}
		}
		if content != "step 1 done\nrow\n"+why {
			t.Errorf("the text is %q", content)
		}
	}
	res, err := answerFailed[executeCodeIn, executeCodeOut](info{name: "execute_code", family: sessionErrors}, deps, nil, executeCodeIn{}, target{}, gone)
	check(res, err, `"stdout":"step 1 done\n"`, `"stderr":"row\n`+why+`"`, `"error_code":"CALL_INTERRUPTED"`)
	res, err = answerFailed[executeCommandIn, executeCommandOut](info{name: "execute_command", family: sessionErrors}, deps, nil, executeCommandIn{}, target{}, gone)
	check(res, err, `"stdout":"step 1 done\n"`, `"stderr":"row\n`+why+`"`, `"exit_code":-1`)

	deps.ProtocolErrors = true
	_, err = answerFailed[executeCodeIn, executeCodeOut](info{name: "execute_code", family: sessionErrors}, deps, nil, executeCodeIn{}, target{}, gone)
	if coded, ok := errors.AsType[*jsonrpc.Error](err); !ok || !strings.Contains(string(coded.Data), `"stderr":"row","stdout":"step 1 done\n"`) {
		t.Errorf("as a protocol error: got %v, want the output in its data", err)
	}

	res, err = answerFailed[runCodeIn, runCodeOut](info{name: "run_code", family: runErrors}, deps, nil, runCodeIn{}, target{}, gone)
	if text := res.Content[0].(*mcp.TextContent).Text; err != nil || !strings.Contains(text, `"stdout": "step 1 done\n"`) || !strings.Contains(text, `"stderr": "row"`) {
		t.Errorf("run_code: got %s, %v", text, err)
	}
}
