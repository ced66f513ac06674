package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// host is a server of one tool, long, which each test writes anew.
type host struct {
	*Tasks
	t     *testing.T
	serve mcp.MethodHandler
}

func newHost(t *testing.T, limits Limits, p Policy, tool mcp.ToolHandler) *host {
	call := func(ctx context.Context, _ string, req mcp.Request) (mcp.Result, error) {
		res, err := tool(ctx, req.(*mcp.CallToolRequest))
		if err != nil {
			return nil, err
		}
		return res, nil
	}
	begun := func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		Begun(ctx)
		return call(ctx, method, req)
	}
	s := New(Options{Policies: map[string]Policy{"long": p}, Call: begun, Limits: limits})
	t.Cleanup(func() { s.Close(context.Background()) })
	return &host{s, t, s.Create(s.Serve(call))}
}

var knows = map[string]any{"extensions": map[string]any{Extension: map[string]any{}}}

func meta(version string, caps any) mcp.Meta {
	return mcp.Meta{mcp.MetaKeyProtocolVersion: version, mcp.MetaKeyClientCapabilities: caps, "progressToken": 1}
}

func (h *host) call(ctx context.Context, owner string, change ...func(*mcp.CallToolRequest)) (mcp.Result, error) {
	req := &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{Name: "long", Meta: meta("2026-07-28", knows)},
		Extra:  &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: owner}},
	}
	for _, c := range change {
		c(req)
	}
	return h.serve(ctx, callTool, req)
}

// begin makes a task and returns its id.
func (h *host) begin(owner string, change ...func(*mcp.CallToolRequest)) string {
	h.t.Helper()
	res, err := h.call(h.t.Context(), owner, change...)
	d, ok := res.(*description)
	if err != nil || !ok || d.ResultType != "task" || d.TaskID == "" || d.Result != nil || d.Error != nil || d.InputRequests != nil {
		h.t.Fatalf("got %+v, %v; want a task", res, err)
	}
	return d.TaskID
}

func (h *host) ask(owner, method, id string, responses map[string]json.RawMessage) (mcp.Result, error) {
	p := &Params{TaskID: id, InputResponses: responses}
	p.Meta = meta("2026-07-28", knows)
	return h.serve(h.t.Context(), method, &mcp.ServerRequest[*Params]{
		Params: p, Extra: &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: owner}},
	})
}

func (h *host) get(owner, id string) *description {
	h.t.Helper()
	synctest.Wait() // what happens at this very moment has happened
	res, err := h.ask(owner, get, id, nil)
	d, ok := res.(*description)
	if err != nil || !ok || d.ResultType != "complete" || d.TaskID != id {
		h.t.Fatalf("got %+v, %v; want task %s", res, err, id)
	}
	return d
}

func (h *host) want(owner, id string, s status) *description {
	h.t.Helper()
	d := h.get(owner, id)
	if d.Status != s {
		h.t.Fatalf("task %s is %s (%s, %v), want %s", id, d.Status, d.Result, d.Error, s)
	}
	return d
}

func (h *host) ack(owner, method, id string, responses map[string]json.RawMessage) {
	h.t.Helper()
	res, err := h.ask(owner, method, id, responses)
	if a, ok := res.(*acknowledgement); err != nil || !ok || a.ResultType != "complete" {
		h.t.Fatalf("%s: got %+v, %v", method, res, err)
	}
}

