package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// These tests send the requests of a read token, the reader, and of a use token of the same owner,
// alice. docs/security.md promises that the reader gets at most half of what the owner may have, so
// that alice can still work.

// readOnly makes tools such that the scope read allows them.
func readOnly(list ...Tool) []Tool {
	closed := false
	for i := range list {
		list[i].Def.Annotations = &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &closed}
	}
	return list
}

// answerOf is the status and text of an answer, for a message.
func answerOf(res *http.Response, body string) string {
	return fmt.Sprintf("%s %.300s", res.Status, body)
}

// returned waits until nothing is charged to any account. If an amount is charged to one and given back
// to another, the budget holds nothing in all, but something of each of the two.
func (b *budget) returned(tb testing.TB, what string) {
	tb.Helper()
	eventually(tb, what+" are given back", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.total == 0 && len(b.held) == 0
	})
}

// sessionOf begins an MCP session with a token, and returns the headers of its requests.
func (p *people) sessionOf(tb testing.TB, url, key string) header {
	tb.Helper()
	res, body := do(tb, "POST", url, p.as(key), initBody)
	if res.StatusCode != 200 {
		tb.Fatalf("initialize of %s: %s", key, answerOf(res, body))
	}
	return p.as(key, headerSession, res.Header.Get(headerSession), headerVersion, "2025-11-25")
}

// unfinished sends the beginning of a request whose body never ends.
func (p *people) unfinished(tb testing.TB, url, key string, size int) {
	tb.Helper()
	w := dialWire(tb, url)
	fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", p.tokens[key], size)
}

// TestReadToken_Calls: a read token gets half of the owner's calls and of the requests of other kinds, in
// a batch and in requests of their own.
func TestReadToken_Calls(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 8)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.OwnerCalls, o.Extend.Tools = 4, readOnly(slow(release, started)...) // and 5 requests
	}))
	ended := make(chan string, 3)
	post := func(who, body string) {
		go func() {
			_, answer, err := tryDo(t.Context(), url, p.as(who), body)
			ended <- fmt.Sprint(answer, err)
		}()
	}
	post("reader", batchOf(4, "slow", "{}"))
	for range 2 {
		<-started
	}
	eventually(t, "the other two are refused", func() bool { // before places are free again
		n := 0
		for _, l := range p.lines(t) {
			if l["outcome"] == "refused" {
				n++
			}
		}
		return n == 2
	})
	if n := s.quota.value(); n != 2 {
		t.Errorf("%d calls of the reader's batch run, want half of 4", n)
	}
	call := toolCall(7, "slow", "{}")
	if res, body := do(t, "POST", url, p.as("reader"), call); res.StatusCode != 429 || !strings.Contains(body, "RESOURCE_LIMIT_ERROR") {
		t.Errorf("a further call of the reader: %s, want 429", answerOf(res, body))
	}
	if res, body := do(t, "POST", url, p.as("reader"), ping); res.StatusCode != 429 || !strings.Contains(body, "Too many calls at once") {
		t.Errorf("a further request of the reader: %s, want 429", answerOf(res, body))
	}
	for range 2 {
		post("alice", call)
		<-started
	}
	if res, body := do(t, "POST", url, p.as("alice"), ping); res.StatusCode != 200 {
		t.Errorf("a request of alice beside her calls: %s", answerOf(res, body))
	}
	if res, body := do(t, "POST", url, p.as("alice"), call); res.StatusCode != 429 {
		t.Errorf("a call over the limit of the owner: %s, want 429", answerOf(res, body))
	}
	close(release)
	done := 0
	for range 3 {
		done += strings.Count(<-ended, "done")
	}
	if done != 4 {
		t.Errorf("%d calls ran, want 4", done)
	}
	s.quota.returned(t, "the calls")
	s.requests.returned(t, "the requests")
}

