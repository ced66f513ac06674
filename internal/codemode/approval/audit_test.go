package approval

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var auditLine = regexp.MustCompile(`msg=approval .* decision=(\S+) via=("[^"]*"|\S+)\n`)

// decided returns the decision of each line of the audit log, and how it was made.
func (w *world) decided() (all []string) {
	for _, m := range auditLine.FindAllStringSubmatch(w.log(), -1) {
		all = append(all, m[1]+" "+strings.Trim(m[2], `"`))
	}
	return all
}

// wantDecided checks the decisions in the audit log. A program may go on before the line of a call
// is written, so that they have no order.
func (w *world) wantDecided(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := w.decided(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("got the decisions %q, want %q", got, want)
	}
}

// TestAudit_Answers: the audit log has the answer of a client, and how it came. A call that an
// earlier answer decides has that answer.
func TestAudit_Answers(t *testing.T) {
	empty := &mcp.ElicitResult{Action: "accept"}
	for _, tc := range []struct {
		name    string
		store   bool
		calls   []string
		answers []*mcp.ElicitResult
		want    []string // HOW stands for how the client was asked
	}{
		{"once", false, []string{`write {}`}, []*mcp.ElicitResult{accept(AllowOnce)}, []string{"once HOW"}},
		{"run", false, []string{`write {"a":1}`, `write {"a":2}`}, []*mcp.ElicitResult{accept(AllowRun)}, []string{"run HOW", "run run"}},
		{"always", false, []string{`write {}`, `write {}`}, []*mcp.ElicitResult{accept(AllowAlways)}, []string{"always HOW", "always run"}},
		{"remembered", true, []string{`write {}`, `write {}`}, []*mcp.ElicitResult{accept(AllowAlways)}, []string{"always HOW", "always remembered"}},
		{"deny", false, []string{`write {}`}, []*mcp.ElicitResult{accept(Deny)}, []string{"deny HOW"}},
		{"decline", false, []string{`write {}`}, []*mcp.ElicitResult{{Action: "decline"}}, []string{"deny HOW"}},
		{"closed", false, []string{`write {}`}, []*mcp.ElicitResult{{Action: "cancel"}}, []string{"dismissed HOW"}},
		{"no valid decision", false, []string{`write {}`}, []*mcp.ElicitResult{empty, accept("yes"), empty}, []string{"dismissed HOW"}},
	} {
		for _, how := range []string{"elicitation", "input_required"} {
			t.Run(tc.name+" by "+how, func(t *testing.T) {
				var o Options
				if tc.store {
					o.Store = &Store{Dir: t.TempDir()}
				}
				test(t, o, func(t *testing.T, w *world) {
					p := &person{answers: tc.answers}
					c := p.caller()
					if how != "elicitation" {
						c = Caller{Owner: "o", Key: "k", ByResult: true}
					}
					res, err := w.Serve(t.Context(), c, w.program(tc.calls...))
					for i := 0; c.ByResult && i < len(tc.answers) && err == nil; i++ {
						c.State, c.Responses = res.RequestState, mcp.InputResponseMap{answerKey(res.RequestState): tc.answers[i]}
						res, err = w.Serve(t.Context(), c, nil)
					}
					if err != nil {
						t.Fatal(err)
					}
					var want []string
					for _, s := range tc.want {
						want = append(want, strings.ReplaceAll(s, "HOW", how))
					}
					w.wantDecided(t, want...)
				})
			})
		}
	}
}

// TestAudit_WaitsThatEnd: the audit log says what ended the wait of a call that got no answer.
func TestAudit_WaitsThatEnd(t *testing.T) {
	byResult := Caller{Owner: "o", Session: "mine", Key: "k", ByResult: true}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, w *world)
		want string
	}{
		{"the question expires", func(t *testing.T, w *world) {
			_, err := w.Serve(t.Context(), (&person{}).caller(), w.program(`write {}`))
			if err != nil {
				t.Error(err)
			}
		}, "expired expired"},
		{"the client reports an error", func(t *testing.T, w *world) {
			c := Caller{Owner: "o", Key: "k", Elicit: func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
				return nil, errors.New("no user here")
			}}
			if _, err := w.Serve(t.Context(), c, w.program(`write {}`)); err != nil {
				t.Error(err)
			}
		}, "refused elicitation"},
		{"the client cancels the request", func(t *testing.T, w *world) {
			ctx, cancel := context.WithCancel(t.Context())
			c := Caller{Owner: "o", Key: "k", Elicit: func(ctx context.Context, _ *mcp.ElicitParams) (*mcp.ElicitResult, error) {
				cancel()
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			if _, err := w.Serve(ctx, c, w.program(`write {}`)); err != nil {
				t.Error(err)
			}
		}, "withdrawn end of the call"},
		{"the session ends", func(t *testing.T, w *world) {
			if res, err := w.Serve(t.Context(), byResult, w.program(`write {}`)); err != nil || res.RequestState == "" {
				t.Fatalf("got %+v, %v", res, err)
			}
			w.Leave("mine")
		}, "expired end of the session"},
		{"the server stops", func(t *testing.T, w *world) {
			if res, err := w.Serve(t.Context(), byResult, w.program(`write {}`)); err != nil || res.RequestState == "" {
				t.Fatalf("got %+v, %v", res, err)
			}
			w.Stop()
		}, "expired shutdown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test(t, Options{}, func(t *testing.T, w *world) {
				tc.do(t, w)
				w.wantDecided(t, tc.want)
			})
		})
	}
}

