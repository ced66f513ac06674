package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// batchOf returns a batch of n calls of a tool, with the ids 1 to n.
func batchOf(n int, tool, args string) string {
	calls := make([]string, n)
	for i := range calls {
		calls[i] = toolCall(i+1, tool, args)
	}
	return "[" + strings.Join(calls, ",") + "]"
}

// TestBatch_LeavesRoomForOtherOwners: one batch takes the share of its owner, not all places.
func TestBatch_LeavesRoomForOtherOwners(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 8)
	_, url := serve(t, p.options(func(o *Options) {
		o.Limits.Calls, o.Limits.OwnerCalls, o.Extend.Tools = 8, 4, slow(release, started)
	}))
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, p.as("alice"), batchOf(8, "slow", "{}"))
		ended <- body
	}()
	for range 4 {
		<-started
	}
	for range 3 {
		if res, body := do(t, "POST", url, p.as("bob"), toolCall(1, "list_contexts", "{}")); res.StatusCode != 200 {
			t.Errorf("another owner beside a batch: %s %s", res.Status, body)
		}
	}
	eventually(t, "the other four are refused", func() bool { // before places are free again
		n := 0
		for _, l := range p.lines(t) {
			if l["outcome"] == "refused" {
				n++
			}
		}
		return n == 4
	})
	for range 4 {
		release <- struct{}{}
	}
	if body := <-ended; strings.Count(body, "done") != 4 || strings.Count(body, "RESOURCE_LIMIT_ERROR") != 4 {
		t.Errorf("the batch: %s", body)
	}
}

// TestBatch_ReturnsPlacesAsAnswersCome: a batch holds places for the requests that have no
// answer yet, not for all until the longest ends.
func TestBatch_ReturnsPlacesAsAnswersCome(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 8)
	s, url := serve(t, func(o *Options) { o.Limits.Calls, o.Extend.Tools = 4, slow(release, started) })
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, nil, batchOf(4, "slow", "{}"))
		ended <- body
	}()
	for range 4 {
		<-started
	}
	res, body := do(t, "POST", url, nil, ping)
	busy(t, "beside four calls", res, body)
	for range 3 {
		release <- struct{}{}
	}
	eventually(t, "three places are free", func() bool {
		res, _ := do(t, "POST", url, nil, batchOf(3, "list_contexts", "{}"))
		return res.StatusCode == 200
	})
	release <- struct{}{}
	if body := <-ended; strings.Count(body, "done") != 4 {
		t.Errorf("the batch: %s", body)
	}
	eventually(t, "nothing is held", func() bool { return s.requests.value() == 0 })
}

// TestCall_KeepsPlaceWithoutClient: a call of a session continues when its client
// disconnects, and keeps its place and its body.
func TestCall_KeepsPlaceWithoutClient(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) { o.Limits.Calls, o.Extend.Tools = 1, slow(release, started) })
	h := session(t, url)
	w := dialWire(t, url)
	const size = 1 << 20
	w.post(t, h, toolCall(1, "slow", `{"pad":"`+strings.Repeat("x", size)+`"}`))
	<-started
	w.cut()
	eventually(t, "the POST ends", func() bool { return s.posts.value() == 0 })
	res, body := do(t, "POST", url, nil, ping)
	busy(t, "beside a call without a client", res, body)
	if n := s.bodies.value(); n < size {
		t.Errorf("%d bytes of bodies are charged, want those of the call", n)
	}
	release <- struct{}{}
	eventually(t, "nothing is held", func() bool { return s.requests.value() == 0 && s.bodies.value() == 0 })
}