// TestReadToken_Streams: a read token gets half of the owner's streams, those of sessions and those of the
// modern revision together.
func TestReadToken_Streams(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { announcesTools(o); o.Limits.OwnerStreams = 4 }))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	subscribe := func(who string) int {
		h := p.as(who, headerVersion, "2026-07-28", "Mcp-Method", methodListen)
		return openStream(t, ctx, "POST", url, h, modernBody(7, methodListen, `"notifications":{"toolsListChanged":true}`)).StatusCode
	}
	listen := func(who string) int { return listenTo(t, ctx, url, p.sessionOf(t, url, who)).StatusCode }
	for i, c := range []struct {
		who  string
		open func(who string) int
		want int
	}{
		{"reader", listen, 200}, {"reader", subscribe, 200}, {"reader", listen, 429}, {"reader", subscribe, 429},
		{"alice", listen, 200}, {"alice", subscribe, 200}, {"alice", listen, 429}, {"alice", subscribe, 429},
	} {
		if got := c.open(c.who); got != c.want {
			t.Errorf("stream %d, of %s: %d, want %d", i, c.who, got, c.want)
		}
	}
	cancel()
	s.streams.returned(t, "the streams")
}

// TestReadToken_Bodies: a read token gets half of the owner's memory for large bodies.
func TestReadToken_Bodies(t *testing.T) {
	p := newPeople(t)
	const size = 2 << 20
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Body = size }))
	const half = largeBodies / 4 // of what the owner has, which is half of all
	for range half {
		p.unfinished(t, url, "reader", size)
	}
	eventually(t, "all are being read", func() bool { return s.bodies.value() == half*size })
	large := strings.Replace(ping, "{", "{"+strings.Repeat(" ", size/2), 1)
	if res, body := do(t, "POST", url, p.as("reader"), large); res.StatusCode != 429 || !strings.Contains(body, "Too many large requests") {
		t.Errorf("a further body of the reader: %s, want 429", answerOf(res, body))
	}
	if res, body := do(t, "POST", url, p.as("reader"), ping); res.StatusCode != 200 {
		t.Errorf("a small body of the reader: %s", answerOf(res, body))
	}
	if res, body := do(t, "POST", url, p.as("alice"), large); res.StatusCode != 200 {
		t.Errorf("a body of alice: %s", answerOf(res, body))
	}
}

// TestReadToken_InFlight: a read token gets half of the owner's requests in flight, bodies that never end
// included.
func TestReadToken_InFlight(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.BehindProxy, o.Limits.Connections = true, 16 }))
	const half = 16 / 4 // of what the owner has, which is half of the connections
	for range half {
		p.unfinished(t, url, "reader", 100)
	}
	eventually(t, "all are being read", func() bool { return s.inFlight.value() == half })
	if res, body := do(t, "POST", url, p.as("reader"), ping); res.StatusCode != 429 || !strings.Contains(body, "Too many requests in flight") {
		t.Errorf("a further request of the reader: %s, want 429", answerOf(res, body))
	}
	for range half {
		p.unfinished(t, url, "alice", 100)
	}
	eventually(t, "those of alice are being read too", func() bool { return s.inFlight.value() == 2*half })
	if res, body := do(t, "POST", url, p.as("alice"), ping); res.StatusCode != 429 {
		t.Errorf("a request over the limit of the owner: %s, want 429", answerOf(res, body))
	}
}

