package approval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// world is an Approver with a person who answers, and records what was parked and logged.
type world struct {
	*Approver
	t *testing.T

	mu     sync.Mutex
	audits bytes.Buffer // guarded by mu
	parked int          // guarded by mu: now
	parks  int          // guarded by mu: in all
}

func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.audits.Write(p)
}

func (w *world) log() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.audits.String()
}

// parking returns how many calls are parked now, and were in all.
func (w *world) parking() (now, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parked, w.parks
}

// test runs f with an Approver in a bubble, which also checks that no goroutine is left.
func test(t *testing.T, o Options, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		o.Audit = slog.New(slog.NewTextHandler(w, nil))
		o.Park = func(context.Context) func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.parked++
			w.parks++
			return sync.OnceFunc(func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.parked--
			})
		}
		w.Approver = New(o)
		f(t, w)
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if now, _ := w.parking(); now != 0 {
			t.Errorf("%d calls are still parked", now)
		}
	})
}

func request(tool, arguments string) codemode.Request {
	return codemode.Request{Identity: codemode.Identity{Owner: "o", Box: "b"}, Server: "s", Tool: tool, Arguments: json.RawMessage(arguments)}
}

// call asks for approval of one call and says how it went.
func (w *world) call(ctx context.Context, tool, arguments string) string {
	ok, err := w.Approve(ctx, request(tool, arguments))
	if e, own := errors.AsType[*codemode.Error](err); own {
		return string(e.Code)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(ok)
}

// program returns a program that makes calls, each "tool arguments", and returns how they
// went.
func (w *world) program(calls ...string) func(context.Context) (*mcp.CallToolResult, error) {
	return func(ctx context.Context) (*mcp.CallToolResult, error) {
		var went []string
		for _, c := range calls {
			tool, arguments, _ := strings.Cut(c, " ")
			went = append(went, w.call(ctx, tool, arguments))
		}
		return textResult(strings.Join(went, " ")), nil
	}
}

// parallel is program with all calls at the same time.
func (w *world) parallel(calls ...string) func(context.Context) (*mcp.CallToolResult, error) {
	return func(ctx context.Context) (*mcp.CallToolResult, error) {
		went := make([]string, len(calls))
		var wg sync.WaitGroup
		for i, c := range calls {
			tool, arguments, _ := strings.Cut(c, " ")
			wg.Go(func() { went[i] = w.call(ctx, tool, arguments) })
		}
		wg.Wait()
		return textResult(strings.Join(went, " ")), nil
	}
}

func textResult(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func textOf(t *testing.T, res *mcp.CallToolResult, err error) string {
	t.Helper()
	if err != nil {
		t.Fatalf("got error %v", err)
	}
	if len(res.Content) != 1 {
		t.Fatalf("got %+v", res)
	}
	return res.Content[0].(*mcp.TextContent).Text
}

// accept answers a question with a decision for each call.
func accept(decisions ...Decision) *mcp.ElicitResult {
	res := &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}
	for i, d := range decisions {
		res.Content[field(i)] = string(d)
	}
	return res
}

// person is a client that is asked by elicitation, and answers in order.
type person struct {
	answers []*mcp.ElicitResult

	mu    sync.Mutex
	asked []string // guarded by mu
}

func (p *person) caller() Caller {
	return Caller{Owner: "o", Session: p, Key: "k", Elicit: func(ctx context.Context, q *mcp.ElicitParams) (*mcp.ElicitResult, error) {
		p.mu.Lock()
		p.asked = append(p.asked, q.Message)
		n := len(p.asked)
		p.mu.Unlock()
		if n > len(p.answers) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return p.answers[n-1], nil
	}}
}

func TestDecisions(t *testing.T) {
	for _, tc := range []struct {
		name    string
		calls   []string
		answers []*mcp.ElicitResult
		want    string
	}{
		{"once counts for one call", []string{`write {"a":1}`, `write {"a":1}`}, []*mcp.ElicitResult{accept(AllowOnce), accept(Deny)}, "true false"},
		{"run counts for the tool", []string{`write {"a":1}`, `write {"a":2}`, `delete {"a":1}`}, []*mcp.ElicitResult{accept(AllowRun), accept(Deny)}, "true true false"},
		{"always counts for the arguments", []string{`write {"a":1}`, `write {"a":1}`, `write {"a":2}`}, []*mcp.ElicitResult{accept(AllowAlways), accept(Deny)}, "true true false"},
		{"deny is not asked again", []string{`write {"a":1}`, `write {"a":1}`, `write {"a":2}`}, []*mcp.ElicitResult{accept(Deny), accept(AllowOnce)}, "false false true"},
		{"decline denies", []string{`write {}`}, []*mcp.ElicitResult{{Action: "decline"}}, "false"},
		{"cancel approves nothing", []string{`write {}`}, []*mcp.ElicitResult{{Action: "cancel", Content: map[string]any{"call_1": "always"}}}, "approval_required"},
		{"cancel denies nothing", []string{`write {}`, `write {}`}, []*mcp.ElicitResult{{Action: "cancel"}, accept(AllowOnce)}, "approval_required true"},
		{"decline denies for the run", []string{`write {}`, `write {}`}, []*mcp.ElicitResult{{Action: "decline"}}, "false false"},
		{"an answer without a decision is asked for again", []string{`write {}`}, []*mcp.ElicitResult{{Action: "accept"}, accept(AllowOnce)}, "true"},
		{"three answers without a decision approve nothing", []string{`write {}`}, []*mcp.ElicitResult{{Action: "accept"}, {Action: "accept", Content: map[string]any{}}, {Action: "accept"}}, "approval_required"},
		{"an answer without a decision denies nothing", []string{`write {}`, `write {}`}, []*mcp.ElicitResult{{Action: "accept"}, {Action: "accept"}, {Action: "accept"}, accept(AllowOnce)}, "approval_required true"},
		{"an unknown decision approves nothing", []string{`write {}`}, []*mcp.ElicitResult{accept("yes"), accept("yes"), accept("yes")}, "approval_required"},
		{"an unknown action approves nothing", []string{`write {}`}, []*mcp.ElicitResult{{Action: "ok", Content: map[string]any{"call_1": "once"}}, {Action: "decline"}}, "false"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				p := &person{answers: tc.answers}
				res, err := w.Serve(t.Context(), p.caller(), w.program(tc.calls...))
				if got := textOf(t, res, err); got != tc.want {
					t.Errorf("by elicitation: got %q, want %q", got, tc.want)
				}
				if len(p.asked) != len(tc.answers) {
					t.Errorf("asked %q", p.asked)
				}
				if n := strings.Count(w.log(), "msg=approval "); n != len(tc.calls) && !strings.HasPrefix(tc.want, "false false") || n > len(tc.calls) {
					t.Errorf("%d audit lines for %d calls:\n%s", n, len(tc.calls), w.log())
				}
			})
			test(t, Options{}, func(t *testing.T, w *world) {
				c := Caller{Owner: "o", Key: "k", ByResult: true}
				res, err := w.Serve(t.Context(), c, w.program(tc.calls...))
				for _, answer := range tc.answers {
					if err != nil || res.RequestState == "" || len(res.InputRequests) != 1 || len(res.Content) > 0 {
						t.Fatalf("got %+v, %v", res, err)
					}
					c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): answer}
					res, err = w.Serve(t.Context(), c, nil)
				}
				if got := textOf(t, res, err); got != tc.want {
					t.Errorf("by results: got %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// TestParallel checks that calls that wait at the same time are one question, that the same
// call is asked about once, and that the program is parked meanwhile.
func TestParallel(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		var calls []string
		for i := range maxGroups + 2 {
			calls = append(calls, fmt.Sprintf(`write {"a":%d}`, i))
		}
		calls = append(calls, `write {"a":0}`)
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		res, err := w.Serve(t.Context(), c, w.parallel(calls...))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if now, _ := w.parking(); now < maxGroups {
			t.Errorf("%d calls are parked", now)
		}
		q := res.InputRequests[answerKey(res.RequestState)].(*mcp.ElicitParams)
		if n := len(q.RequestedSchema.(map[string]any)["required"].([]string)); n != maxGroups {
			t.Errorf("the question is about %d calls", n)
		}
		if !strings.Contains(q.Message, "more calls of this program wait") {
			t.Errorf("the question does not say how many wait:\n%s", q.Message)
		}
		decisions := make([]Decision, maxGroups)
		for i := range decisions {
			decisions[i] = AllowOnce
		}
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(decisions...)}
		if res, err = w.Serve(t.Context(), c, nil); err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		rest := len(res.InputRequests[answerKey(res.RequestState)].(*mcp.ElicitParams).RequestedSchema.(map[string]any)["required"].([]string))
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(decisions[:rest]...)}
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != strings.TrimSpace(strings.Repeat("true ", len(calls))) {
			t.Errorf("got %q", got)
		}
	})
}