// TestBatch_KeepsPlacesOfOwnerWithoutClient: each call of a batch counts as its owner's until it is
// answered, although its client has left, and no other owner waits for it.
func TestBatch_KeepsPlacesOfOwnerWithoutClient(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 2)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.Calls, o.Limits.OwnerCalls, o.Extend.Tools = 8, 2, slow(release, started)
	}))
	// A batch in a session needs that revision.
	begun, _ := do(t, "POST", url, p.as("alice"), strings.Replace(initBody, "2025-11-25", "2025-03-26", 1))
	w := dialWire(t, url)
	w.post(t, p.as("alice", headerSession, begun.Header.Get(headerSession)), batchOf(2, "slow", "{}"))
	for range 2 {
		<-started
	}
	w.cut()
	eventually(t, "the POST ends", func() bool { return s.posts.value() == 0 })
	call, pings := toolCall(1, "list_contexts", "{}"), "["+ping+","+strings.Replace(ping, `"id":1`, `"id":2`, 1)+"]"
	for name, body := range map[string]string{
		"a call": call,
		// Two calls and a quarter more are three requests.
		"two requests that are no calls": pings,
	} {
		if res, answer := do(t, "POST", url, p.as("alice"), body); res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s beside two calls without a client: %s %v %s", name, res.Status, res.Header, answer)
		}
		if res, answer := do(t, "POST", url, p.as("bob"), body); res.StatusCode != 200 {
			t.Errorf("%s of another owner: %s %s", name, res.Status, answer)
		}
	}
	release <- struct{}{}
	for name, body := range map[string]string{"a call": call, "two requests that are no calls": pings} {
		// A request keeps its place until its answer is written, so perhaps after its client has read it.
		eventually(t, "one call holds a place", func() bool { return s.requests.value() == 1 && s.quota.value() == 1 })
		if res, answer := do(t, "POST", url, p.as("alice"), body); res.StatusCode != 200 {
			t.Errorf("%s beside one call without a client: %s %s", name, res.Status, answer)
		}
	}
	release <- struct{}{}
	eventually(t, "nothing is held", func() bool { return s.requests.value() == 0 && s.quota.value() == 0 })
}

// TestBatch_OrderAtLimitOfCalls: at the owner's limit of calls each message of a batch has an answer of
// its own, whichever comes last.
func TestBatch_OrderAtLimitOfCalls(t *testing.T) {
	const calls = 8 // and 10 requests
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, calls)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.Calls, o.Limits.OwnerCalls, o.Extend.Tools = 2*calls, calls, slow(release, started)
	}))
	ended := make(chan string, 1)
	go func() {
		_, body, err := tryDo(t.Context(), url, p.as("alice"), batchOf(calls, "slow", "{}"))
		ended <- fmt.Sprint(body, err)
	}()
	for range calls {
		<-started
	}
	call := toolCall(2, "list_contexts", "{}")
	for _, batch := range []string{"[" + ping + "," + call + "]", "[" + call + "," + ping + "]"} {
		res, body := do(t, "POST", url, p.as("alice"), batch)
		if res.StatusCode != 200 || strings.Count(body, "RESOURCE_LIMIT_ERROR") != 1 || strings.Count(body, `"result":{}`) != 1 {
			t.Errorf("%s at the limit of calls: %s %s, want an error and a result", batch, res.Status, body)
		}
		// A request keeps its place until its answer is written, so perhaps after its client has read it.
		eventually(t, "the calls alone hold places", func() bool { return s.requests.value() == calls })
	}
	close(release)
	if body := <-ended; strings.Count(body, "done") != calls {
		t.Errorf("the calls at the limit: %s", body)
	}
}

