package approval

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// TestUndecided checks that an answer that lacks a decision loses nothing: the program goes on
// waiting, its client is asked again and told what is missing, with a state of its own, and a
// decision that comes then counts.
func TestUndecided(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(state string) mcp.InputResponseMap
		want   string // in the text of the next question
	}{
		"no choice":         {func(s string) mcp.InputResponseMap { return mcp.InputResponseMap{answerKey(s): accept()} }, "had no decision for call_1 (once, run, always or deny), call_2 (once, run, always or deny)."},
		"one of two":        {func(s string) mcp.InputResponseMap { return mcp.InputResponseMap{answerKey(s): accept(AllowOnce)} }, "had no decision for call_2 (once, run, always or deny)."},
		"an unknown choice": {func(s string) mcp.InputResponseMap { return mcp.InputResponseMap{answerKey(s): accept("all", Deny)} }, `had "all" for call_1 instead of once, run, always or deny. Nothing`},
		"a yes for one":     {func(s string) mcp.InputResponseMap { return mcp.InputResponseMap{answerKey(s): accept("yes")} }, `had "yes" for call_1 instead of once, run, always or deny and no decision for call_2 (once, run, always or deny).`},
		"a hostile choice": {func(s string) mcp.InputResponseMap {
			return mcp.InputResponseMap{answerKey(s): accept("[a](http://b)\n\x1b[31m"+Decision(strings.Repeat("x", 10_000)), Deny)}
		}, `had "[a]\u0028http://b)\n\x1b[31mxxx`},
		"other types": {func(s string) mcp.InputResponseMap {
			return mcp.InputResponseMap{answerKey(s): &mcp.ElicitResult{Action: "accept", Content: map[string]any{field(0): true, field(1): map[string]any{"x": 1}}}}
		}, "had true for call_1 instead of once, run, always or deny and an object for call_2 instead of once, run, always or deny."},
		"an unknown action": {func(s string) mcp.InputResponseMap {
			return mcp.InputResponseMap{answerKey(s): &mcp.ElicitResult{Action: "ok"}}
		}, `had the action "ok" instead of`},
		"another key":  {func(string) mcp.InputResponseMap { return mcp.InputResponseMap{"other": accept(AllowOnce, AllowOnce)} }, "had no result of this elicitation."},
		"another type": {func(s string) mcp.InputResponseMap { return mcp.InputResponseMap{answerKey(s): nil} }, "had no result of this elicitation."},
		"no answer":    {func(string) mcp.InputResponseMap { return nil }, "had no result of this elicitation."},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				c := Caller{Owner: "o", Key: "k", ByResult: true}
				first, err := w.Serve(t.Context(), c, w.parallel(`write {"a":1}`, `write {"a":2}`))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(4 * time.Minute)
				c.State, c.Responses = first.RequestState, tc.answer(first.RequestState)
				second, err := w.Serve(t.Context(), c, nil)
				if err != nil || second.RequestState == "" || second.RequestState == first.RequestState || len(second.InputRequests) != 1 {
					t.Fatalf("got %+v, %v, want a question of its own", second, err)
				}
				q, ok := second.InputRequests[answerKey(second.RequestState)].(*mcp.ElicitParams)
				if !ok || !strings.Contains(q.Message, tc.want) || !strings.Contains(q.Message, `{"a":1}`) && !strings.Contains(q.Message, "a: 1") {
					t.Errorf("the question is %+v, want %q in it", q, tc.want)
				}
				synctest.Wait()
				if now, _ := w.parking(); now != 2 {
					t.Errorf("%d calls are parked", now)
				}
				time.Sleep(4 * time.Minute) // the question says how long there is for an answer
				c.State, c.Responses = second.RequestState, mcp.InputResponseMap{answerKey(second.RequestState): accept(AllowOnce, Deny)}
				res, err := w.Serve(t.Context(), c, nil)
				if got := textOf(t, res, err); got != "true false" && got != "false true" {
					t.Errorf("got %q", got)
				}
			})
		})
	}
}

