package box

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// pixel is a PNG image.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// testCalls answers calls with their arguments and adds two images, one of them invalid.
type testCalls struct {
	methods []string
	changed string
	ended   int
}

func (c *testCalls) Call(_ context.Context, method string, args []byte) ([]byte, error) {
	c.methods = append(c.methods, method)
	return fmt.Appendf(nil, `{"value":%s}`, args), nil
}

func (c *testCalls) End() { c.ended++ }

func (c *testCalls) Changed() string { return c.changed }

func (c *testCalls) Displays() []protocol.Display {
	return []protocol.Display{
		{Data: map[string]string{"text/plain": "<image of a tool>", "image/png": pixel}},
		{Data: map[string]string{"text/plain": "<image of a tool>", "image/png": base64.StdEncoding.EncodeToString([]byte("<svg onload=x>"))}},
	}
}

func TestRun_calls(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	calls := &testCalls{}
	res := runReq(t, b, RunRequest{Code: "print(tools.s.t(a=1)['arguments'])", ToolCalls: calls})
	if !res.Success || res.Stdout != "{'a': 1}\n<image of a tool>\n" && res.Stdout != "{'a': 1}\n" || len(calls.methods) != 1 {
		t.Errorf("got %+v after calls of %q", res, calls.methods)
	}
	if len(res.Images) != 1 || res.Images[0].MIME != "image/png" || res.Images[0].Path == "" {
		t.Errorf("got images %+v", res.Images)
	}
	if _, err := b.Run(t.Context(), RunRequest{Code: "1", Language: "cobol", ToolCalls: calls}); err == nil || calls.ended != 2 {
		t.Errorf("after a run and an invalid one, %v: End was called %d times", err, calls.ended)
	}
	res = run(t, b, "tools.s.t(a=1)")
	if res.Success || res.Error.Name != "ToolError" || len(calls.methods) != 1 {
		t.Errorf("a run without calls: got %+v after calls of %q", res, calls.methods)
	}
}

// TestRun_callsAndSlowStart: a timeout that passes while the interpreter starts is a result, as one that
// passes while the code runs.
func TestRun_callsAndSlowStart(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	res := runReq(t, b, RunRequest{Code: "1", Timeout: time.Millisecond, ToolCalls: &testCalls{}})
	if res.TimedOut == res.Success { // the code may run before the timeout is seen
		t.Errorf("got %+v, want a timeout or a success", res)
	}
	if res.TimedOut && !strings.Contains(res.Notes[0], "before the code began") && !strings.Contains(res.Notes[0], "interrupted") {
		t.Errorf("the timeout is explained by %q", res.Notes)
	}
	if res := runReq(t, b, RunRequest{Code: "print(1)", ToolCalls: &testCalls{}}); !res.Success || res.Lost != "" {
		t.Errorf("the next run: %+v", res)
	}
}

func TestExec_calls(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	calls := &testCalls{}
	res, err := b.Exec(t.Context(), ExecRequest{Shell: `glovebox-tool s.t a=1`, ToolCalls: calls})
	if err != nil || res.ExitCode != 0 || !strings.Contains(res.Stdout, `"words":{"a":"1"}`) || len(calls.methods) != 1 {
		t.Errorf("got %+v, %v after calls of %q", res, err, calls.methods)
	}
	if err == nil && (len(res.Images) != 1 || res.Images[0].Path == "" || !strings.Contains(strings.Join(res.Notes, " "), "1 image was left out")) {
		t.Errorf("got images %+v, notes %q", res.Images, res.Notes)
	}
	if calls.ended != 1 {
		t.Errorf("End was called %d times", calls.ended)
	}
	if res, err = b.Exec(t.Context(), ExecRequest{Shell: `glovebox-tool s.t a=1`}); err != nil || res.ExitCode == 0 || len(calls.methods) != 1 {
		t.Errorf("a command without calls: got %+v, %v after calls of %q", res, err, calls.methods)
	}
}