// TestState checks that an answer counts once, and only for the request, user and session
// that it belongs to.
func TestState(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Session: "mine", Key: "k", ByResult: true}
		res, err := w.Serve(t.Context(), c, w.program(`write {}`))
		if err != nil {
			t.Fatal(err)
		}
		state := res.RequestState
		c.State, c.Responses = state, mcp.InputResponseMap{answerKey(state): accept(AllowOnce)}
		changed := []byte(state)
		if changed[0]++; !validToken(string(changed)) {
			changed[0] = 'A'
		}
		for name, f := range map[string]func(c *Caller){
			"another owner":   func(c *Caller) { c.Owner = "other" },
			"another session": func(c *Caller) { c.Session = "other" },
			"another request": func(c *Caller) { c.Key = "other" },
			"a changed state": func(c *Caller) { c.State = string(changed) },
			"a longer state":  func(c *Caller) { c.State += "A" },
			"no state":        func(c *Caller) { c.State = "" },
		} {
			other := c
			f(&other)
			res, err := w.Serve(t.Context(), other, func(context.Context) (*mcp.CallToolResult, error) {
				t.Errorf("%s: the program runs again", name)
				return textResult(""), nil
			})
			if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeInvalidParams {
				t.Errorf("%s: got %+v, %v", name, res, err)
			}
		}
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "true" {
			t.Errorf("got %q", got)
		}
		if _, err := w.Serve(t.Context(), c, nil); !errors.Is(err, ErrNotPending) {
			t.Errorf("a replay: got %v", err)
		}
	})
}