// TestTask_KeepsPlaceOfCall: a call that became a task keeps its place until it ends, and
// polls are served meanwhile.
func TestTask_KeepsPlaceOfCall(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) {
		o.Limits.Calls, o.Limits.Tasks.AnswerWait = 1, time.Millisecond
		o.Extend.Tools = slowTask(release, started)
	})
	c := &taskClient{tb: t, url: url}
	id := c.call("slow", "{}").TaskID
	<-started
	res, body := do(t, "POST", url, nil, ping)
	busy(t, "beside a task", res, body)
	if status, got, _ := c.about("tasks/get", id); status != 200 || got.Status != "working" {
		t.Errorf("a poll: %d, the task is %q", status, got.Status)
	}
	if e := s.polls.take(account{owner: "another"}, s.polls.all); e != withinLimits {
		t.Fatalf("polls at their limit: %v", e)
	}
	if status, _, _ := c.about("tasks/get", id); status != 503 {
		t.Errorf("a poll beyond the limit of polls: %d, want 503", status)
	}
	s.polls.give(account{owner: "another"}, s.polls.all)
	if status, _, _ := c.about("tasks/cancel", id); status != 200 {
		t.Errorf("the end of the task that has all places: %d, want 200", status)
	}
	eventually(t, "nothing is held", func() bool { return s.requests.value() == 0 })
}

// TestBodies_ShareOfOwner: one owner gets half of the memory for large bodies, whether it says how
// long they are or not.
func TestBodies_ShareOfOwner(t *testing.T) {
	const mib = 1 << 20
	large := strings.Replace(ping, "{", "{"+strings.Repeat(" ", mib), 1)
	for _, c := range []struct{ name, begins string }{ // how each of the unfinished bodies begins
		{"known length", fmt.Sprintf("Content-Length: %d\r\n\r\n{", 2*mib)},
		// The buffer of such a body doubles when it is full: then it takes as much as the one above.
		{"unknown length", fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", mib, strings.Repeat(" ", mib))},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeople(t)
			s, url := serve(t, p.options(func(o *Options) { o.Limits.Body = 2 * mib }))
			for range largeBodies / 2 {
				w := dialWire(t, url)
				fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s", p.tokens["alice"], c.begins)
			}
			eventually(t, "all are being read", func() bool { return s.bodies.value() == largeBodies*mib })
			for name, post := range map[string]func(who string) *http.Response{
				"known length":   func(who string) *http.Response { return send(t, "POST", url, p.as(who), large) },
				"unknown length": func(who string) *http.Response { return p.postChunked(t, url, who, large) },
			} {
				res := post("alice")
				res.Body.Close()
				if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
					t.Errorf("a body of %s over the owner's share: %s %v", name, res.Status, res.Header)
				}
				res = post("bob")
				res.Body.Close()
				if res.StatusCode != 200 {
					t.Errorf("another owner's body of %s: %s", name, res.Status)
				}
			}
		})
	}
}

// postChunked is send without saying how long the body is.
func (p *people) postChunked(t *testing.T, url, who, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range p.as(who) {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestBodies_OfUnknownLength: memory is charged as such a body grows, from the first byte over 8 KiB on.
func TestBodies_OfUnknownLength(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Body = 2 << 20 })
	w := dialWire(t, url)
	chunk := strings.Repeat(" ", 1<<16)
	fmt.Fprint(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
	write := func(s string) { fmt.Fprintf(w, "%x\r\n%s\r\n", len(s), s) }
	write(chunk[:smallBody+1])
	eventually(t, "a body over 8 KiB is charged", func() bool { return s.bodies.value() > smallBody })
	for range 10 {
		write(chunk)
	}
	eventually(t, "ten chunks are charged", func() bool { return s.bodies.value() >= 10<<16 })
	if n := s.bodies.value(); n > 2*10<<16 {
		t.Errorf("%d bytes are charged for %d", n, 10<<16)
	}
	write(ping)
	fmt.Fprint(w, "0\r\n\r\n")
	if res := w.head(t); res.StatusCode != 200 {
		t.Errorf("got %s", res.Status)
	}
	eventually(t, "nothing is charged", func() bool { return s.bodies.value() == 0 })
}

// printer is a tool whose result has size bytes.
func printer(size int) Tool {
	text := strings.Repeat("x", size)
	return extra("print", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	})
}

