package approval

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

func TestLimits(t *testing.T) {
	test(t, Options{PerOwner: 2, All: 3, Expiry: time.Minute}, func(t *testing.T, w *world) {
		begin := func(owner string) (*mcp.CallToolResult, error) {
			return w.Serve(t.Context(), Caller{Owner: owner, Key: "k", ByResult: true}, func(ctx context.Context) (*mcp.CallToolResult, error) {
				r := request("write", `{}`)
				r.Owner = owner
				_, err := w.Approve(ctx, r)
				return textResult(fmt.Sprint(err)), nil
			})
		}
		var first *mcp.CallToolResult
		for range 2 {
			res, err := begin("o")
			if err != nil || res.RequestState == "" {
				t.Fatalf("got %+v, %v", res, err)
			}
			first = res
		}
		if q := first.InputRequests[answerKey(first.RequestState)].(*mcp.ElicitParams); !strings.Contains(q.Message, "1 other program waits for your approval") {
			t.Errorf("the question does not name the other program:\n%s", q.Message)
		}
		res, err := begin("o")
		if got := textOf(t, res, err); !strings.Contains(got, "too many programs wait for approval") {
			t.Errorf("the third run of an owner: got %q", got)
		}
		if res, err = begin("p"); err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
		res, err = begin("q")
		if got := textOf(t, res, err); !strings.Contains(got, "too many programs wait for approval") {
			t.Errorf("the fourth run: got %q", got)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		// The questions have expired: they make room, though their results are kept.
		if res, err = begin("o"); err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v", res, err)
		}
	})
	test(t, Options{}, func(t *testing.T, w *world) {
		p := &person{}
		var calls []string
		for i := range maxElicitations + 1 {
			calls = append(calls, fmt.Sprintf(`write {"a":%d}`, i))
			p.answers = append(p.answers, accept(AllowOnce))
		}
		res, err := w.Serve(t.Context(), p.caller(), w.program(calls...))
		if got := textOf(t, res, err); !strings.HasSuffix(got, "true approval_required") || len(p.asked) != maxElicitations {
			t.Errorf("got %q after %d questions", got, len(p.asked))
		}
	})
}

// TestLimits_eviction checks whose late result makes room for a question if all places are taken:
// that of the owner with the most, whose program has ended, and none of an owner who has no more
// than the one who asks.
func TestLimits_eviction(t *testing.T) {
	// A place is an owner's run whose question has expired.
	type place struct {
		owner string
		ended bool // the program has ended, and its result is kept
	}
	for _, tc := range []struct {
		name    string
		places  []place // oldest first
		asks    string
		waiting int // open questions of the owner who asks
		evicted int // index of the place that is given up; -1: the question is refused
	}{
		{"the owner with the most", []place{{"a", true}, {"b", true}, {"b", true}, {"b", true}}, "c", 0, 1},
		{"a program that still runs", []place{{"a", true}, {"b", false}, {"b", true}, {"b", true}}, "c", 0, 2},
		{"only programs that still run", []place{{"a", false}, {"b", false}, {"b", false}, {"b", false}}, "c", 0, -1},
		{"an owner with less", []place{{"a", true}, {"b", false}}, "c", 2, -1},
		{"an owner with as much", []place{{"a", true}, {"a", true}}, "c", 2, -1},
		{"own results", []place{{"a", true}, {"c", true}, {"c", true}, {"a", true}}, "c", 0, 1},
		{"own programs that still run", []place{{"c", false}, {"c", false}, {"c", false}}, "c", 0, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test(t, Options{PerOwner: 3, All: 4, Expiry: time.Minute}, func(t *testing.T, w *world) {
				ask := func(owner string, ended bool) *mcp.CallToolResult {
					t.Helper()
					res, err := w.Serve(t.Context(), Caller{Owner: owner, Key: "k", ByResult: true}, func(ctx context.Context) (*mcp.CallToolResult, error) {
						r := request("write", `{}`)
						r.Owner = owner
						_, err := w.Approve(ctx, r)
						if !ended {
							<-ctx.Done()
						}
						return textResult(fmt.Sprint(err)), nil
					})
					if err != nil {
						t.Fatal(err)
					}
					return res
				}
				var states []string
				for _, p := range tc.places {
					state := ask(p.owner, p.ended).RequestState
					if state == "" {
						t.Fatalf("%+v takes no place", p)
					}
					states = append(states, state)
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Minute + time.Second) // all of them expire
				synctest.Wait()
				for range tc.waiting {
					if ask(tc.asks, true).RequestState == "" {
						t.Fatal("the question is refused")
					}
				}
				res := ask(tc.asks, true)
				if refused := res.RequestState == ""; refused != (tc.evicted < 0) || refused && !strings.Contains(textOf(t, res, nil), "too many programs wait") {
					t.Errorf("got %+v", res)
				}
				synctest.Wait()
				for i, state := range states {
					w.Approver.mu.Lock()
					q := w.byToken[state]
					w.Approver.mu.Unlock()
					if kept := q != nil; kept == (i == tc.evicted) {
						t.Errorf("place %d: its result is kept: %t", i, kept)
					}
				}
			})
		})
	}
}

