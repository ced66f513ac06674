package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/server/tasks"
)

// tasked is what the answers about tasks say.
type tasked struct {
	ResultType string `json:"resultType"`
	TaskID     string `json:"taskId"`
	Status     string `json:"status"`
	TTL        int64  `json:"ttlMs"`
	Poll       int64  `json:"pollIntervalMs"`
	Result     *struct {
		Content    []struct{ Text string }
		Structured struct {
			SessionID string `json:"session_id"`
			Stdout    string `json:"stdout"`
		} `json:"structuredContent"`
		IsError bool
	} `json:"result"`
	Error *struct {
		Code    int64
		Message string
	} `json:"error"`
	Content []struct{ Text string } `json:"content"`
}

const tasksDeclared = `"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// taskClient is a modern client that knows tasks.
type taskClient struct {
	tb    testing.TB
	url   string
	token string
	id    int
}

func (c *taskClient) do(method, name, params string) (status int, t tasked, code int64) {
	c.tb.Helper()
	c.id++
	h := header{
		"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28",
		"Mcp-Method": method, "Mcp-Name": name, "Authorization": "Bearer " + c.token,
	}
	res, body := do(c.tb, "POST", c.url, h, modernBody(c.id, method, params))
	r := parse(c.tb, body)
	if r.Error != nil {
		return res.StatusCode, t, r.Error.Code
	}
	if err := json.Unmarshal(r.Result, &t); err != nil {
		c.tb.Fatalf("%s: %v: %s", method, err, body)
	}
	if !strings.Contains(string(r.Result), "io.modelcontextprotocol/serverInfo") {
		c.tb.Errorf("%s: the result does not say who made it: %s", method, r.Result)
	}
	return res.StatusCode, t, 0
}

func modernBody(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",%s}}}`, id, method, params, tasksDeclared)
}

func (c *taskClient) call(tool, args string) tasked {
	c.tb.Helper()
	status, t, code := c.do("tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, args))
	if status != 200 || code != 0 {
		c.tb.Fatalf("%s: %d, code %d", tool, status, code)
	}
	return t
}

func (c *taskClient) about(method, task string) (int, tasked, int64) {
	c.tb.Helper()
	return c.do(method, task, fmt.Sprintf(`"taskId":%q`, task))
}

// wait asks until the task is over.
func (c *taskClient) wait(task string) tasked {
	c.tb.Helper()
	var got tasked
	eventually(c.tb, "task "+task+" ends", func() bool {
		_, t, code := c.about("tasks/get", task)
		if code != 0 {
			c.tb.Fatalf("tasks/get: code %d", code)
		}
		got = t
		return t.Status != "working"
	})
	return got
}

// TestTasks_RunInBoxes: code that takes long runs as a task, in a real box: it can be
// asked about, its answer is that of the call, and it can be cancelled, which
// interrupts the interpreter and leaves its variables.
func TestTasks_RunInBoxes(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(withBoxes(t, nil)))
	c := &taskClient{tb: t, url: url, token: p.tokens["alice"]}
	other := &taskClient{tb: t, url: url, token: p.tokens["bob"]}

	// The box is made here, so that what follows takes as long as its code.
	if got := c.call("execute_code", `{"code":"x = 41","session_id":"tasks"}`); got.ResultType == "task" {
		c.wait(got.TaskID)
	} else if got.ResultType != "complete" || got.Content == nil {
		t.Fatalf("a quick call: got %+v", got)
	}

	made := c.call("execute_code", `{"code":"import time; time.sleep(2); print(x + 1)","session_id":"tasks"}`)
	if made.ResultType != "task" || made.TaskID == "" || made.Status != "working" || made.TTL <= 0 || made.Poll <= 0 {
		t.Fatalf("a long call: got %+v", made)
	}
	if _, got, code := c.about("tasks/get", made.TaskID); code != 0 || got.Status != "working" || got.Result != nil {
		t.Errorf("while it runs: got %+v, code %d", got, code)
	}
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		if status, _, code := other.about(method, made.TaskID); status != 400 || code != -32602 {
			t.Errorf("%s by another: got %d, code %d", method, status, code)
		}
	}
	done := c.wait(made.TaskID)
	if done.Status != "completed" || done.Result == nil || done.Result.Structured.Stdout != "42\n" || done.Result.IsError {
		t.Errorf("got %+v", done)
	}

	for tool, args := range map[string]string{
		"execute_code":    `{"code":"x = 1\ntry:\n    time.sleep(60)\nfinally:\n    y = 7","session_id":"tasks"}`,
		"execute_command": `{"command":"sleep 60","session_id":"tasks"}`,
	} {
		made = c.call(tool, args)
		if made.ResultType != "task" {
			t.Fatalf("%s: got %+v", tool, made)
		}
		begin := time.Now()
		if status, ack, code := c.about("tasks/cancel", made.TaskID); status != 200 || code != 0 || ack.ResultType != "complete" || ack.TaskID != "" {
			t.Errorf("cancel: got %d %+v, code %d", status, ack, code)
		}
		if got := c.wait(made.TaskID); got.Status != "cancelled" || got.Result != nil {
			t.Errorf("cancelled: got %+v", got)
		}
		after := c.call("execute_code", `{"code":"print(x, y)","session_id":"tasks"}`)
		if after.ResultType == "task" {
			end := c.wait(after.TaskID)
			after.Content = end.Result.Content
		}
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("%s ran for %v", tool, took)
		}
		if tool == "execute_code" && (len(after.Content) == 0 || !strings.Contains(after.Content[0].Text, "1 7")) {
			t.Errorf("after the interruption: got %+v", after)
		}
	}
	if status, _, code := c.do("tasks/get", "x", `"taskId":"`+made.TaskID+`"`); status != 400 || code != -32020 {
		t.Errorf("another Mcp-Name: got %d, code %d", status, code)
	}
	for method, want := range map[string]int64{"tasks/list": -32601, "tasks/result": -32601} {
		if status, _, code := c.about(method, "x"); status != 404 || code != want {
			t.Errorf("%s: got %d, code %d", method, status, code)
		}
	}
	reader := &taskClient{tb: t, url: url, token: p.tokens["reader"]} // alice's as well
	if status, _, code := reader.about("tasks/get", made.TaskID); status != 200 || code != 0 {
		t.Errorf("tasks/get with the scope read: got %d, code %d", status, code)
	}
	if status, _, code := reader.about("tasks/cancel", made.TaskID); status != 403 {
		t.Errorf("tasks/cancel with the scope read: got %d, code %d", status, code)
	}
	// A task belongs to its owner, and ends with the token.
	made = c.call("execute_code", `{"code":"time.sleep(60)","session_id":"tasks"}`)
	if made.ResultType != "task" {
		t.Fatalf("a long call: got %+v", made)
	}
	p.remove(t, "alice")
	last := map[string]any{}
	eventually(t, "the task ends with the token", func() bool {
		for _, line := range p.lines(t) {
			if line["msg"] == "call" && line["who"] != "token alice" {
				t.Fatalf("a call without an owner in the audit log: %v", line)
			}
			last = line
		}
		return last["outcome"] == "cancelled" && last["duration_ms"].(float64) < 60_000
	})
}

