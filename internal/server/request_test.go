package server

import (
	"bufio"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// directSlow serves a slow tool whose calls are direct ones, and counts those that
// are.
func directSlow(t *testing.T) (s *Server, url string, release, started chan struct{}, direct *atomic.Int64) {
	t.Helper()
	release, started, direct = make(chan struct{}), make(chan struct{}, 1), new(atomic.Int64)
	s, url = serve(t, func(o *Options) {
		o.Extend.Tools = slow(release, started)
		o.Extend.Tools[0].Direct = true
		o.Limits.Heartbeat = 100 * time.Millisecond
		o.Observe = func(o Observation) {
			if o.Direct {
				direct.Add(1)
			}
		}
	})
	return s, url, release, started, direct
}

// TestDirect_ResumedStreamHasAnswer: a client that loses its connection during a direct
// call, and resumes before or after its end, gets the answer.
func TestDirect_ResumedStreamHasAnswer(t *testing.T) {
	s, url, release, started, direct := directSlow(t)
	h := session(t, url)
	back := func(id string) header { return with(h, "Accept", eventStream, headerLastEvent, id) }
	for i, early := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		id := eventID(t, bufio.NewReader(openStream(t, ctx, "POST", url, h, toolCall(i, "slow", "{}")).Body))
		<-started
		cancel()
		if early {
			time.AfterFunc(300*time.Millisecond, func() { release <- struct{}{} })
		} else {
			release <- struct{}{}
			eventually(t, "the call ends", func() bool { return direct.Load() == int64(i+1) && s.posts.value() == 0 })
		}
		res, body := do(t, "GET", url, back(id), "")
		want := strings.TrimSuffix(id, "_0") + "_1"
		if res.StatusCode != 200 || strings.Count(body, "data: ") != 1 || !strings.Contains(body, "id: "+want+"\n") || !strings.Contains(body, `"text":"done"`) {
			t.Errorf("back early %v: got %s %q, want event %s", early, res.Status, body, want)
		}
		if beats := strings.Count(body, ": hb\n"); early && beats == 0 {
			t.Errorf("no heartbeat while the answer is waited for: %q", body)
		}
	}
	if n := direct.Load(); n != 2 {
		t.Errorf("%d calls were direct, want 2", n)
	}
}

// TestDirect_StreamHasEventIDs: a client that stays connected gets the answer with an
// event id, except in revisions that cannot resume streams.
func TestDirect_StreamHasEventIDs(t *testing.T) {
	_, url, release, started, _ := directSlow(t)
	h := session(t, url)
	for version, want := range map[string]int{"2025-11-25": 2, "2025-06-18": 1, "": 2} {
		time.AfterFunc(300*time.Millisecond, func() { <-started; release <- struct{}{} })
		res, body := do(t, "POST", url, with(h, headerVersion, version), toolCall(1, "slow", "{}"))
		if res.StatusCode != 200 || strings.Count(body, "\nid: ") != want || !strings.Contains(body, `"text":"done"`) || !strings.Contains(body, ": hb\n") {
			t.Errorf("%q: got %s %q, want %d ids", version, res.Status, body, want)
		}
	}
}

// TestDirect_CancelledByMessage: a cancel message ends a direct call, and so does the end
// of its session. Until then no other call can use its id.
func TestDirect_CancelledByMessage(t *testing.T) {
	s, url, _, started, _ := directSlow(t)
	h := session(t, url)
	call := func(id string) chan string {
		answer := make(chan string, 1)
		go func() {
			_, body := do(t, "POST", url, h, strings.Replace(toolCall(1, "slow", "{}"), `"id":1`, `"id":`+id, 1))
			answer <- body
		}()
		<-started
		return answer
	}
	ended := func(what string, answer chan string) string {
		t.Helper()
		select {
		case body := <-answer:
			return body
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the call did not end", what)
			return ""
		}
	}
	answer := call("7")
	if res, body := do(t, "POST", url, h, toolCall(7, "slow", "{}")); res.StatusCode != 400 || parse(t, body).Error.Code != -32600 {
		t.Errorf("the id of another call: got %s %s", res.Status, body)
	}
	for _, other := range []string{"8", `"7"`} {
		do(t, "POST", url, h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+other+`}}`)
	}
	do(t, "POST", url, session(t, url), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	select {
	case r := <-answer:
		t.Fatalf("another client's message ended the call: %s", r)
	case <-time.After(100 * time.Millisecond):
	}
	if res, body := do(t, "POST", url, h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7.0}}`); res.StatusCode != 202 {
		t.Errorf("cancel: got %s %s", res.Status, body)
	}
	if body := ended("cancelled", answer); strings.Contains(body, "jsonrpc") {
		t.Errorf("the cancelled call is answered: %s", body)
	}

	answer = call(`"a"`)
	if res, _ := do(t, "DELETE", url, h, ""); res.StatusCode != 204 {
		t.Errorf("DELETE: got %s", res.Status)
	}
	if r := parse(t, ended("the session ended", answer)); r.Error == nil || r.Error.Code != -32603 {
		t.Errorf("the session ended: got %+v", r)
	}
	eventually(t, "nothing is kept of the session", func() bool {
		s.replay.mu.Lock()
		defer s.replay.mu.Unlock()
		return s.replay.sessions[h[headerSession]] == nil && s.posts.value() == 0
	})
}

// TestDirect_ToolAsksForInput: a tool that was called directly can ask the client of a
// session for input.
func TestDirect_ToolAsksForInput(t *testing.T) {
	for _, wait := range []time.Duration{0, 3 * primeDelay} {
		_, url := serve(t, func(o *Options) {
			o.Extend.Tools = []Tool{extra("greet", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				time.Sleep(wait)
				if in, ok := req.Params.InputResponses["name"].(*mcp.ElicitResult); ok {
					name, _ := in.Content["name"].(string)
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Hello " + name}}}, nil
				}
				ask := &mcp.ElicitParams{Message: "Who?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}}
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": ask}}, nil
			})}
			o.Extend.Tools[0].Direct = true
		})
		cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
			},
		})
		if _, got := must(t, cs, "greet", nil); got != "Hello Ada" {
			t.Errorf("after %v: got %q", wait, got)
		}
	}
}