func code(err error) int64 {
	if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func says(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// after is a tool that takes that long.
func after(d time.Duration, res *mcp.CallToolResult, err error) mcp.ToolHandler {
	return func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case <-time.After(d):
			return res, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func TestTask_Lifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{}, Policy{}, after(5*time.Second, says("<done>"), nil))
		start := time.Now()
		id := h.begin("a")
		if waited := time.Since(start); waited != 500*time.Millisecond {
			t.Errorf("the client was left waiting for %v", waited)
		}
		d := h.want("a", id, statusWorking)
		if d.TTL != time.Hour.Milliseconds() || d.PollInterval != 1000 || d.CreatedAt != start.UTC().Format("2006-01-02T15:04:05.000Z") {
			t.Errorf("got %+v", d)
		}
		time.Sleep(5 * time.Second)
		d = h.want("a", id, statusCompleted)
		if got := string(d.Result); !strings.Contains(got, `"text":"\u003cdone\u003e"`) && !strings.Contains(got, `"text":"<done>"`) || !strings.Contains(got, `"resultType":"complete"`) || d.LastUpdatedAt == d.CreatedAt {
			t.Errorf("got %s, %+v", got, d)
		}
		h.ack("a", cancel, id, nil) // too late, and no fault
		h.want("a", id, statusCompleted)
		time.Sleep(54 * time.Minute)
		h.want("a", id, statusCompleted)
		time.Sleep(6 * time.Minute)
		if _, err := h.ask("a", get, id, nil); code(err) != jsonrpc.CodeInvalidParams {
			t.Errorf("after its time: got %v", err)
		}
		if all, _ := h.Len(); all != 0 || len(h.owners) != 0 || h.bytes != 0 {
			t.Errorf("%d tasks of %d owners with %d bytes are left", all, len(h.owners), h.bytes)
		}
	})
}

// TestCall_AnsweredInPlace: quick calls, and calls of clients that do not support tasks,
// are answered in place.
func TestCall_AnsweredInPlace(t *testing.T) {
	undeclared := func(r *mcp.CallToolRequest) { r.Params.Meta[mcp.MetaKeyClientCapabilities] = map[string]any{} }
	older := func(r *mcp.CallToolRequest) { r.Params.Meta[mcp.MetaKeyProtocolVersion] = "2025-11-25" }
	other := func(r *mcp.CallToolRequest) { r.Params.Name = "short" }
	for name, c := range map[string]struct {
		takes  time.Duration
		change func(*mcp.CallToolRequest)
	}{
		"quick":      {time.Millisecond, func(*mcp.CallToolRequest) {}},
		"undeclared": {time.Minute, undeclared},
		"older":      {time.Minute, older},
		"other tool": {time.Minute, other},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, Limits{}, Policy{}, after(c.takes, says("done"), nil))
				res, err := h.call(t.Context(), "a", c.change)
				if r, ok := res.(*mcp.CallToolResult); err != nil || !ok || len(r.Content) != 1 {
					t.Errorf("got %+v, %v", res, err)
				}
				if all, _ := h.Len(); all != 0 || len(h.owners) != 0 {
					t.Errorf("%d tasks of %d owners are left", all, len(h.owners))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{}, Policy{}, after(time.Millisecond, nil, &jsonrpc.Error{Code: 7}))
		if _, err := h.call(t.Context(), "a"); code(err) != 7 {
			t.Errorf("a quick error: got %v", err)
		}
	})
}

func TestTask_RequiredByTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{Running: 1}, Policy{Required: true}, after(time.Millisecond, says("done"), nil))
		_, err := h.call(t.Context(), "a", func(r *mcp.CallToolRequest) { r.Params.Meta[mcp.MetaKeyClientCapabilities] = map[string]any{} })
		var e *jsonrpc.Error
		if !errors.As(err, &e) || e.Code != -32021 || string(e.Data) != `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}` &&
			!strings.Contains(string(e.Data), `"extensions":{"io.modelcontextprotocol/tasks":{}}`) {
			t.Errorf("undeclared: got %v %s", err, e.Data)
		}
		id := h.begin("a") // even of a quick one
		if _, err := h.call(t.Context(), "a"); code(err) != jsonrpc.CodeInternalError {
			t.Errorf("a task over the limit: got %v", err)
		}
		time.Sleep(time.Second)
		h.want("a", id, statusCompleted)
	})
}