// TestUndecided_last checks that the calls without a decision in the last answer count as
// dismissed, with an error that says why, and that the decisions that it has count.
func TestUndecided_last(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		p := &person{answers: []*mcp.ElicitResult{accept(), accept(), accept(AllowOnce)}}
		res, err := w.Serve(t.Context(), p.caller(), func(ctx context.Context) (*mcp.CallToolResult, error) {
			failed := make(chan error, 2)
			for _, arguments := range []string{`{"a":1}`, `{"a":2}`} {
				go func() {
					_, err := w.Approve(ctx, request("write", arguments))
					failed <- err
				}()
			}
			text := "approved"
			for range 2 {
				if err := <-failed; err != nil {
					text += "; " + err.(*codemode.Error).Message
				}
			}
			return textResult(text), nil
		})
		const want = "approved; the answer of the client to the question about the call had no decision for call_2 (once, run, always or deny); the tool was not called. That is no denial: repeat the call to ask again"
		if got := textOf(t, res, err); got != want || len(p.asked) != 1+maxRepeats {
			t.Errorf("got %q after %d questions, want %q", got, len(p.asked), want)
		}
	})
}

// TestUndecided_KeepsDenials checks that a call which an incomplete answer denies stays denied
// in its run if the next form is dismissed, and that a later decision about it counts.
func TestUndecided_KeepsDenials(t *testing.T) {
	cancelled := &mcp.ElicitResult{Action: "cancel"}
	for name, tc := range map[string]struct {
		second *mcp.ElicitResult
		want   string
	}{
		"dismissed": {cancelled, "denied denied"},
		"allowed":   {accept(AllowOnce, Deny), "approved dismissed"},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				// The repeated call is asked only if nothing denies it.
				p := &person{answers: []*mcp.ElicitResult{accept(Deny), tc.second, cancelled}}
				res, err := w.Serve(t.Context(), p.caller(), func(ctx context.Context) (*mcp.CallToolResult, error) {
					call := func(arguments string) string {
						switch approved, err := w.Approve(ctx, request("write", arguments)); {
						case err != nil:
							return "dismissed"
						case approved:
							return "approved"
						}
						return "denied"
					}
					first, other := make(chan string, 1), make(chan string, 1)
					go func() { first <- call(`{"a":1}`) }()
					time.Sleep(time.Millisecond) // it is the first of the form
					go func() { other <- call(`{"a":2}`) }()
					text := <-first
					<-other
					return textResult(text + " " + call(`{"a":1}`)), nil
				})
				if got := textOf(t, res, err); got != tc.want {
					t.Errorf("got %q after %d questions, want %q", got, len(p.asked), tc.want)
				}
			})
		})
	}
}