// TestTasks_OlderClientSeesNone: a client that does not support tasks gets none.
func TestTasks_OlderClientSeesNone(t *testing.T) {
	release, started := make(chan struct{}, 1), make(chan struct{}, 1)
	_, url := serve(t, func(o *Options) {
		o.Limits.Tasks.AnswerWait = time.Millisecond
		o.Extend.Tools = slowTask(release, started)
	})
	h, body := modernCall(1, "slow", "{}")
	for name, call := range map[string]func() (string, int){
		"modern": func() (string, int) { res, out := do(t, "POST", url, h, body); return out, res.StatusCode },
		"bare": func() (string, int) {
			res, out := do(t, "POST", url, nil, toolCall(1, "slow", "{}"))
			return out, res.StatusCode
		},
		"session": func() (string, int) {
			res, out := do(t, "POST", url, session(t, url), toolCall(1, "slow", "{}"))
			return out, res.StatusCode
		},
	} {
		time.AfterFunc(50*time.Millisecond, func() { release <- struct{}{} })
		if out, status := call(); status != 200 || !strings.Contains(out, "done") || strings.Contains(out, "taskId") {
			t.Errorf("%s: got %d %s", name, status, out)
		}
		<-started
	}
	for name, h := range map[string]header{"bare": nil, "session": session(t, url)} {
		_, out := do(t, "POST", url, h, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`)
		if r := parse(t, out); r.Error == nil || r.Error.Code != -32601 {
			t.Errorf("%s: got %s", name, out)
		}
	}
	h["Mcp-Method"], h["Mcp-Name"] = "tasks/get", "x"
	body = strings.Replace(strings.Replace(body, "tools/call", "tasks/get", 1), `"name":"slow"`, `"taskId":"x"`, 1)
	if res, out := do(t, "POST", url, h, body); res.StatusCode != 400 || parse(t, out).Error.Code != -32021 {
		t.Errorf("undeclared: got %s %s", res.Status, out)
	}
}

func slowTask(release <-chan struct{}, started chan<- struct{}) []Tool {
	list := slow(release, started)
	list[0].Direct = true
	list[0].Task = &tasks.Policy{}
	return list
}

// TestTasks_FinishAtShutdown: a stopping server lets tasks finish and answers polls
// meanwhile.
func TestTasks_FinishAtShutdown(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 2)
	s, url := serve(t, func(o *Options) {
		o.Limits.Tasks.AnswerWait = time.Millisecond
		o.Extend.Tools = slowTask(release, started)
	})
	c := &taskClient{tb: t, url: url}
	first, second := c.call("slow", "{}").TaskID, c.call("slow", "{}").TaskID
	<-started
	<-started
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(ctx) }()
	eventually(t, "the server drains", s.draining.Load)
	if status, _, _ := c.do("tools/call", "slow", `"name":"slow"`); status != 503 {
		t.Errorf("a new call while draining: got %d", status)
	}
	if _, _, code := c.about("tasks/cancel", second); code != 0 {
		t.Errorf("cancel while draining: code %d", code)
	}
	if _, got, _ := c.about("tasks/get", first); got.Status != "working" {
		t.Errorf("while draining: got %+v", got)
	}
	release <- struct{}{}
	if got := c.wait(first); got.Status != "completed" {
		t.Errorf("got %+v", got)
	}
	if got := c.wait(second); got.Status != "cancelled" {
		t.Errorf("got %+v", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestReadToken_LeavesResultOfTask: a read token sees what a task came to, and the task is still
// that of its client: a stopping server waits for the client to fetch the result.
func TestReadToken_LeavesResultOfTask(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.Tasks.AnswerWait = time.Millisecond
		o.Limits.Tasks.Poll = time.Minute // the client, which has not polled yet, is about to
		o.Extend.Tools = slowTask(release, started)
	}))
	alice := &taskClient{tb: t, url: url, token: p.tokens["alice"]}
	reader := &taskClient{tb: t, url: url, token: p.tokens["reader"]} // alice's as well
	id := alice.call("slow", "{}").TaskID
	<-started
	release <- struct{}{}
	if got := reader.wait(id); got.Status != "completed" || got.Result == nil {
		t.Fatalf("a read token: got %+v", got)
	}
	waits := func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		s.tasks.Linger(ctx)
		return ctx.Err() != nil
	}
	if !waits(300 * time.Millisecond) {
		t.Error("a stop would not wait for the client, since a read token has seen the result")
	}
	if _, got, _ := alice.about("tasks/get", id); got.Status != "completed" || got.Result == nil {
		t.Errorf("the client: got %+v", got)
	}
	if waits(time.Minute) {
		t.Error("a stop would wait for a client that has the result")
	}
}

// TestTasks_OverStdio: tasks work over stdio and end with the client.
func TestTasks_OverStdio(t *testing.T) {
	started := make(chan struct{}, 1)
	s := New(Options{Limits: Limits{Tasks: tasks.Limits{AnswerWait: time.Millisecond}}, Extend: Extension{Tools: slowTask(nil, started)}})
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStdio(t.Context(), in, out) }()
	answers := bufio.NewReader(fromServer)
	ask := func(id int, method, params string) (got tasked) {
		t.Helper()
		if _, err := io.WriteString(toServer, modernBody(id, method, params)+"\n"); err != nil {
			t.Fatal(err)
		}
		line, err := answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Result tasked }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		return r.Result
	}
	task := ask(1, "tools/call", `"name":"slow"`)
	if task.ResultType != "task" {
		t.Fatalf("got %+v", task)
	}
	<-started
	if got := ask(2, "tasks/get", fmt.Sprintf(`"taskId":%q`, task.TaskID)); got.Status != "working" {
		t.Errorf("got %+v", got)
	}
	// A request without parameters is no reason to die.
	if _, err := io.WriteString(toServer, `{"jsonrpc":"2.0","id":3,"method":"tasks/get"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, `"error"`) {
		t.Errorf("no parameters: got %q, %v", line, err)
	}
	_ = toServer.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !s.calls.counted.wait(ctx) {
		t.Error("the task did not end with its client")
	}
}

// A task that begins after its request has ended, as that of a client that has left does, is counted
// as one call.
func TestCalls_TaskBeginsAfterRequest(t *testing.T) {
	s := New(Options{})
	from := &call{counts: true, cancel: func(error) {}}
	s.calls.add(from)
	s.end(from) // create returned for ctx.Done
	to := &call{counts: true, cancel: func(error) {}}
	s.calls.replace(from, to) // registerTask, late
	s.end(to)
	if n := s.calls.counted.value(); n != 0 {
		t.Errorf("%d calls are counted", n)
	}
}