func TestTask_Failures(t *testing.T) {
	for name, c := range map[string]struct {
		tool mcp.ToolHandler
		code int64
	}{
		"coded": {after(time.Second, nil, &jsonrpc.Error{Code: -32602, Message: "m", Data: json.RawMessage(`{"a":1}`)}), -32602},
		"plain": {after(time.Second, nil, errors.New("plain")), -32603},
		"panic": {func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			time.Sleep(time.Second)
			panic("oops")
		}, -32603},
		"no end of questions": {func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			time.Sleep(time.Second)
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}, nil
		}, -32603},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, Limits{}, Policy{}, c.tool)
				id := h.begin("a")
				time.Sleep(time.Second)
				d := h.want("a", id, statusFailed)
				if d.Error == nil || d.Error.Code != c.code || d.Result != nil || strings.Contains(d.Error.Message, "oops") {
					t.Errorf("got %+v", d.Error)
				}
			})
		})
	}
}

func TestTask_Cancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		causes := make(chan error, 4)
		h := newHost(t, Limits{}, Policy{}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if req.Session != nil || req.Params.GetProgressToken() != nil {
				t.Error("a task has a session that is gone")
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			time.Sleep(time.Second) // an interpreter takes its time
			return says("too late"), nil
		})
		id := h.begin("a")
		h.ack("a", cancel, id, nil)
		h.want("a", id, statusCancelled)
		if err := <-causes; !errors.Is(err, errCancelled) {
			t.Errorf("cancelled with %v", err)
		}
		if _, unfinished := h.Len(); unfinished != 0 {
			t.Errorf("%d unfinished", unfinished)
		}
		time.Sleep(2 * time.Second)
		h.want("a", id, statusCancelled)

		// A client that goes before it knows the task takes it along.
		ctx, gone := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer gone()
		if _, err := h.call(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client that is gone: got %v", err)
		}
		if err := <-causes; !errors.Is(err, errGone) {
			t.Errorf("cancelled with %v", err)
		}
		// One that goes later does not.
		ctx, gone = context.WithCancel(t.Context())
		if _, err := h.call(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		gone()
		synctest.Wait()
		select {
		case err := <-causes:
			t.Errorf("ended with its request: %v", err)
		default:
		}
		if all, unfinished := h.Len(); all != 2 || unfinished != 1 {
			t.Errorf("%d tasks, %d unfinished", all, unfinished)
		}
		h.Close(t.Context())
		if err := <-causes; !errors.Is(err, errClosed) {
			t.Errorf("cancelled with %v", err)
		}
		if all, _ := h.Len(); all != 0 || len(h.owners) != 0 {
			t.Errorf("%d tasks of %d owners are left", all, len(h.owners))
		}
	})
}

// TestClientGone_FreesItsOwner: when the call of a disconnected client ends, nothing of
// its owner is kept.
func TestClientGone_FreesItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{}, Policy{}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // an interpreter takes its time
			return nil, ctx.Err()
		})
		ctx, gone := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer gone()
		if _, err := h.call(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		h.mu.Lock()
		if u := h.owners["a"]; u == nil || u.running != 1 {
			t.Errorf("the call still runs, and the owner has %+v", u)
		}
		h.mu.Unlock()
		time.Sleep(2 * time.Second)
		if all, _ := h.Len(); all != 0 || len(h.owners) != 0 {
			t.Errorf("%d tasks of %d owners are left", all, len(h.owners))
		}
	})
}

func TestTask_ExpiryEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		h := newHost(t, Limits{TTL: time.Minute}, Policy{}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		})
		h.begin("a")
		if err := <-ended; !errors.Is(err, errExpired) {
			t.Errorf("ended with %v", err)
		}
		synctest.Wait()
		if all, _ := h.Len(); all != 0 || len(h.owners) != 0 {
			t.Errorf("%d tasks of %d owners are left", all, len(h.owners))
		}
	})
}

