package server

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/revision"
)

// burning is a shelf that says when its books are burnt.
type burning struct {
	shelf
	burnt chan struct{}
}

func (s burning) Call(_ context.Context, t codemode.Tool, _ json.RawMessage) (*mcp.CallToolResult, error) {
	s.burnt <- struct{}{}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ashes"}}}, nil
}

// withBurning lets programs burn the books of a shelf.
func withBurning(o *Options) (burnt chan struct{}) {
	burnt = make(chan struct{}, 1)
	broker := codemode.New(codemode.Options{Servers: burning{burnt: burnt}, Policy: codemode.Policy{{Tool: "burn", Decision: codemode.Allow}}})
	o.Toolsets = []string{"sessions"}
	o.Tools.Code = func(box.Owner) *codemode.Broker { return broker }
	return burnt
}

// burns are calls of programs that burn the books and then wait for long.
var burns = map[string]map[string]any{
	"execute_code":    {"code": "x = 1\nprint('half', flush=True)\ntools.shelf.burn()\nimport time\ntime.sleep(100)"},
	"execute_command": {"command": "echo half; glovebox-tool shelf.burn; sleep 100"},
}

// in returns the arguments of a call with a session.
func in(session string, arguments map[string]any) map[string]any {
	all := map[string]any{"session_id": session}
	for k, v := range arguments {
		all[k] = v
	}
	return all
}

// TestCancelled_NextCallReportsWhatTheProgramDid: a client that cancels a call gets no answer. The
// next result of the session names the tools that its program had called, once, and does not report
// the session as new.
func TestCancelled_NextCallReportsWhatTheProgramDid(t *testing.T) {
	var burnt chan struct{}
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		burnt = withBurning(o)
	})
	for _, version := range []string{"2025-06-18", revision.Modern} {
		for tool, arguments := range burns {
			t.Run(version+"/"+tool, func(t *testing.T) {
				cs := dial(t, url, version)
				session := strings.ReplaceAll(version+tool, "_", "-")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: in(session, arguments)})
					ended <- err
				}()
				<-burnt
				cancel()
				if err := <-ended; err == nil {
					t.Fatal("a cancelled call has a result")
				}
				next := func() string {
					t.Helper()
					res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: in(session, map[string]any{"code": "print('next')"})})
					if err != nil {
						t.Fatal(err)
					}
					structured, err := json.Marshal(res.StructuredContent)
					if err != nil {
						t.Fatal(err)
					}
					if !strings.Contains(string(structured), `"session_created":false`) || strings.Contains(textOf(res), "There was no session") {
						t.Errorf("got %s", structured)
					}
					return textOf(res)
				}
				// A command ends beside the next call, code before it.
				eventually(t, "a result names the tools", func() bool {
					return strings.Contains(next(), "since their client cancelled them or was gone, or the server stopped. Their programs had called shelf.burn (1). To repeat them would make these calls again.")
				})
				if got := next(); strings.Contains(got, "burn") {
					t.Errorf("the call after it: got %q", got)
				}
			})
		}
	}
}

// TestGone_NextCallReportsWhatTheProgramDid: a program goes on after its client has disconnected. If
// the client is still gone when the program ends, the next result of the session names the tools
// that the program had called.
func TestGone_NextCallReportsWhatTheProgramDid(t *testing.T) {
	var burnt chan struct{}
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		burnt = withBurning(o)
	})
	for tool, arguments := range map[string]string{
		"execute_code":    `{"session_id":"gone-code","code":"tools.shelf.burn()\nimport time\ntime.sleep(1)\n1/0"}`,
		"execute_command": `{"session_id":"gone-command","command":"glovebox-tool shelf.burn; sleep 1; false"}`,
	} {
		res, _ := do(t, "POST", url, header{}, initBody)
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(toolCall(1, tool, arguments)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set(headerSession, res.Header.Get(headerSession))
		left := make(chan struct{})
		go func() {
			defer close(left)
			if res, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body) // until the client leaves
				res.Body.Close()
			}
		}()
		<-burnt
		leave()
		<-left
		session := map[string]string{"execute_code": "gone-code", "execute_command": "gone-command"}[tool]
		cs := dial(t, url, "2025-06-18")
		eventually(t, "a result names the tools", func() bool {
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"session_id": session, "code": "print('next')"}})
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(textOf(res), "ran to their end, the last at ") && strings.Contains(textOf(res), "their programs called shelf.burn (1). To repeat them would make these calls again.")
		})
	}
}

// TestGone_ResumedCallIsNotReported: a client that disconnects and resumes the stream has the result,
// so that no later result reports the call.
func TestGone_ResumedCallIsNotReported(t *testing.T) {
	var burnt chan struct{}
	boxes := withBoxes(t, nil)
	_, url := serve(t, func(o *Options) {
		boxes(o)
		burnt = withBurning(o)
		o.Limits.Heartbeat = 50 * time.Millisecond
	})
	h := with(session(t, url), headerVersion, revision.Resumable)
	ctx, leave := context.WithCancel(t.Context())
	const program = "tools.shelf.burn()\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('the end')"
	code, err := json.Marshal(program)
	if err != nil {
		t.Fatal(err)
	}
	id := eventID(t, bufio.NewReader(openStream(t, ctx, "POST", url, with(h, "Accept", "application/json, text/event-stream"), toolCall(1, "execute_code", `{"session_id":"back","code":`+string(code)+`}`)).Body))
	<-burnt
	leave()
	resumed := openStream(t, t.Context(), "GET", url, with(with(h, "Accept", eventStream), headerLastEvent, id), "") // its header has come
	cs := dial(t, url, "2025-06-18")
	call := func(tool string, arguments map[string]any) string {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in("back", arguments)})
		if err != nil {
			t.Fatal(err)
		}
		return textOf(res)
	}
	call("execute_command", map[string]any{"command": "touch go"})
	if body, err := io.ReadAll(resumed.Body); err != nil || !strings.Contains(string(body), "the end") {
		t.Fatalf("the resumed stream has %q, %v", body, err)
	}
	if text := call("execute_code", map[string]any{"code": "print('next')"}); strings.Contains(text, "burn") {
		t.Errorf("a call whose result has arrived is reported: %q", text)
	}
}