// TestAnswers_OfBatchAreBounded: the answers that wait for the last one of a batch take the
// share of their owner and no more, also if each is small. The others are errors that say so.
func TestAnswers_OfBatchAreBounded(t *testing.T) {
	for _, limit := range []struct{ size, each int }{{200 << 10, 1 << 20}, {smallAnswer / 2, 41 << 10}} {
		size, each := limit.size, limit.each
		p := newPeople(t)
		release, started := make(chan struct{}), make(chan struct{}, 1)
		s, url := serve(t, p.options(func(o *Options) {
			o.Limits.Answers = 2 * int64(each)
			o.Extend.Tools = append(slow(release, started), printer(size))
		}))
		batch := "[" + toolCall(99, "slow", "{}") + "," + strings.TrimPrefix(batchOf(20, "print", "{}"), "[")
		ended := make(chan string, 1)
		go func() {
			h := p.as("alice")
			h["Accept"] = "application/json"
			_, body := do(t, "POST", url, h, batch)
			ended <- body
		}()
		<-started
		eventually(t, "the other calls end", func() bool { return s.calls.counted.value() == 1 })
		if n := s.answers.value(); n > each || n < each-size-1<<10 {
			t.Errorf("%d bytes wait, want nearly %d", n, each)
		}
		if res, body := do(t, "POST", url, p.as("bob"), toolCall(1, "print", "{}")); res.StatusCode != 200 || len(body) < size {
			t.Errorf("another owner: %s, %d bytes", res.Status, len(body))
		}
		release <- struct{}{}
		body := <-ended
		if sent, refused := strings.Count(body, strings.Repeat("x", size)), strings.Count(body, "answers that this user may leave unread"); sent != each/size || sent+refused != 20 {
			t.Errorf("%d answers of %d bytes and %d errors, want %d and %d", sent, size, refused, each/size, 20-each/size)
		}
		eventually(t, "nothing waits", func() bool { return s.answers.value() == 0 })
	}
}

// TestAnswers_LimitSaysWhose: a client learns whether its owner's unread answers or those of all fill the
// memory for them, when it resumes a stream and when it gets an error in place of an answer.
func TestAnswers_LimitSaysWhose(t *testing.T) {
	const size, each = 200 << 10, 1 << 20
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.Answers, o.Extend.Tools = 2*each, []Tool{printer(size)}
	}))
	alice := p.sessionOf(t, url, "alice")
	_, body := do(t, "POST", url, alice, toolCall(1, "print", "{}"))
	_, id, _ := strings.Cut(body, "\nid: ")
	event, _, _ := strings.Cut(id, "\n")
	own := account{"token alice", false}
	for _, c := range []struct {
		name         string
		holders      []account
		status       int
		reason, text string
	}{
		{"of the owner", []account{own}, 429, "owner_limit", "answers that this user may leave unread"},
		{"of others", []account{{"x", false}, {"y", false}}, 503, "server_limit", "answers that all users together may leave unread"},
	} {
		for _, a := range c.holders {
			if s.answers.take(a, each) != withinLimits {
				t.Fatalf("%s: no room for what %v holds", c.name, a)
			}
		}
		res, body := do(t, "GET", url, with(alice, "Accept", eventStream, headerLastEvent, event), "")
		lines := p.lines(t)
		if last := lines[len(lines)-1]; res.StatusCode != c.status || last["reason"] != c.reason {
			t.Errorf("unread answers %s: resuming a stream: %s %s, logged %v, want %d and %s", c.name, res.Status, body, last, c.status, c.reason)
		}
		if _, body := do(t, "POST", url, alice, toolCall(2, "print", "{}")); !strings.Contains(body, c.text) {
			t.Errorf("unread answers %s: a call: %.300s, want %q", c.name, body, c.text)
		}
		for _, a := range c.holders {
			s.answers.give(a, each)
		}
	}
}