// TestExpired_OwnerWithTheMostLosesTheOldest: an owner whose runs expire by the thousand pushes out
// no other owner's.
func TestExpired_OwnerWithTheMostLosesTheOldest(t *testing.T) {
	a := New(Options{})
	defer a.Stop()
	callerOf := func(owner string, n int) Caller { return Caller{Owner: owner, Key: fmt.Sprint(n), ByResult: true} }
	add := func(owner string, n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		id := callerOf(owner, n).id(fmt.Sprint(n))
		a.expired.Add(id, &Expired{At: time.Now(), Calls: n, requests: []requestID{id}})
	}
	const others = 3
	for n := range others {
		add("alice", n)
	}
	for n := range 2 * maxExpired {
		add("mallory", n)
	}
	add("mallory", 2*maxExpired-1) // one that is there already
	if n := a.expired.Len(); n != maxExpired {
		t.Errorf("%d expired runs are remembered, want %d", n, maxExpired)
	}
	first := maxExpired + others // of mallory's
	for n, want := range map[int]bool{first - 1: false, first: true, 2*maxExpired - 1: true} {
		if _, ok := a.Expired(callerOf("mallory", n)); ok != want {
			t.Errorf("run %d of the owner with the most is remembered: %t, want %t", n, ok, want)
		}
	}
	for n := range others {
		if e, ok := a.Expired(callerOf("alice", n)); !ok || e.Calls != n {
			t.Errorf("run %d of another owner: %+v, %t", n, e, ok)
		}
	}
}

// TestAudit_UnaskedCallsLeaveNoLine: calls that a program takes back before anybody is asked leave no
// line in the audit log.
func TestAudit_UnaskedCallsLeaveNoLine(t *testing.T) {
	var lines bytes.Buffer
	a := New(Options{Audit: slog.New(slog.NewJSONHandler(&lines, nil))})
	defer a.Stop()
	_, err := a.Serve(t.Context(), Caller{Owner: "bob", Key: "k", ByResult: true}, func(ctx context.Context) (*mcp.CallToolResult, error) {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		for i := range 100 {
			if ok, err := a.Approve(gone, codemode.Request{Identity: codemode.Identity{Owner: "bob", Box: "b"}, Server: "s", Tool: "t", Version: "v", Arguments: []byte(strconv.Itoa(i))}); ok || err == nil {
				t.Errorf("call %d: got %v, %v", i, ok, err)
			}
		}
		return &mcp.CallToolResult{}, nil
	})
	if err != nil || lines.Len() > 0 {
		t.Errorf("got %v, and the audit log has %.300s", err, lines.String())
	}
}

// TestLimits_largeRequest: a program that would wait without a request keeps little of the one that
// began it. A request that waits is counted as long as it does.
func TestLimits_largeRequest(t *testing.T) {
	test(t, Options{}, func(t *testing.T, w *world) {
		for size, refused := range map[int]bool{maxSize: false, maxSize + 1: true} {
			res, err := w.Serve(t.Context(), Caller{Owner: "o", Key: "k", ByResult: true, Size: size}, w.program("write {}"))
			if asks := err == nil && res.RequestState != ""; asks == refused || refused && !strings.Contains(textOf(t, res, err), "approval_required") {
				t.Errorf("a request of %d bytes: got %+v, %v", size, res, err)
			}
		}
		p := &person{answers: []*mcp.ElicitResult{accept(AllowOnce)}}
		c := p.caller()
		c.Size = maxSize + 1
		res, err := w.Serve(t.Context(), c, w.program("write {}"))
		if got := textOf(t, res, err); !strings.HasSuffix(got, "true") {
			t.Errorf("by elicitation: got %q", got)
		}
	})
}