// A task ends with the life of its client, for the cause that ended it.
func TestTask_EndsWithLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		h := newHost(t, Limits{}, Policy{}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		})
		life, end := context.WithCancelCause(t.Context())
		if _, err := h.call(Within(t.Context(), life), "a"); err != nil {
			t.Fatal(err)
		}
		stopping := errors.New("stopping")
		end(stopping)
		if err := <-ended; err != stopping {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestTask_OfAnotherOwnerIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{}, Policy{}, after(time.Minute, says("mine"), nil))
		id := h.begin("a")
		for _, method := range []string{get, update, cancel} {
			_, err := h.ask("b", method, id, nil)
			_, never := h.ask("b", method, h.server+"-"+strings.Repeat("A", 26), nil)
			var e, n *jsonrpc.Error
			if !errors.As(err, &e) || !errors.As(never, &n) || e.Code != -32602 || strings.Replace(e.Message, id, "", 1) != strings.Replace(n.Message, h.server+"-"+strings.Repeat("A", 26), "", 1) {
				t.Errorf("%s by another owner: got %v, want the error for an unknown task: %v", method, err, never)
			}
		}
		h.want("a", id, statusWorking)
		if _, err := h.ask("a", get, "ZZZZZZZZ-"+id[9:], nil); err == nil || !strings.Contains(err.Error(), "restarted") {
			t.Errorf("a task of another process: got %v", err)
		}
		if _, err := h.ask("a", get, strings.Repeat("x", 5000), nil); err == nil || len(err.Error()) > 200 {
			t.Errorf("a long id: got %v", err)
		}
		if _, err := h.ask("a", get, "", nil); code(err) != -32602 {
			t.Errorf("no id: got %v", err)
		}
	})
}

// TestMethods_NeedTheExtension: clients that do not declare the extension cannot use its
// methods.
func TestMethods_NeedTheExtension(t *testing.T) {
	h := newHost(t, Limits{}, Policy{}, nil)
	for _, c := range []struct {
		version string
		caps    any
		want    int64
	}{
		{"2026-07-28", knows, -32602},
		{"2026-07-28", map[string]any{}, -32021},
		{"2026-07-28", nil, -32021},
		{"2025-11-25", knows, -32601},
		{"", nil, -32601},
	} {
		p := &Params{TaskID: "x"}
		p.Meta = meta(c.version, c.caps)
		if _, err := h.serve(t.Context(), get, &mcp.ServerRequest[*Params]{Params: p}); code(err) != c.want {
			t.Errorf("%q, %v: got %v, want %d", c.version, c.caps, err, c.want)
		}
	}
	if _, err := h.serve(t.Context(), get, &mcp.ServerRequest[*Params]{}); code(err) != -32601 {
		t.Errorf("no parameters: got %v", err)
	}
}

func TestTasks_Limit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{Running: 2, Kept: 3, All: 4}, Policy{}, after(2*time.Second, says("done"), nil))
		direct := func(owner string) {
			t.Helper()
			if res, err := h.call(t.Context(), owner); err != nil {
				t.Error(err)
			} else if _, ok := res.(*mcp.CallToolResult); !ok {
				t.Errorf("got %+v, want the answer itself", res)
			}
		}
		h.begin("a")
		h.begin("a")
		direct("a") // two run
		time.Sleep(2 * time.Second)
		h.begin("a")
		direct("a") // three are kept
		h.begin("b")
		direct("c") // four in all
		time.Sleep(2 * time.Hour)
		if all, _ := h.Len(); all != 0 || len(h.owners) != 0 {
			t.Errorf("%d tasks of %d owners are left", all, len(h.owners))
		}
	})
}