// TestGone_SessionWithoutNameIsReported: a client that is gone when the first call of a new session
// ends never learns the id of the session. The next new session of the owner reports it, once.
func TestGone_SessionWithoutNameIsReported(t *testing.T) {
	for _, version := range []string{"2025-06-18", revision.Modern} {
		var burnt chan struct{}
		boxes := withBoxes(t, nil)
		_, url := serve(t, func(o *Options) {
			boxes(o)
			burnt = withBurning(o)
		})
		cs := dial(t, url, version)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: burns["execute_code"]})
			ended <- err
		}()
		<-burnt
		cancel()
		if err := <-ended; err == nil {
			t.Fatal("a cancelled call has a result")
		}
		begin := func() string {
			t.Helper()
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"code": "print('next')"}})
			if err != nil {
				t.Fatal(err)
			}
			return textOf(res)
		}
		note := regexp.MustCompile(`Calls in the session ([0-9a-f-]{36}), whose id no answer has named, were cut off.*Their programs had called shelf\.burn \(1\)\.`)
		var id string
		eventually(t, version+": a new session reports the call", func() bool {
			m := note.FindStringSubmatch(begin())
			if m != nil {
				id = m[1]
			}
			return m != nil
		})
		if text := begin(); strings.Contains(text, "burn") {
			t.Errorf("%s: reported again: %q", version, text)
		}
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: in(id, map[string]any{"code": "print(x)"})})
		if err != nil || !strings.Contains(textOf(res), "1") || strings.Contains(textOf(res), "burn") {
			t.Errorf("%s: in the session that was reported: got %q, %v", version, textOf(res), err)
		}
	}
}

// TestShutdown_InterruptedProgramAnswers: a call that a shutdown interrupts has a result, with the
// output so far, the session and the tools that its program had called.
func TestShutdown_InterruptedProgramAnswers(t *testing.T) {
	for _, version := range []string{"2025-06-18", revision.Modern} {
		for tool, arguments := range burns {
			t.Run(version+"/"+tool, func(t *testing.T) {
				var burnt chan struct{}
				boxes := withBoxes(t, nil)
				s, url := serve(t, func(o *Options) {
					boxes(o)
					burnt = withBurning(o)
				})
				cs := dial(t, url, version)
				type outcome struct {
					res *mcp.CallToolResult
					err error
				}
				ended := make(chan outcome, 1)
				go func() {
					res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in("cut", arguments)})
					ended <- outcome{res, err}
				}()
				<-burnt
				over, cancel := context.WithCancel(t.Context())
				cancel()
				if err := s.Shutdown(over); err != nil {
					t.Error(err)
				}
				select {
				case o := <-ended:
					if o.err != nil {
						t.Fatal(o.err)
					}
					structured, err := json.Marshal(o.res.StructuredContent)
					if err != nil {
						t.Fatal(err)
					}
					for _, want := range []string{"half\n", "The server is shutting down and interrupted this call in the session cut, which may have done a part of its work", "had called shelf.burn", "When the server runs again"} {
						if !strings.Contains(textOf(o.res), want) {
							t.Errorf("got %q, want %q", textOf(o.res), want)
						}
					}
					for _, want := range []string{`"session_id":"cut"`, `"error_code":"CALL_INTERRUPTED"`, `"success":false`, `half`} {
						if !strings.Contains(string(structured), want) {
							t.Errorf("got %s, want %s", structured, want)
						}
					}
					if !o.res.IsError {
						t.Error("the result is no error")
					}
				case <-time.After(30 * time.Second):
					t.Fatal("the call has no answer")
				}
			})
		}
	}
}

// TestInterrupted_AnswerWithoutRoom: a call whose answer finds no room among the unread ones, which may be those
// of other owners, does not use up the note about an interrupted program.
func TestInterrupted_AnswerWithoutRoom(t *testing.T) {
	s, url, _, alice := interrupted(t)
	others := []account{{"x", false}, {"y", false}}
	for _, other := range others {
		s.answers.take(other, s.answers.each)
	}
	if _, body := do(t, "POST", url, alice, toolCall(3, "execute_code", `{"session_id":"s","code":"print('x'*40000)"}`)); !strings.Contains(body, "the call has run, and its answer") {
		t.Fatalf("the answer has room: %.300s", body)
	}
	for _, other := range others {
		s.answers.give(other, s.answers.each)
	}
	if _, body := do(t, "POST", url, alice, toolCall(4, "execute_code", `{"session_id":"s","code":"1"}`)); !strings.Contains(body, "Their programs had called shelf.burn (1)") {
		t.Errorf("alice has no note: %s", body)
	}
}