// TestRecall checks that a client which repeats its request gets the open question again, that the
// approver then refuses an answer to the earlier one, and that it gives the question to no other
// client.
func TestRecall(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Session: "mine", Key: "k", Program: "p", ByResult: true}
		first, err := w.Serve(t.Context(), c, w.program(`write {}`))
		if err != nil || first.RequestState == "" {
			t.Fatalf("got %+v, %v", first, err)
		}
		if got, _ := w.Waiting("o", "b"); !got.Recallable {
			t.Errorf("got %+v, want a question that can be asked again", got)
		}
		if res := w.Recall(c, "b"); res != nil {
			t.Errorf("a request that was sent before the question was asked: got %+v", res)
		}
		time.Sleep(4 * time.Minute)
		c.Began = time.Now()
		for name, f := range map[string]func(c *Caller){
			"another owner":                  func(c *Caller) { c.Owner = "other" },
			"another session":                func(c *Caller) { c.Session = "other" },
			"another request":                func(c *Caller) { c.Program = "other" },
			"a client that is asked at once": func(c *Caller) { c.ByResult = false },
			"a task":                         func(c *Caller) { c.Task = true },
			"an answer":                      func(c *Caller) { c.State = first.RequestState },
		} {
			other := c
			f(&other)
			if res := w.Recall(other, "b"); res != nil {
				t.Errorf("%s: got %+v", name, res)
			}
		}
		if res := w.Recall(c, "other"); res != nil {
			t.Errorf("another box: got %+v", res)
		}
		again := w.Recall(c, "b")
		if again == nil || again.RequestState == first.RequestState {
			t.Fatalf("got %+v", again)
		}
		message := func(res *mcp.CallToolResult) string {
			return res.InputRequests[answerKey(res.RequestState)].(*mcp.ElicitParams).Message
		}
		if got := message(again); !strings.HasPrefix(got, "The client has repeated its request. ") || !strings.HasSuffix(got, message(first)) {
			t.Errorf("asked again:\n%s", got)
		}
		answer := func(state string) Caller {
			c := c
			c.State, c.Responses = state, mcp.InputResponseMap{answerKey(state): accept(AllowOnce)}
			return c
		}
		if _, err := w.Serve(t.Context(), answer(first.RequestState), nil); !errors.Is(err, ErrNotPending) {
			t.Errorf("an answer to the earlier result: got %v", err)
		}
		time.Sleep(4 * time.Minute) // the time has begun again
		res, err := w.Serve(t.Context(), answer(again.RequestState), nil)
		if got := textOf(t, res, err); got != "true" {
			t.Errorf("got %q", got)
		}
		if res := w.Recall(c, "b"); res != nil {
			t.Errorf("after the answer: got %+v", res)
		}
	})
}

// TestRecall_bounds checks that a question is not asked again without end, and that those of a task
// stay with the task.
func TestRecall_bounds(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		if _, err := w.Serve(t.Context(), c, w.program(`write {}`)); err != nil {
			t.Fatal(err)
		}
		n := 1
		for c.Began = time.Now(); n < 2*maxRounds && w.Recall(c, "b") != nil; n++ {
			c.Began = time.Now()
		}
		if got, _ := w.Waiting("o", "b"); got.Recallable {
			t.Error("a question that is asked no more counts as one that is asked again")
		}
		if n != maxRounds {
			t.Errorf("asked %d times, want %d", n, maxRounds)
		}
	})
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true, Task: true}
		if _, err := w.Serve(t.Context(), c, w.program(`write {}`)); err != nil {
			t.Fatal(err)
		}
		c.Task = false
		if res := w.Recall(c, "b"); res != nil {
			t.Errorf("got the question of a task: %+v", res)
		}
		if got, ok := w.Waiting("o", "b"); !ok || got.Recallable || !got.Task {
			t.Errorf("got %+v, %t", got, ok)
		}
	})
}

// TestAttendant checks that code finds the request that waits for it, also after an answer.
func TestAttendant(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		if _, ok := AttendantOf(t.Context()); ok {
			t.Error("a context of no run has an attendant")
		}
		var seen []any
		look := func(ctx context.Context) {
			attendant, ok := AttendantOf(ctx)
			seen = append(seen, attendant, ok)
		}
		c := Caller{Owner: "o", Key: "k", ByResult: true, Attendant: "first"}
		res, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			look(ctx)
			asking := make(chan string)
			go func() { asking <- w.call(ctx, "write", "{}") }()
			time.Sleep(time.Second)
			look(ctx)
			went := <-asking
			look(ctx)
			return textResult(went), nil
		})
		if err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		time.Sleep(2 * time.Second)
		c.State, c.Responses, c.Attendant = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): accept(AllowOnce)}, "second"
		res, err = w.Serve(t.Context(), c, nil)
		if got := textOf(t, res, err); got != "true" {
			t.Errorf("got %q", got)
		}
		if want := []any{"first", true, nil, true, "second", true}; !slices.Equal(seen, want) {
			t.Errorf("got %v, want %v", seen, want)
		}
	})
}