func TestResults_AreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size atomic.Int64
		h := newHost(t, Limits{Result: 5000, ResultsKept: 8000, ResultsAll: 10000}, Policy{}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			time.Sleep(time.Second)
			return says(strings.Repeat("x", int(size.Load()))), nil
		})
		run := func(owner string, n int64) string {
			size.Store(n)
			id := h.begin(owner)
			time.Sleep(time.Second)
			return id
		}
		if d := h.want("a", run("a", 6000), statusFailed); !strings.Contains(d.Error.Message, "too large") {
			t.Errorf("got %v", d.Error)
		}
		first, second := run("a", 3000), run("a", 3000)
		third := run("a", 3000) // neither of the others has been told
		if d := h.want("a", third, statusFailed); !strings.Contains(d.Error.Message, "not kept") {
			t.Errorf("got %v", d.Error)
		}
		h.want("a", second, statusCompleted)
		h.want("a", first, statusCompleted)
		fourth := run("a", 3000) // pushes out the oldest of those
		for id, kept := range map[string]bool{first: false, second: true, fourth: true} {
			if d := h.want("a", id, statusCompleted); strings.Contains(string(d.Result), "xxx") != kept || !json.Valid(d.Result) {
				t.Errorf("%s: kept %v, want %v", id, !kept, kept)
			}
		}
		// Another owner's told results make room for all.
		other := run("b", 4500)
		h.want("b", other, statusCompleted)
		if d := h.get("a", second); strings.Contains(string(d.Result), "xxx") {
			t.Error("the oldest fetched result did not make room for another owner's")
		}
		if h.bytes > 10000 {
			t.Errorf("%d bytes are kept", h.bytes)
		}
	})
}

func TestTask_Input(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := func(keys ...string) (*mcp.CallToolResult, error) {
			m := make(mcp.InputRequestMap)
			for _, k := range keys {
				m[k] = &mcp.ElicitParams{Message: k, RequestedSchema: json.RawMessage(`{"type":"object"}`)}
			}
			return &mcp.CallToolResult{InputRequests: m, RequestState: strings.Join(keys, "+")}, nil
		}
		h := newHost(t, Limits{}, Policy{}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			given := req.Params.InputResponses
			switch req.Params.RequestState {
			case "":
				return asks("one", "two")
			case "one+two":
				if len(given) != 2 {
					return nil, fmt.Errorf("got %d answers", len(given))
				}
				return asks("three")
			}
			return says(fmt.Sprint(given["three"].(*mcp.ElicitResult).Content["x"])), nil
		})
		yes := json.RawMessage(`{"action":"accept","content":{"x":3}}`)
		start := time.Now()
		id := h.begin("a")
		if time.Since(start) != 0 {
			t.Error("a task that waits for its client was held back")
		}
		if d := h.want("a", id, statusInputRequired); len(d.InputRequests) != 2 {
			t.Errorf("got %v", d.InputRequests)
		}
		h.ack("a", update, id, map[string]json.RawMessage{"one": yes, "other": json.RawMessage(`{"ignored":true}`)})
		if d := h.want("a", id, statusInputRequired); len(d.InputRequests) != 1 || d.InputRequests["two"] == nil {
			t.Errorf("got %v", d.InputRequests)
		}
		if _, err := h.ask("a", update, id, map[string]json.RawMessage{"two": json.RawMessage(`5`)}); code(err) != -32602 {
			t.Errorf("a bad answer: got %v", err)
		}
		h.ack("a", update, id, map[string]json.RawMessage{"one": yes}) // again
		h.ack("a", update, id, map[string]json.RawMessage{"two": yes})
		synctest.Wait()
		if d := h.want("a", id, statusInputRequired); len(d.InputRequests) != 1 || d.InputRequests["three"] == nil {
			t.Errorf("got %v", d.InputRequests)
		}
		h.ack("a", update, id, map[string]json.RawMessage{"three": yes})
		synctest.Wait()
		if d := h.want("a", id, statusCompleted); !strings.Contains(string(d.Result), `"text":"3"`) {
			t.Errorf("got %s", d.Result)
		}

		id = h.begin("a")
		h.ack("a", cancel, id, nil)
		h.ack("a", update, id, map[string]json.RawMessage{"one": yes, "two": yes})
		synctest.Wait()
		if d := h.want("a", id, statusCancelled); d.InputRequests != nil {
			t.Errorf("got %v", d.InputRequests)
		}
	})
}