// TestAnswers_OfSlowReadersAreBounded: clients that do not read their answers hold the share
// of their owner and no more, and others get theirs.
func TestAnswers_OfSlowReadersAreBounded(t *testing.T) {
	const size, each = 16 << 20, 40 << 20 // more than the buffers of a socket
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.Answers = 2 * each
		o.Extend.Tools = []Tool{printer(size)}
	}))
	for range 4 {
		w := dialWire(t, url)
		_ = w.SetReadBuffer(4 << 10)
		w.post(t, p.as("alice"), toolCall(1, "print", "{}"))
	}
	eventually(t, "the calls have ended", func() bool { return s.answers.value() > size && s.calls.counted.value() == 0 && s.posts.value() == 2 })
	if n := s.answers.value(); n > each {
		t.Errorf("%d bytes wait, want at most %d", n, each)
	}
	// Fewer bytes are left than any large answer has.
	alice := account{owner: "token alice"}
	s.answers.take(alice, each-int64(s.answers.value()))
	if !s.answers.full(alice) {
		t.Fatal("the owner may leave more bytes unread")
	}
	if res, body := do(t, "POST", url, p.as("alice"), toolCall(1, "list_contexts", "{}")); res.StatusCode != 200 || parse(t, body).Error != nil {
		t.Errorf("a small answer of the same owner: %s %s", res.Status, body)
	}
	if res, body := do(t, "POST", url, p.as("bob"), toolCall(1, "print", "{}")); res.StatusCode != 200 || len(body) < size {
		t.Errorf("another owner: %s, %d bytes", res.Status, len(body))
	}
}

// TestBatch_StatusIsIndependentOfOrder: the HTTP status of a batch does not depend on which of its
// requests is answered last.
func TestBatch_StatusIsIndependentOfOrder(t *testing.T) {
	_, url := serve(t, nil)
	// The SDK refuses the second, which alone has the status 400.
	bad := `{"jsonrpc":"2.0","id":2,"method":"prompts/get"}`
	h := header{"Accept": "application/json"}
	for _, batch := range []string{"[" + ping + "," + bad + "]", "[" + bad + "," + ping + "]"} {
		if res, body := do(t, "POST", url, h, batch); res.StatusCode != http.StatusOK {
			t.Errorf("%s: got %s %s", batch, res.Status, body)
		}
	}
}

// TestListener_SlowReaderDelaysNoOther: a notification for all sessions reaches those
// that read, however slowly others do.
func TestListener_SlowReaderDelaysNoOther(t *testing.T) {
	var server *mcp.Server
	_, url := serve(t, func(o *Options) {
		o.Limits.Write = 10 * time.Minute
		o.Extend.Configure = func(opts *mcp.ServerOptions) {
			opts.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
			opts.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
		}
		o.Extend.Server = func(s *mcp.Server) { server = s }
	})
	uri := "glovebox://session/s/home/user/" + strings.Repeat("x", 64<<10)
	const slow, events = 4, 150 // more bytes than the buffers of a socket
	var sessions []header
	for range slow + 1 {
		h := session(t, url)
		if res, body := do(t, "POST", url, h, rpc("resources/subscribe", `{"uri":"`+uri+`"}`)); res.StatusCode != 200 || parse(t, body).Error != nil {
			t.Fatalf("subscribe: %s %s", res.Status, body)
		}
		sessions = append(sessions, h)
	}
	for _, h := range sessions[:slow] {
		w := dialWire(t, url)
		_ = w.SetReadBuffer(4 << 10)
		fmt.Fprintf(w, "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\nMcp-Protocol-Version: 2025-11-25\r\n\r\n", h[headerSession])
		w.head(t)
	}
	reader := listenTo(t, t.Context(), url, sessions[slow])
	got := make(chan struct{}, events)
	go func() {
		lines := bufio.NewScanner(reader.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if lines.Text() == "event: message" {
				got <- struct{}{}
			}
		}
	}()
	// The write limit is longer: nobody waits until a slow client is given up.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range events {
		if err := server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range events {
		select {
		case <-got:
		case <-ctx.Done():
			t.Fatalf("the client that reads got %d of %d notifications", n, events)
		}
	}
}