// TestState_earlierAnswer checks that an answer to a question of a run does not count for the
// next one. A task hands answers on with the state of the question that is open.
func TestState_earlierAnswer(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		res, err := w.Serve(t.Context(), c, w.program(`write {"path":"/tmp/a"}`, `write {"path":"/etc/passwd"}`))
		if err != nil {
			t.Fatal(err)
		}
		answers := make(mcp.InputResponseMap)
		for key := range res.InputRequests {
			answers[key] = accept(AllowOnce)
		}
		c.State, c.Responses = res.RequestState, answers
		if res, err = w.Serve(t.Context(), c, nil); err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		c.State = res.RequestState
		if res, err = w.Serve(t.Context(), c, nil); err != nil || res.RequestState == "" {
			t.Fatalf("the first answer counts for the second call: got %+v, %v", res, err)
		}
		c.State = res.RequestState
		c.Responses = make(mcp.InputResponseMap)
		for key := range res.InputRequests {
			c.Responses[key] = accept(Deny)
		}
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "true false" {
			t.Errorf("got %q", got)
		}
	})
}

// TestExpiry checks that a question expires inside the program, that an answer that comes
// later approves nothing, and that the client still gets the result.
func TestExpiry(t *testing.T) {
	test(t, Options{Expiry: time.Minute}, func(t *testing.T, w *world) {
		begun := time.Now()
		p := &person{}
		res, err := w.Serve(t.Context(), p.caller(), w.program(`write {}`, `delete {}`))
		if got := textOf(t, res, err); got != "approval_expired approval_expired" {
			t.Errorf("by elicitation: got %q", got)
		}
		if took := time.Since(begun); len(p.asked) != 1 || took != time.Minute+batchWindow {
			t.Errorf("asked %d times in %v", len(p.asked), took)
		}
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		again := make(chan struct{})
		res, err = w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			first := w.call(ctx, "write", `{}`)
			<-again
			return textResult(first + " " + w.call(ctx, "write", `{}`)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowAlways)}
		close(again)
		synctest.Wait()
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "approval_expired approval_expired" {
			t.Errorf("a late answer: got %q", got)
		}
		c.State, c.Responses = "", nil
		if res, err = w.Serve(t.Context(), c, w.program(`write {}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*time.Minute + time.Second)
		c.State = res.RequestState
		if res, err := w.Serve(t.Context(), c, nil); !errors.Is(err, ErrNotPending) {
			t.Errorf("a very late answer: got %+v, %v", res, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.Approver.mu.Lock()
		defer w.Approver.mu.Unlock()
		if len(w.runs)+len(w.byToken) > 0 {
			t.Errorf("%d runs and %d states are left", len(w.runs), len(w.byToken))
		}
	})
}

// TestLateResult checks that a result that waits for a late client is bounded, and that other
// results are not.
func TestLateResult(t *testing.T) {
	image := &mcp.ImageContent{MIMEType: "image/png", Data: make([]byte, maxLateResult)}
	small := &mcp.ImageContent{MIMEType: "image/png", Data: make([]byte, 1000)}
	for name, tc := range map[string]struct {
		text string
		img  *mcp.ImageContent
		late bool
		want string // the beginning of the last text
		n    int    // contents
	}{
		"in time": {"done", image, false, "done", 2},
		"small":   {"done", small, true, "done", 2},
		"images":  {"done", image, true, "The images of the result, 1048576 bytes, were dropped", 2},
		"long":    {strings.Repeat("x", maxLateResult+1), small, true, "The program has ended. Its result of 1049577 bytes was dropped", 1},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{Expiry: time.Minute}, func(t *testing.T, w *world) {
				c := Caller{Owner: "o", Key: "k", ByResult: true}
				again := make(chan struct{})
				res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
					w.call(ctx, "write", `{}`)
					<-again
					res := textResult(tc.text)
					res.Content = append(res.Content, tc.img)
					return res, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute + time.Second)
				c.State = res.RequestState
				if tc.late {
					close(again)
					synctest.Wait()
				} else {
					time.AfterFunc(time.Second, func() { close(again) })
				}
				if res, err = w.Serve(t.Context(), c, nil); err != nil {
					t.Fatal(err)
				}
				last := ""
				for _, c := range res.Content {
					if text, ok := c.(*mcp.TextContent); ok {
						last = text.Text
					}
				}
				if len(res.Content) != tc.n || !strings.HasPrefix(last, tc.want) {
					t.Errorf("got %d contents, the last text is %.200q", len(res.Content), last)
				}
			})
		})
	}
}

// TestUnattended checks that a run that no request waits for ends with what it belongs to, or
// when its client can no longer come back, and gives its place back then.
func TestUnattended(t *testing.T) {
	errRevoked := errors.New("revoked")
	for _, tc := range []struct {
		name  string
		end   func(life func(error), w *world)
		after time.Duration
		want  error
	}{
		{"its owner loses access", func(life func(error), _ *world) { life(errRevoked) }, 0, errRevoked},
		{"its client is too late", func(func(error), *world) {}, 2 * time.Minute, errLate},
		{"others need its place", func(_ func(error), w *world) {
			time.Sleep(time.Minute + time.Second)
			res, err := w.Serve(w.t.Context(), Caller{Owner: "o", Key: "k", ByResult: true}, w.program(`write {}`))
			if got := textOf(w.t, res, err); got != "approval_required" {
				w.t.Errorf("got %q", got)
			}
		}, 2 * time.Minute, errLate},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test(t, Options{Expiry: time.Minute, PerOwner: 1}, func(t *testing.T, w *world) {
				life, end := context.WithCancelCause(t.Context())
				held := 0
				c := Caller{Owner: "o", Key: "k", ByResult: true, Hold: func() func() { held++; return func() { held-- } }}
				var ended time.Time
				var cause error
				res, err := w.Serve(Within(Within(t.Context(), life), t.Context()), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
					w.call(ctx, "write", `{}`)
					<-ctx.Done()
					ended, cause = time.Now(), context.Cause(ctx)
					return textResult(""), nil
				})
				if err != nil || res.RequestState == "" {
					t.Fatalf("got %+v, %v", res, err)
				}
				begun := time.Now()
				w.Approver.mu.Lock()
				if held != 1 {
					t.Errorf("the run holds %d places while no request waits for it", held)
				}
				w.Approver.mu.Unlock()
				tc.end(end, w)
				time.Sleep(time.Hour)
				synctest.Wait()
				if took := ended.Sub(begun); !errors.Is(cause, tc.want) || took != tc.after {
					t.Errorf("the run ended after %v with %v, want %v with %v", took, cause, tc.after, tc.want)
				}
				if held != 0 {
					t.Errorf("the run still holds %d places", held)
				}
			})
		})
	}
	test(t, Options{}, func(t *testing.T, w *world) {
		held := 0
		c := Caller{Owner: "o", Key: "k", ByResult: true, Hold: func() func() { held++; return func() { held-- } }}
		res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			went := w.call(ctx, "write", `{}`)
			w.Approver.mu.Lock()
			defer w.Approver.mu.Unlock()
			return textResult(fmt.Sprint(went, " ", held)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowOnce)}
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "true 0" {
			t.Errorf("a run whose client is back: got %q", got)
		}
	})
}

// TestLate checks that a client that comes back while its program still runs is asked again.
func TestLate(t *testing.T) {
	test(t, Options{Expiry: time.Minute}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		again := make(chan struct{})
		res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			first := w.call(ctx, "write", `{}`)
			<-again
			return textResult(first + " " + w.call(ctx, "write", `{}`)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowAlways)}
		time.AfterFunc(time.Second, func() { close(again) })
		if res, err = w.Serve(t.Context(), c, nil); err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowOnce)}
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "approval_expired true" {
			t.Errorf("got %q", got)
		}
	})
}

// TestCancel checks that neither side waits for the other after the end of a request.
func TestCancel(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		p := &person{}
		res, err := w.Serve(ctx, p.caller(), w.program(`write {}`))
		if got := textOf(t, res, err); got != "interrupted" || time.Since(begun) != time.Second {
			t.Errorf("got %q after %v", got, time.Since(begun))
		}
		// The end of the program takes its question back.
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		res, err = w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return textResult(w.call(ctx, "write", `{}`)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowOnce)}
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "interrupted" {
			t.Errorf("got %q", got)
		}
	})
}

func TestStop(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		ended := make(chan error, 1)
		res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			went := w.call(ctx, "write", `{}`)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return textResult(went), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		p := &person{}
		waiting := make(chan string, 1)
		go func() {
			res, err := w.Serve(t.Context(), p.caller(), w.program(`write {}`))
			waiting <- textOf(t, res, err)
		}()
		time.Sleep(time.Second)
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := <-waiting; got != "approval_expired" {
			t.Errorf("got %q", got)
		}
		if err := <-ended; !errors.Is(err, errClosing) {
			t.Errorf("the run that nobody waits for ended with %v", err)
		}
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowOnce)}
		if _, err := w.Serve(t.Context(), c, nil); !errors.Is(err, ErrNotPending) {
			t.Errorf("got %v", err)
		}
		c.State, c.Responses = "", nil
		res, err = w.Serve(t.Context(), c, w.program(`write {}`))
		if got := textOf(t, res, err); got != "approval_expired" {
			t.Errorf("after Stop: got %q", got)
		}
	})
}

// TestLeave checks that the end of a session ends its questions, and no others.
func TestLeave(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		p, other := &person{}, &person{}
		gone, stays := make(chan string, 1), make(chan string, 1)
		go func() {
			res, err := w.Serve(t.Context(), p.caller(), w.program(`write {}`, `delete {}`))
			gone <- textOf(t, res, err)
		}()
		c := Caller{Owner: "o", Session: p, Key: "k", ByResult: true}
		res, err := w.Serve(t.Context(), c, w.program(`write {}`))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			res, err := w.Serve(ctx, other.caller(), w.program(`write {}`))
			stays <- textOf(t, res, err)
		}()
		time.Sleep(time.Second)
		begun := time.Now()
		w.Leave(p)
		if got := <-gone; got != "approval_expired approval_expired" || time.Since(begun) > time.Second {
			t.Errorf("got %q after %v", got, time.Since(begun))
		}
		c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowOnce)}
		if _, err := w.Serve(t.Context(), c, nil); !errors.Is(err, ErrNotPending) {
			t.Errorf("got %v", err)
		}
		cancel()
		if got := <-stays; got != "interrupted" {
			t.Errorf("another session: got %q", got)
		}
	})
}

// TestNobody checks that a client that cannot be asked is told the remedy, and what is
// approved once.
func TestNobody(t *testing.T) {
	remedy := func(server, tool string) string { return "Add a rule for " + server + "." + tool + " to x.json." }
	test(t, Options{Remedy: remedy}, func(t *testing.T, w *world) {
		_, err := w.Serve(t.Context(), Caller{Owner: "o", Key: "k"}, func(ctx context.Context) (*mcp.CallToolResult, error) {
			_, err := w.Approve(ctx, request("write", `{}`))
			return nil, err
		})
		if e, ok := errors.AsType[*codemode.Error](err); !ok || e.Code != codemode.ApprovalRequired || !strings.HasSuffix(e.Message, "the tool was not called. Add a rule for s.write to x.json.") {
			t.Errorf("got %v", err)
		}
		// A call of another owner than the one who is asked.
		p := &person{answers: []*mcp.ElicitResult{accept(AllowOnce)}}
		c := p.caller()
		c.Owner = "other"
		res, err := w.Serve(t.Context(), c, w.program(`write {}`))
		if got := textOf(t, res, err); got != "approval_required" || len(p.asked) != 0 {
			t.Errorf("got %q", got)
		}
	})
}

func TestPanic(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		defer func() {
			if p := recover(); !strings.Contains(fmt.Sprint(p), "as the test wants") {
				t.Errorf("got panic %v", p)
			}
		}()
		w.Serve(t.Context(), Caller{Owner: "o", ByResult: true}, func(context.Context) (*mcp.CallToolResult, error) { panic("as the test wants") })
		t.Error("got no panic")
	})
}

// TestStore checks that an approval of a call survives a restart, for that call and owner
// only, and that a damaged file approves nothing.
func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "approvals")
	serve := func(t *testing.T, w *world, owner, arguments string, answers ...*mcp.ElicitResult) string {
		p := &person{answers: answers}
		c := p.caller()
		c.Owner = owner
		res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			r := request("write", arguments)
			r.Owner = owner
			ok, err := w.Approve(ctx, r)
			return textResult(fmt.Sprint(ok, err)), nil
		})
		return textOf(t, res, err)
	}
	o := Options{Store: &Store{Dir: dir}}
	test(t, o, func(t *testing.T, w *world) {
		if got := serve(t, w, "../o", `{"a":1}`, accept(AllowAlways)); got != "true <nil>" {
			t.Errorf("got %q", got)
		}
	})
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil || bytes.Contains(content, []byte(`"a"`)) {
		t.Errorf("the file has arguments: %s, %v", content, err)
	}
	test(t, o, func(t *testing.T, w *world) {
		for _, tc := range []struct{ owner, arguments, want string }{
			{"../o", `{"a":1}`, "true <nil>"},
			{"../o", `{"a":2}`, "false <nil>"},
			{"p", `{"a":1}`, "false <nil>"},
		} {
			if got := serve(t, w, tc.owner, tc.arguments, accept(Deny)); got != tc.want {
				t.Errorf("%+v: got %q", tc, got)
			}
		}
		if !strings.Contains(w.log(), "decision=always via=remembered") {
			t.Errorf("audit log:\n%s", w.log())
		}
		// A revoked approval counts no longer, also for a server that runs.
		all, err := o.Store.List("../o")
		if err != nil || len(all) != 1 || all[0].Server != "s" || all[0].Tool != "write" {
			t.Errorf("got %+v, %v", all, err)
		}
		revoked, err := o.Store.Revoke(t.Context(), "../o", func(r Remembered) bool { return r.Tool == "write" })
		if err != nil || len(revoked) != 1 {
			t.Errorf("revoked %+v, %v", revoked, err)
		}
		if got := serve(t, w, "../o", `{"a":1}`, accept(Deny)); got != "false <nil>" {
			t.Errorf("after it was revoked: got %q", got)
		}
	})
	if err := os.WriteFile(files[0], content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	test(t, o, func(t *testing.T, w *world) {
		if got := serve(t, w, "../o", `{"a":1}`, accept(Deny)); got != "false <nil>" {
			t.Errorf("a damaged file: got %q", got)
		}
	})
}

// TestVersion checks that an approval of a call does not count for another server or tool of
// the same name.
func TestVersion(t *testing.T) {
	versions := func(w *world, all ...string) func(context.Context) (*mcp.CallToolResult, error) {
		return func(ctx context.Context) (*mcp.CallToolResult, error) {
			var went []string
			for _, version := range all {
				r := request("write", `{}`)
				r.Version = version
				ok, err := w.Approve(ctx, r)
				went = append(went, fmt.Sprint(ok, err))
			}
			return textResult(strings.Join(went, " ")), nil
		}
	}
	dir := t.TempDir()
	for _, d := range []Decision{AllowRun, AllowAlways} {
		test(t, Options{Store: &Store{Dir: dir}}, func(t *testing.T, w *world) {
			p := &person{answers: []*mcp.ElicitResult{accept(d), accept(Deny)}}
			res, err := w.Serve(t.Context(), p.caller(), versions(w, "1", "1", "2"))
			if got := textOf(t, res, err); got != "true <nil> true <nil> false <nil>" {
				t.Errorf("%s: got %q", d, got)
			}
		})
	}
	test(t, Options{Store: &Store{Dir: dir}}, func(t *testing.T, w *world) {
		p := &person{answers: []*mcp.ElicitResult{accept(Deny)}}
		res, err := w.Serve(t.Context(), p.caller(), versions(w, "1", "3"))
		if got := textOf(t, res, err); got != "true <nil> false <nil>" {
			t.Errorf("after a restart: got %q", got)
		}
	})
}

// TestServerAndTool checks that a decision on a call counts neither for a tool of that name of
// another server, with the same version and arguments, nor for another tool of the server.
func TestServerAndTool(t *testing.T) {
	requests := func(w *world, all ...string) func(context.Context) (*mcp.CallToolResult, error) {
		return func(ctx context.Context) (*mcp.CallToolResult, error) {
			var went []string
			for _, name := range all {
				server, tool, _ := strings.Cut(name, ".")
				r := request(tool, `{"a":1}`)
				r.Server = server
				ok, err := w.Approve(ctx, r)
				went = append(went, fmt.Sprint(ok, err))
			}
			return textResult(strings.Join(went, " ")), nil
		}
	}
	for d, want := range map[Decision]string{
		AllowRun:    "true <nil> true <nil> false <nil> false <nil>",
		AllowAlways: "true <nil> true <nil> false <nil> false <nil>",
		Deny:        "false <nil> false <nil> true <nil> true <nil>",
	} {
		opposite := AllowOnce
		if d != Deny {
			opposite = Deny
		}
		o := Options{Store: &Store{Dir: t.TempDir()}}
		test(t, o, func(t *testing.T, w *world) {
			p := &person{answers: []*mcp.ElicitResult{accept(d), accept(opposite), accept(opposite)}}
			res, err := w.Serve(t.Context(), p.caller(), requests(w, "s.write", "s.write", "other.write", "s.delete"))
			if got := textOf(t, res, err); got != want || len(p.asked) != 3 {
				t.Errorf("%s: got %q, asked %q, want %q", d, got, p.asked, want)
			}
		})
		if d != AllowAlways {
			continue
		}
		test(t, o, func(t *testing.T, w *world) { // what is remembered, after a restart
			p := &person{answers: []*mcp.ElicitResult{accept(Deny), accept(Deny)}}
			res, err := w.Serve(t.Context(), p.caller(), requests(w, "s.write", "other.write", "s.delete"))
			if got := textOf(t, res, err); got != "true <nil> false <nil> false <nil>" || len(p.asked) != 2 {
				t.Errorf("after a restart: got %q, asked %q", got, p.asked)
			}
		})
	}
}

// TestStore_bounded checks that the oldest approvals of an owner make room.
func TestStore_bounded(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	if err := s.file("o").Update(t.Context(), func(all *[]Remembered) error {
		for i := range maxStored {
			*all = append(*all, Remembered{SHA256: digest{byte(i), byte(i >> 8)}.String()})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.add(t.Context(), "o", "s", "t", digest{0xff, 0xff}); err != nil {
			t.Fatal(err)
		}
	}
	for hash, want := range map[digest]bool{{}: false, {1}: true, {0xff, 0xff}: true} {
		if got, err := s.has("o", hash); got != want || err != nil {
			t.Errorf("%v: got %t, %v, want %t", hash, got, err, want)
		}
	}
}

// TestAudit checks that the log has no contents.
func TestAudit(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		p := &person{answers: []*mcp.ElicitResult{accept(AllowOnce)}}
		if _, err := w.Serve(t.Context(), p.caller(), w.program(`write {"secret":"hunter2"}`)); err != nil {
			t.Fatal(err)
		}
		hash, err := hashOf(request("write", `{"secret":"hunter2"}`))
		if err != nil {
			t.Fatal(err)
		}
		want := "msg=approval who=o box=b server=s tool=write sha256=" + hash.String() + " decision=once via=elicitation\n"
		if _, got, _ := strings.Cut(w.log(), "level=INFO "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestHash_ofEachPart: no part of a call can be taken for another one.
func TestHash_ofEachPart(t *testing.T) {
	seen := map[digest]codemode.Request{}
	for _, r := range []codemode.Request{
		{Server: "ab", Tool: "c", Version: "d"}, {Server: "a", Tool: "bc", Version: "d"}, {Server: "ab", Tool: "cd"}, {Server: "abc", Version: "d"},
	} {
		r.Arguments = json.RawMessage("{}")
		h, err := hashOf(r)
		if other, ok := seen[h]; ok || err != nil {
			t.Errorf("%+v has the digest of %+v, %v", r, other, err)
		}
		seen[h] = r
	}
}
