package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// TestWaiting checks that the server knows which tools a program waits for and how long, as long
// as it waits.
func TestWaiting(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		c := Caller{Owner: "o", Key: "k", ByResult: true}
		first, err := w.Serve(t.Context(), c, w.parallel(`write {"a":1}`, `write {"a":2}`, `delete {}`))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		got, ok := w.Waiting("o", "b")
		if !ok || !slices.Equal(got.Tools, []string{"s.delete", "s.write"}) || got.More != 0 || got.Left != 4*time.Minute {
			t.Errorf("got %+v, %t", got, ok)
		}
		for _, other := range [][2]string{{"o", "other"}, {"other", "b"}} {
			if got, ok := w.Waiting(other[0], other[1]); ok {
				t.Errorf("%s: got %+v", other, got)
			}
		}
		c.State, c.Responses = first.RequestState, mcp.InputResponseMap{answerKey(first.RequestState): accept()}
		again, err := w.Serve(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := w.Waiting("o", "b"); !ok || got.Left != 5*time.Minute {
			t.Errorf("asked again: got %+v, %t", got, ok)
		}
		c.State, c.Responses = again.RequestState, mcp.InputResponseMap{answerKey(again.RequestState): &mcp.ElicitResult{Action: "decline"}}
		if res, err := w.Serve(t.Context(), c, nil); err != nil || textOf(t, res, err) != "false false false" {
			t.Errorf("got %+v, %v", res, err)
		}
		if got, ok := w.Waiting("o", "b"); ok {
			t.Errorf("after the answer: got %+v", got)
		}
	})
}

// TestElicit_fails checks that a program whose client fails to ask learns that nothing was called,
// what the client said, and how its user can allow the call without a question.
func TestElicit_fails(t *testing.T) {
	o := Options{Remedy: func(server, tool string) string { return "Allow " + server + "." + tool + " by a rule." }}
	test(t, o, func(t *testing.T, w *world) {
		asked := 0
		c := Caller{Owner: "o", Elicit: func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			asked++
			return nil, errors.New("TypeError: x is\nundefined")
		}}
		var failure error
		_, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
			_, failure = w.Approve(ctx, request("write", `{}`))
			return textResult(""), nil
		})
		e, ok := errors.AsType[*codemode.Error](failure)
		if err != nil || asked != 1 || !ok || e.Code != codemode.ApprovalRequired {
			t.Fatalf("got %v, %v after %d questions", failure, err, asked)
		}
		for _, part := range []string{"the tool was not called", "Allow s.write by a rule.", `The client reported: TypeError: x is`} {
			if !strings.Contains(e.Message, part) {
				t.Errorf("%q is not in %q", part, e.Message)
			}
		}
	})
}

// TestBatch checks that calls which come one after the other share a question, however long they
// take together, up to a bound, and that a question that is full does not wait.
func TestBatch(t *testing.T) {
	for name, tc := range map[string]struct {
		pause time.Duration // between the calls
		calls int           // negative: of the same arguments
		waits time.Duration // until the first question
		first int           // calls in it
	}{
		"slow calls":  {60 * time.Millisecond, 5, 4*60*time.Millisecond + batchWindow, 5},
		"a full form": {0, maxGroups + 1, 0, maxGroups},
		"without end": {90 * time.Millisecond, -30, maxBatch, 1},
		"a bound":     {99 * time.Millisecond, maxGroups, 7 * 99 * time.Millisecond, maxGroups},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				begun := time.Now()
				var waited time.Duration
				asked := 0
				c := Caller{Owner: "o", Elicit: func(_ context.Context, q *mcp.ElicitParams) (*mcp.ElicitResult, error) {
					if n := len(q.RequestedSchema.(map[string]any)["properties"].(map[string]any)); asked == 0 {
						asked, waited = n, time.Since(begun)
					}
					return &mcp.ElicitResult{Action: "decline"}, nil
				}}
				if _, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
					for i := range max(tc.calls, -tc.calls) {
						if i > 0 {
							time.Sleep(tc.pause)
						}
						if tc.calls < 0 {
							i = 0
						}
						go w.call(ctx, "write", fmt.Sprintf(`{"a":%d}`, i))
						synctest.Wait()
					}
					time.Sleep(time.Minute)
					return textResult(""), nil
				}); err != nil {
					t.Fatal(err)
				}
				if asked != tc.first || waited != tc.waits {
					t.Errorf("asked about %d calls after %v, want %d after %v", asked, waited, tc.first, tc.waits)
				}
			})
		})
	}
}