// TestTask_InputRoundsAreBounded: a tool that asks for input again and again is stopped.
func TestTask_InputRoundsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		h := newHost(t, Limits{}, Policy{}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			asked++
			ask := &mcp.ElicitParams{Message: "more", RequestedSchema: json.RawMessage(`{"type":"object"}`)}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"k": ask}}, nil
		})
		id := h.begin("a")
		for range maxRounds {
			h.want("a", id, statusInputRequired)
			h.ack("a", update, id, map[string]json.RawMessage{"k": json.RawMessage(`{"action":"accept"}`)})
		}
		if d := h.want("a", id, statusFailed); asked != maxRounds || !strings.Contains(d.Error.Message, "more than 16 times") {
			t.Errorf("asked %d times, got %v", asked, d.Error)
		}
	})
}

func TestTask_AsksBeforeItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{}, Policy{AskFirst: true}, after(time.Second, says("done"), nil))
		if res, err := h.call(t.Context(), "a"); err != nil || res.(*mcp.CallToolResult) == nil {
			t.Errorf("got %v, %v", res, err)
		}
		h.begin("a", func(r *mcp.CallToolRequest) {
			r.Params.InputResponses = mcp.InputResponseMap{"k": &mcp.ElicitResult{Action: "accept"}}
		})
	})
}

// TestLinger_WaitsForPollers: a stop waits for clients that are about to fetch a result,
// and for no others.
func TestLinger_WaitsForPollers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, Limits{}, Policy{}, after(time.Minute, says("done"), nil))
		id := h.begin("a")
		time.Sleep(time.Minute)
		wait := func() time.Duration {
			start := time.Now()
			h.Linger(t.Context())
			return time.Since(start)
		}
		if d := wait(); d != 0 {
			t.Errorf("waited %v for a client that does not ask", d)
		}
		id2 := h.begin("a")
		time.Sleep(58 * time.Second)
		h.want("a", id2, statusWorking)
		time.Sleep(2 * time.Second)
		go func() {
			time.Sleep(700 * time.Millisecond)
			h.want("a", id2, statusCompleted)
		}()
		if d := wait(); d != 700*time.Millisecond {
			t.Errorf("waited %v, want for the client", d)
		}
		h.want("a", id, statusCompleted)
	})
}

// TestGet_OnlyReads: a caller who only reads sees the result of a task and changes nothing for its
// client: a stop still waits for the client, and not for the reader, and results that the client
// has make room before those that only a reader has seen.
func TestGet_OnlyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1800 // two results are kept
		h := newHost(t, Limits{ResultsKept: 4000}, Policy{}, after(time.Minute, says(strings.Repeat("x", size)), nil))
		read := func(id string, want status) {
			t.Helper()
			synctest.Wait()
			p := &Params{TaskID: id}
			p.Meta = meta("2026-07-28", knows)
			res, err := h.serve(OnlyReads(t.Context()), get, &mcp.ServerRequest[*Params]{
				Params: p, Extra: &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: "a"}},
			})
			d, ok := res.(*description)
			if err != nil || !ok || d.Status != want || want == statusCompleted && len(d.Result) < size {
				t.Fatalf("a reader got %+v, %v; want a task that is %s", res, err, want)
			}
		}
		linger := func() time.Duration {
			start := time.Now()
			h.Linger(t.Context())
			return time.Since(start)
		}
		first := h.begin("a")
		time.Sleep(58 * time.Second)
		h.want("a", first, statusWorking)
		time.Sleep(2 * time.Second)
		read(first, statusCompleted)
		if d := linger(); d != 2*time.Second {
			t.Errorf("a stop waited %v for a client whose result a reader has seen, want two poll intervals", d)
		}

		second := h.begin("a")
		time.Sleep(58 * time.Second)
		read(second, statusWorking)
		time.Sleep(2 * time.Second)
		if d := linger(); d != 0 {
			t.Errorf("a stop waited %v for a reader", d)
		}

		h.want("a", second, statusCompleted)
		h.begin("a")
		time.Sleep(time.Minute)
		read(first, statusCompleted)
		if d := h.want("a", second, statusCompleted); len(d.Result) >= size {
			t.Error("the result that the client has did not make room")
		}
	})
}

