package approval

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestDecisions_denyWins checks that a call that was denied is not made in the same run under a
// later approval of its tool, of the same call in another run, or in the same answer.
func TestDecisions_denyWins(t *testing.T) {
	// retry makes a call again after first has returned.
	retry := func(w *world, first func(context.Context) (*mcp.CallToolResult, error), then ...string) func(context.Context) (*mcp.CallToolResult, error) {
		return func(ctx context.Context) (*mcp.CallToolResult, error) {
			if _, err := first(ctx); err != nil {
				return nil, err
			}
			return w.program(then...)(ctx)
		}
	}
	const a, b, c = `write {"path":"a"}`, `write {"path":"b"}`, `write {"path":"c"}`
	for name, answers := range map[string][]*mcp.ElicitResult{
		"in the same answer":              {accept(Deny, AllowRun)},
		"in the same answer, other order": {accept(AllowRun, Deny)},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				p := &person{answers: answers}
				res, err := w.Serve(t.Context(), p.caller(), retry(w, w.parallel(a, b), a, b, c))
				// The order of parallel calls in a question is not defined.
				if got := textOf(t, res, err); got != "false true true" && got != "true false true" {
					t.Errorf("got %q", got)
				}
			})
		})
	}
	t.Run("in a later answer", func(t *testing.T) {
		test(t, Options{}, func(t *testing.T, w *world) {
			p := &person{answers: []*mcp.ElicitResult{accept(Deny), accept(AllowRun)}}
			res, err := w.Serve(t.Context(), p.caller(), w.program(a, b, a, c))
			if got := textOf(t, res, err); got != "false true false true" {
				t.Errorf("got %q", got)
			}
		})
	})
	t.Run("in another run", func(t *testing.T) {
		test(t, Options{Store: &Store{Dir: t.TempDir()}}, func(t *testing.T, w *world) {
			p := &person{answers: []*mcp.ElicitResult{accept(Deny)}}
			other := &person{answers: []*mcp.ElicitResult{accept(AllowAlways)}}
			res, err := w.Serve(t.Context(), p.caller(), retry(w, func(ctx context.Context) (*mcp.CallToolResult, error) {
				if _, err := w.program(a)(ctx); err != nil {
					return nil, err
				}
				return w.Serve(t.Context(), other.caller(), w.program(a))
			}, a))
			if got := textOf(t, res, err); got != "false" {
				t.Errorf("got %q", got)
			}
			if len(p.asked) != 1 || len(other.asked) != 1 {
				t.Errorf("asked %q and %q", p.asked, other.asked)
			}
			res, err = w.Serve(t.Context(), other.caller(), w.program(a))
			if got := textOf(t, res, err); got != "true" {
				t.Errorf("a future run: got %q", got)
			}
		})
	})
	t.Run("for the same call that waits behind the question", func(t *testing.T) {
		test(t, Options{}, func(t *testing.T, w *world) {
			p := &person{answers: []*mcp.ElicitResult{accept(Deny, AllowRun)}}
			slow := p.caller()
			slow.Elicit = func(ctx context.Context, q *mcp.ElicitParams) (*mcp.ElicitResult, error) {
				time.Sleep(time.Second)
				return p.caller().Elicit(ctx, q)
			}
			// The third and the fourth call come when the question is open.
			res, err := w.Serve(t.Context(), slow, func(ctx context.Context) (*mcp.CallToolResult, error) {
				went := make([]string, 4)
				var wg sync.WaitGroup
				for i, arguments := range []string{`{"path":"a"}`, `{"path":"b"}`, `{"path":"a"}`, `{"path":"c"}`} {
					wg.Go(func() { went[i] = w.call(ctx, "write", arguments) })
					time.Sleep([]time.Duration{batchWindow / 2, batchWindow * 3 / 2, batchWindow / 2, 0}[i])
				}
				wg.Wait()
				return textResult(strings.Join(went, " ")), nil
			})
			if got := textOf(t, res, err); got != "false true false true" || len(p.asked) != 1 {
				t.Errorf("got %q, asked %q", got, p.asked)
			}
		})
	})
}
