package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/revision"
)

// awaited is a diary whose server never gets ready.
type awaited struct{ diary }

func (a *awaited) Tools(ctx context.Context, _ string) []codemode.Tool {
	<-ctx.Done()
	return nil
}

// TestCodeMode_UncalledTools: the result of a program that timed out while a server was starting says
// that the tool was not called: a model that believes it ran would not repeat the call.
func TestCodeMode_UncalledTools(t *testing.T) {
	boxes := withBoxes(t, nil)
	broker := codemode.New(codemode.Options{Servers: &awaited{}, Policy: codemode.Policy{{Decision: codemode.Allow}}})
	_, url := serve(t, func(o *Options) {
		boxes(o)
		o.Toolsets = []string{"sessions"}
		o.Tools.Code = func(box.Owner) *codemode.Broker { return broker }
	})
	cs := dial(t, url, revision.Modern)
	for language, code := range map[string]string{"python": "tools.diary.write(n=1)", "javascript": "await tools.diary.write({n: 1})"} {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"code": code, "language": language, "timeout": 2}})
		if err != nil {
			t.Fatal(err)
		}
		text := textOf(res)
		// A program whose call is cancelled before it is interrupted does not say that the call may have run.
		said := strings.Contains(text, "may have run, unless a note says otherwise: tools.diary.write") || strings.Contains(text, "cancelled [interrupted]")
		if !said || !strings.Contains(text, "These tools were not called, because the program ended before their server was ready or the call was approved: diary.write.") {
			t.Errorf("%s: %s", language, text)
		}
	}
}

// once is a diary whose server is gone after its first call.
type once struct{ diary }

func (o *once) Tools(ctx context.Context, server string) []codemode.Tool {
	o.mu.Lock()
	gone := len(o.calls) > 0
	o.mu.Unlock()
	if gone {
		<-ctx.Done()
		return nil
	}
	return o.diary.Tools(ctx, server)
}

// TestCodeMode_UncalledToolsWereNotCalled: a tool that the program has called is not among those that
// were not called, although a later call of it was cancelled: a model would repeat the first.
func TestCodeMode_UncalledToolsWereNotCalled(t *testing.T) {
	boxes := withBoxes(t, nil)
	servers := &once{}
	broker := codemode.New(codemode.Options{Servers: servers, Policy: codemode.Policy{{Decision: codemode.Allow}}})
	_, url := serve(t, func(o *Options) {
		boxes(o)
		o.Toolsets = []string{"sessions"}
		o.Tools.Code = func(box.Owner) *codemode.Broker { return broker }
	})
	res, err := dial(t, url, revision.Modern).CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{
		"code": "tools.diary.write(n=1)\ntools.diary.write(n=2)", "timeout": 2,
	}})
	if err != nil {
		t.Fatal(err)
	}
	text := textOf(res)
	if calls := servers.called(); len(calls) != 1 || !strings.Contains(text, "had called diary.write (1)") || strings.Contains(text, "were not called") {
		t.Errorf("calls %q: %s", calls, text)
	}
}

// TestCodeMode_ChangesBeforeFailure checks that the result of a program which fails half way says
// what it has changed: a model that repeats it would change that again.
func TestCodeMode_ChangesBeforeFailure(t *testing.T) {
	boxes := withBoxes(t, nil)
	broker := codemode.New(codemode.Options{Servers: &diary{}, Policy: codemode.Policy{{Decision: codemode.Allow}}})
	_, url := serve(t, func(o *Options) {
		boxes(o)
		o.Toolsets = []string{"sessions", "contexts"}
		o.Tools.Code = func(box.Owner) *codemode.Broker { return broker }
	})
	cs := dial(t, url, revision.Modern)
	const begin, end = "Before it failed, the program had called ", ". To repeat the program would make these calls again."
	for name, c := range map[string]struct{ tool, args, want string }{
		"an error":         {"execute_code", `{"code": "for n in range(2): tools.diary.write(n=n)\ntools.diary.read()\ntools.diary.delete()\nraise ValueError('half way')"}`, "diary.write (2), diary.delete (1)"},
		"JavaScript":       {"execute_code", `{"code": "await tools.diary.write({}); throw new Error('half way')", "language": "javascript"}`, "diary.write (1)"},
		"a time-out":       {"execute_code", `{"code": "import time; tools.diary.write(); time.sleep(600)", "timeout": 1}`, "diary.write (1)"},
		"a killed program": {"execute_code", `{"code": "import os, signal; tools.diary.write(); os.kill(os.getpid(), signal.SIGKILL)"}`, "diary.write (1)"},
		"a command":        {"execute_command", `{"command": "glovebox-tool diary.write; exit 7"}`, "diary.write (1)"},
		"run_code":         {"run_code", `{"code": "tools.diary.write(); 1/0"}`, "diary.write (1)"},
		"only reads":       {"execute_code", `{"code": "tools.diary.read(); 1/0"}`, ""},
		"a success":        {"execute_code", `{"code": "tools.diary.write()"}`, ""},
		"no call":          {"execute_code", `{"code": "1/0"}`, ""},
	} {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: json.RawMessage(c.args)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		structured, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{textOf(res), string(structured)} {
			if c.want == "" && strings.Contains(text, begin) || c.want != "" && !strings.Contains(text, begin+c.want+end) {
				t.Errorf("%s: got %s, want a note about %q", name, text, c.want)
			}
		}
	}
}