func TestCheckHeaders(t *testing.T) {
	for _, c := range []struct {
		method, header, params string
		want                   bool
	}{
		{get, "abc", `"abc"`, true},
		{cancel, " abc\t", `"abc"`, true},
		{update, "", `"abc"`, false},
		{get, "abd", `"abc"`, false},
		{get, "ABC", `"abc"`, false},
		{get, "x", `5`, true}, // refused for that
		{callTool, "x", `"abc"`, true},
		{"tasks/list", "x", `"abc"`, true},
	} {
		e := CheckHeaders(http.Header{headerName: {c.header}}, c.method, map[string]json.RawMessage{"taskId": json.RawMessage(c.params)})
		if (e == nil) != c.want || e != nil && e.Code != mcp.CodeHeaderMismatch {
			t.Errorf("%+v: got %v", c, e)
		}
	}
}

// FuzzUpdate: with any answer of a client, its task waits or continues.
func FuzzUpdate(f *testing.F) {
	f.Add([]byte(`{"taskId":"x","inputResponses":{"one":{"action":"accept","content":{"x":1}}}}`))
	f.Add([]byte(`{"taskId":"x","inputResponses":{"one":{"roots":[]},"two":null}}`))
	f.Add([]byte(`{"taskId":"x","inputResponses":{"one":{"role":"assistant","content":[{"type":"text"}]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Params
		if json.Unmarshal(data, &p) != nil {
			return
		}
		s := New(Options{})
		defer s.Close(t.Context())
		one := s.begin("", func(error) {})
		defer s.running.Done()
		one.status = statusInputRequired
		one.requests = mcp.InputRequestMap{"one": &mcp.ElicitParams{}}
		one.responses = make(mcp.InputResponseMap)
		s.mu.Lock()
		_, err := s.updateLocked(one, &p)
		s.mu.Unlock()
		_, given := p.InputResponses["one"]
		if waits := one.status == statusInputRequired; waits == given && err == nil {
			t.Errorf("%s: waits %v", data, waits)
		}
	})
}

// TestResults_OfOtherOwnersMakeRoom: owners who never fetch their results do not keep
// others from storing one. One of their results is replaced by an error.
func TestResults_OfOtherOwnersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, size = 4000, 4000/2 - 200 // two of one owner
		tool := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			time.Sleep(time.Second)
			n := size
			if req.Extra.TokenInfo.UserID == "hog2" {
				n += 50
			}
			return says(strings.Repeat("x", n)), nil
		}
		h := newHost(t, Limits{ResultsKept: each, ResultsAll: 4 * each, TTL: time.Hour}, Policy{}, tool)
		kept := map[string]string{} // owners by task
		victim := ""                // the first of hog2
		for i := range 8 {
			owner := fmt.Sprint("hog", i/2)
			id := h.begin(owner)
			if kept[id] = owner; i == 4 {
				victim = id
			}
			time.Sleep(2 * time.Second)
		}
		id := h.begin("new")
		time.Sleep(2 * time.Second)
		if d := h.want("new", id, statusCompleted); len(d.Result) < size {
			t.Errorf("the new owner's result is %s", d.Result)
		}
		dropped := 0
		for id, owner := range kept {
			if d := h.want(owner, id, statusCompleted); strings.Contains(string(d.Result), "made room") {
				if dropped++; id != victim {
					t.Errorf("a result of %s made room, want the oldest one of the owner with the most bytes", owner)
				}
			}
		}
		if dropped != 1 {
			t.Errorf("%d results made room, want 1", dropped)
		}
		if h.bytes > 4*each {
			t.Errorf("%d bytes are kept", h.bytes)
		}
	})
}