// TestAudit_CallsWithoutDecision: calls that are refused before the client is asked, and repetitions
// of a call that was denied, leave no line: a program could fill the disk with them.
func TestAudit_CallsWithoutDecision(t *testing.T) {
	asked := Caller{Owner: "o", Key: "k", ByResult: true}
	again := []string{`write {"a":1}`, `write {"a":1}`, `write {"a":1}`}
	var many, once []string
	var answers []*mcp.ElicitResult
	for i := range maxElicitations + 3 {
		many = append(many, fmt.Sprintf(`write {"a":%d}`, i))
		if i < maxElicitations {
			answers, once = append(answers, accept(AllowOnce)), append(once, "once elicitation")
		}
	}
	for _, tc := range []struct {
		name  string
		do    func(w *world) (*mcp.CallToolResult, error)
		went  string
		lines []string
	}{
		{"denied before", func(w *world) (*mcp.CallToolResult, error) {
			return w.Serve(w.t.Context(), (&person{answers: []*mcp.ElicitResult{accept(Deny)}}).caller(), w.program(again...))
		}, "false false false", []string{"deny elicitation"}},
		{"a client that cannot be asked", func(w *world) (*mcp.CallToolResult, error) {
			return w.program(again...)(w.t.Context())
		}, "approval_required approval_required approval_required", nil},
		{"too many programs", func(w *world) (*mcp.CallToolResult, error) {
			if _, err := w.Serve(w.t.Context(), asked, w.program(again...)); err != nil {
				return nil, err
			}
			return w.Serve(w.t.Context(), asked, w.program(again...))
		}, "approval_required approval_required approval_required", nil},
		{"too many questions", func(w *world) (*mcp.CallToolResult, error) {
			return w.Serve(w.t.Context(), (&person{answers: answers}).caller(), w.program(many...))
		}, strings.Repeat("true ", maxElicitations) + "approval_required approval_required approval_required", once},
		{"a request that is too large", func(w *world) (*mcp.CallToolResult, error) {
			c := asked
			c.Size = maxSize + 1
			return w.Serve(w.t.Context(), c, w.program(again...))
		}, "approval_required approval_required approval_required", nil},
		{"after a question that expired", func(w *world) (*mcp.CallToolResult, error) {
			return w.Serve(w.t.Context(), (&person{}).caller(), w.program(again...))
		}, "approval_expired approval_expired approval_expired", []string{"expired expired"}},
		{"a server that stops", func(w *world) (*mcp.CallToolResult, error) {
			return w.Serve(w.t.Context(), (&person{}).caller(), func(ctx context.Context) (*mcp.CallToolResult, error) {
				w.Stop()
				return w.program(again...)(ctx)
			})
		}, "approval_expired approval_expired approval_expired", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test(t, Options{PerOwner: 1, Expiry: time.Minute}, func(t *testing.T, w *world) {
				res, err := tc.do(w)
				if got := textOf(t, res, err); got != tc.went {
					t.Fatalf("got %q, want %q", got, tc.went)
				}
				w.wantDecided(t, tc.lines...)
			})
		})
	}
}

// TestAudit_CallsBehindAQuestion: calls that wait behind an open question have a line if its answer
// allows them, and none if they end with it: a program could fill the disk with them.
func TestAudit_CallsBehindAQuestion(t *testing.T) {
	var many, same, ended []string
	for i := range 3 * maxGroups {
		many, same = append(many, fmt.Sprintf(`write {"a":%d}`, i)), append(same, `write {"a":1}`)
	}
	for range maxGroups {
		ended = append(ended, "expired expired")
	}
	for _, tc := range []struct {
		name         string
		first, later []string // calls of the question, and those that begin while it is open
		answer       *mcp.ElicitResult
		want         []string
	}{
		{"more than a question has, which expires", many, nil, nil, ended},
		{"repetitions of a call that is denied", same[:1], same, accept(Deny), []string{"deny elicitation"}},
		{"other calls of a tool that is allowed", many[:1], many[1:3], accept(AllowRun), []string{"run elicitation", "run run", "run run"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test(t, Options{Expiry: time.Minute}, func(t *testing.T, w *world) {
				c := Caller{Owner: "o", Key: "k", Elicit: func(ctx context.Context, _ *mcp.ElicitParams) (*mcp.ElicitResult, error) {
					if tc.answer == nil {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(10 * time.Second)
					return tc.answer, nil
				}}
				_, err := w.Serve(t.Context(), c, func(ctx context.Context) (*mcp.CallToolResult, error) {
					done := make(chan struct{})
					go func() {
						defer close(done)
						time.Sleep(5 * time.Second)
						_, _ = w.parallel(tc.later...)(ctx)
					}()
					defer func() { <-done }()
					return w.parallel(tc.first...)(ctx)
				})
				if err != nil {
					t.Fatal(err)
				}
				w.wantDecided(t, tc.want...)
			})
		})
	}
}