// TestReadToken_Answers: a read token gets half of the owner's memory for answers that nobody has read,
// whether they are charged when they are there or before.
func TestReadToken_Answers(t *testing.T) {
	const size, half = 200 << 10, 1 << 20
	p := newPeople(t)
	var s *Server
	errNoRoom := errors.New("answers: no room before the call")
	before := func(name string, room func(ctx context.Context) bool) Tool {
		tool := printer(size)
		tool.Def.Name = name
		answer := tool.Handler
		tool.Handler = func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if !room(ctx) {
				return nil, errNoRoom
			}
			return answer(ctx, req)
		}
		return tool
	}
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, p.options(func(o *Options) {
		o.Limits.Answers = 4 * half // and half of that for an owner
		o.Extend.Tools = readOnly(append(slow(release, started), printer(size),
			before("reserve", func(ctx context.Context) bool { return s.reserve(ctx, size) }),  // as downloads
			before("fits", func(ctx context.Context) bool { return s.fits(ctx, size) == nil }), // as other tools of the catalogue
		)...)
	}))
	lists := map[string]header{}
	events := map[string]string{} // the first of an answer that its client has read
	for _, who := range []string{"reader", "alice"} {
		lists[who] = p.sessionOf(t, url, who)
		res, body := do(t, "POST", url, lists[who], toolCall(1, "print", "{}"))
		_, id, _ := strings.Cut(body, "\nid: ")
		events[who], _, _ = strings.Cut(id, "\n")
		if res.StatusCode != 200 || events[who] == "" || len(body) < size {
			t.Fatalf("an answer of %s: %s", who, answerOf(res, body))
		}
	}
	again := func(who string) (*http.Response, string) {
		return do(t, "GET", url, with(lists[who], "Accept", eventStream, headerLastEvent, events[who]), "")
	}
	for _, tool := range []string{"print", "reserve", "fits"} {
		ended := make(chan string, 1)
		go func() {
			batch := "[" + toolCall(99, "slow", "{}") + "," + strings.TrimPrefix(batchOf(20, tool, "{}"), "[")
			_, body, err := tryDo(t.Context(), url, p.as("reader", "Accept", "application/json"), batch)
			ended <- fmt.Sprint(body, err)
		}()
		<-started
		eventually(t, "the other calls end", func() bool { return s.calls.counted.value() == 1 })
		if n := s.answers.value(); n > half || n < half-size-1<<10 {
			t.Errorf("%s: %d bytes of the reader wait, want nearly %d", tool, n, half)
		}
		if res, body := again("reader"); res.StatusCode != 429 || !strings.Contains(body, "Too many unread answers") {
			t.Errorf("%s: the reader resumes a stream with an answer: %s, want 429", tool, answerOf(res, body))
		}
		if res, body := again("alice"); res.StatusCode != 200 || len(body) < size {
			t.Errorf("%s: alice resumes a stream with an answer: %s", tool, answerOf(res, body))
		}
		if res, body := do(t, "POST", url, p.as("alice"), toolCall(1, tool, "{}")); res.StatusCode != 200 || len(body) < size {
			t.Errorf("%s: a call of alice: %s", tool, answerOf(res, body))
		}
		release <- struct{}{}
		if n := strings.Count(<-ended, strings.Repeat("x", size)); n != half/size {
			t.Errorf("%s: the reader gets %d answers, want %d", tool, n, half/size)
		}
		s.answers.returned(t, "the answers")
	}
}

// TestReadToken_ForwardedRequests: streams of sessions that another server has, and ends of such sessions,
// take the places of a read token.
func TestReadToken_ForwardedRequests(t *testing.T) {
	p := newPeople(t)
	all := neighbors(t, 2, p.options(func(o *Options) {
		o.BehindProxy, o.Limits.Connections, o.Limits.OwnerStreams = true, 16, 4
	}))
	there, here := all[0].url, all[1]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 { // half of the owner's streams, at this server only
		if res := listenTo(t, ctx, here.url, p.sessionOf(t, here.url, "reader")); res.StatusCode != 200 {
			t.Fatalf("a stream of the reader: %s", res.Status)
		}
	}
	for who, want := range map[string]int{"reader": 429, "alice": 200} {
		if res := listenTo(t, ctx, here.url, p.sessionOf(t, there, who)); res.StatusCode != want {
			t.Errorf("a forwarded stream of %s: %s, want %d", who, res.Status, want)
		}
	}
	cancel()
	here.streams.returned(t, "the streams")
	here.inFlight.returned(t, "the requests")

	for range 16 / 4 {
		p.unfinished(t, here.url, "reader", 100)
	}
	eventually(t, "all are being read", func() bool { return here.inFlight.value() == 16/4 })
	for who, want := range map[string]int{"reader": 429, "alice": 204} {
		if res, body := do(t, "DELETE", here.url, p.sessionOf(t, there, who), ""); res.StatusCode != want {
			t.Errorf("%s ends a session of the other server: %s, want %d", who, answerOf(res, body), want)
		}
	}
}

// TestReadToken_AtLeastOne: of a limit of one, a read token gets one, and half of a greater one.
func TestReadToken_AtLeastOne(t *testing.T) {
	reader := account{"alice", true}
	for each, want := range map[int64]int64{1: 1, 2: 1, 3: 1, 4: 2} {
		b := &budget{each: each}
		if e := b.take(reader, want); e != withinLimits {
			t.Errorf("of %d, a reader does not get %d: %v", each, want, e)
		}
		if e := b.take(reader, 1); e != ownerExcess {
			t.Errorf("of %d, a reader gets more than %d: %v", each, want, e)
		}
	}
}
