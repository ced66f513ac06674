package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// TestReadToken_SessionsOfItsOwn: a token with the scope read has nothing to do with the sessions of
// tokens with the scope use of its owner, and they not with its own: it ends none, takes no stream,
// cancels no call, answers no question, and occupies no id of a request.
func TestReadToken_SessionsOfItsOwn(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	_, url := serve(t, p.options(func(o *Options) { o.Extend.Tools = slow(release, started) }))
	begin := func(who string) string {
		res, body := do(t, "POST", url, p.as(who), initBody)
		id := res.Header.Get(headerSession)
		if id == "" {
			t.Fatalf("initialize: %s %s", res.Status, body)
		}
		return id
	}
	id, own := begin("alice"), begin("reader")
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, p.as("alice", headerSession, id), toolCall(1, "slow", "{}"))
		ended <- body
	}()
	<-started
	cancelled := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`
	for _, c := range []struct{ name, method, accept, body string }{
		{"end the session", "DELETE", "", ""},
		{"cancel a call", "POST", mcpAccept, fmt.Sprintf(cancelled, 1)},
		{"cancel a call that may begin", "POST", mcpAccept, fmt.Sprintf(cancelled, 2)},
		{"answer a question", "POST", mcpAccept, `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`},
		{"take the stream", "GET", eventStream, ""},
		{"occupy an id", "POST", mcpAccept, `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`},
	} {
		if res, body := do(t, c.method, url, p.as("reader", "Accept", c.accept, headerSession, id), c.body); res.StatusCode != 404 {
			t.Errorf("%s: %s %s", c.name, res.Status, body)
		}
		if res, body := do(t, c.method, url, p.as("alice", "Accept", c.accept, headerSession, own), c.body); res.StatusCode != 404 {
			t.Errorf("%s, in the session of the read token: %s %s", c.name, res.Status, body)
		}
	}
	select {
	case body := <-ended:
		t.Fatalf("the call has ended: %s", body)
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	if body := <-ended; !strings.Contains(body, "done") {
		t.Errorf("the call: %s", body)
	}
	if res, body := do(t, "POST", url, p.as("alice", headerSession, id), ping); res.StatusCode != 200 {
		t.Errorf("the session: %s %s", res.Status, body)
	}
	if res, body := do(t, "DELETE", url, p.as("reader", headerSession, own), ""); res.StatusCode != 204 {
		t.Errorf("end a session of its own: %s %s", res.Status, body)
	}
}

// TestReadToken_SessionsMakeRoom: sessions of read tokens are at most half of their owner's, end none of
// use tokens of their owner, and make room for those although they were in use just now.
func TestReadToken_SessionsMakeRoom(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Sessions = 8 })) // 4 of an owner
	if s.sessions.each != 4 {
		t.Fatalf("an owner may have %d sessions", s.sessions.each)
	}
	begin := func(who string, want int) string {
		t.Helper()
		res, body := do(t, "POST", url, p.as(who), initBody)
		if res.StatusCode != want {
			t.Fatalf("a session of %s: %s %s, want %d", who, res.Status, body, want)
		}
		return res.Header.Get(headerSession)
	}
	lives := func(who, id string) bool {
		res, _ := do(t, "POST", url, p.as(who, headerSession, id), ping)
		return res.StatusCode == 200
	}
	oldest := begin("alice", 200)
	s.sessions.mu.Lock()
	for _, sess := range s.sessions.live { // it could make room
		sess.since = sess.since.Add(-2 * restBeforeEviction)
	}
	s.sessions.mu.Unlock()
	readers := []string{begin("reader", 200), begin("reader", 200)}
	begin("reader", 429) // none of them is idle, and that of alice is not the reader's to end
	s.sessions.mu.Lock()
	idle := s.sessions.live[readers[0]]
	idle.since = idle.since.Add(-2 * restBeforeEviction)
	s.sessions.mu.Unlock()
	readers = []string{readers[1], begin("reader", 200)}
	if lives("reader", idle.id) {
		t.Error("the reader has three sessions, want the idle one ended for the new one")
	}
	begin("alice", 200)
	begin("alice", 200) // the fifth: in place of one of the reader's
	if lives("reader", readers[0]) || !lives("reader", readers[1]) {
		t.Error("a session of the reader was to make room, that which is idle longest")
	}
	if !lives("alice", oldest) {
		t.Error("a session of alice made room although one of the reader could")
	}
	begin("alice", 200) // all were in use just now, and the other one of the reader makes room
	if lives("reader", readers[1]) || !lives("alice", oldest) {
		t.Error("the last session of the reader was to make room")
	}
	begin("alice", 429) // none of hers is idle
}

// TestReadToken_SessionsOfOtherOwners: at the limit of all sessions, a read token gets one in place of one
// of an owner with more, also of its use tokens. Use tokens of an owner with more sessions end none of a read
// token of another owner.
func TestReadToken_SessionsOfOtherOwners(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Sessions = 8 })) // 4 of an owner
	begin := func(who string, want int) header {
		t.Helper()
		res, body := do(t, "POST", url, p.as(who), initBody)
		if res.StatusCode != want {
			t.Fatalf("a session of %s: %s %s, want %d", who, res.Status, body, want)
		}
		return p.as(who, headerSession, res.Header.Get(headerSession))
	}
	for range 4 {
		begin("bob", 200)
		begin("carol", 200)
	}
	first, second := begin("reader", 200), begin("reader", 200)
	begin("bob", 503) // bob and carol have 3 each, all in use just now
	begin("carol", 503)
	if n := s.sessions.count(); n != 8 || !s.sessions.has(first) || !s.sessions.has(second) {
		t.Errorf("%d sessions, those of the reader: %v and %v", n, s.sessions.has(first), s.sessions.has(second))
	}
}

// TestReadToken_MakesRoomAtLimitOfAll: at the limit of all sessions, that of a read token ends for one of a use
// token of its owner, although no owner has two more.
func TestReadToken_MakesRoomAtLimitOfAll(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Sessions = 8 })) // 4 of an owner
	begin := func(who string) header {
		t.Helper()
		return p.sessionOf(t, url, who)
	}
	first := begin("reader")
	begin("alice")
	for range 3 {
		begin("bob")
		begin("carol")
	}
	second := begin("alice") // all were in use just now
	if n := s.sessions.count(); n != 8 || s.sessions.has(first) || !s.sessions.has(second) {
		t.Errorf("%d sessions, that of the reader is there: %v, and that of alice: %v", n, s.sessions.has(first), s.sessions.has(second))
	}
}

// TestReadToken_MakesRoomForOtherOwners: of an owner who has more sessions than the one who gets a place,
// sessions of read tokens make room first, although those of use tokens have been idle for longer.
func TestReadToken_MakesRoomForOtherOwners(t *testing.T) {
	p := newPeople(t)
	for _, reader := range []bool{false, true} {
		s, url := serve(t, p.options(func(o *Options) { o.Limits.Sessions = 8 })) // 4 of an owner
		begin := func(who string) header {
			t.Helper()
			res, body := do(t, "POST", url, p.as(who), initBody)
			if res.StatusCode != 200 {
				t.Fatalf("a session of %s: %s %s", who, res.Status, body)
			}
			return p.as(who, headerSession, res.Header.Get(headerSession))
		}
		use := []header{begin("alice"), begin("alice")}
		readers := []header{begin("reader"), begin("reader")}
		carols := begin("carol")
		for range 3 {
			begin("carol")
		}
		s.sessions.mu.Lock()
		for _, sess := range s.sessions.live { // carol's stay
			if sess.account.owner == s.sessions.live[carols[headerSession]].account.owner {
				sess.busy++
			}
		}
		s.sessions.mu.Unlock()
		release, exceeded := s.sessions.reserve(account{"another", reader})
		if exceeded != withinLimits {
			t.Fatalf("reader %v: no place", reader)
		}
		release()
		if !s.sessions.has(use[0]) || !s.sessions.has(use[1]) {
			t.Errorf("reader %v: a session of a use token made room", reader)
		}
		if s.sessions.has(readers[0]) || !s.sessions.has(readers[1]) {
			t.Errorf("reader %v: the session of the read token that is idle longest was to make room", reader)
		}
	}
}

// TestReadToken_Budgets: what an owner may have of calls, streams, bodies, answers and requests in flight,
// read tokens may use up by half only.
func TestReadToken_Budgets(t *testing.T) {
	b := budget{all: 100, each: 10}
	reader, user, other := account{"alice", true}, account{owner: "alice"}, account{owner: "bob"}
	if n := b.clamp(reader, 50); n != 5 || b.take(reader, n) != withinLimits {
		t.Errorf("a reader can take %d of 10", n)
	}
	if b.take(reader, 1) != ownerExcess || !b.full(reader) || b.full(user) {
		t.Error("a reader takes more than half")
	}
	if b.take(user, 5) != withinLimits || b.take(user, 1) != ownerExcess || !b.full(user) {
		t.Error("the owner has another limit than 10")
	}
	if b.take(other, 10) != withinLimits {
		t.Error("another owner has less than 10")
	}
	b.give(reader, 5)
	b.give(user, 5)
	b.give(other, 10)
	if len(b.held) != 0 || b.total != 0 {
		t.Errorf("%v and %d are left", b.held, b.total)
	}
}

// TestReadToken_RateOfItsOwn: a read token that sends too many requests uses up no rate of use tokens.
func TestReadToken_RateOfItsOwn(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 2 }))
	for i, want := range []int{200, 200, 429} {
		if res, body := do(t, "POST", url, p.as("reader"), ping); res.StatusCode != want {
			t.Errorf("request %d of the reader: %s %s, want %d", i, res.Status, body, want)
		}
	}
	if res, body := do(t, "POST", url, p.as("alice"), ping); res.StatusCode != 200 {
		t.Errorf("alice: %s %s", res.Status, body)
	}
}

// ownVolumes are the volumes of owners, for a manager.
type ownVolumes struct{ set *volume.Set }

func (v ownVolumes) Of(owner box.Owner) ([]engine.Mount, error) { return v.set.Of(string(owner)) }
func (v ownVolumes) Peek(owner box.Owner) []engine.Mount        { return v.set.Peek(string(owner)) }

// withVolumes gives the server boxes with a directory for each owner below parent.
func withVolumes(t *testing.T, parent string) func(*Options) {
	t.Helper()
	set, err := volume.Open([]volume.Volume{{Host: parent, Guest: "/shared", PerOwner: true}}, filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	m := toolstest.ManagerWith(t, nil, func(p *box.Parts) {
		p.Machines, p.Volumes = p.Machines.WithVolumes(set.Ownerless()), ownVolumes{set}
	})
	return func(o *Options) { o.Tools.Boxes = m }
}

// TestReadToken_CreatesNoBox: no tool that the scope read allows creates a box, or the
// directory of an owner.
func TestReadToken_CreatesNoBox(t *testing.T) {
	p := newPeople(t)
	parent := t.TempDir()
	if err := os.Chmod(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	s, url := serve(t, p.options(withVolumes(t, parent)))
	res, _ := do(t, "POST", url, p.as("reader"), initBody)
	id := res.Header.Get(headerSession)
	tried := 0
	for tool, readOnly := range s.readOnly {
		if !readOnly {
			continue
		}
		for _, arguments := range []string{
			`{}`, `{"session_id":"default"}`, `{"context_id":"default"}`, `{"session_id":"default","path":"x"}`,
			`{"context_id":"default","path":"x"}`, `{"session_id":"new","path":"x"}`, `{"context_id":"ctx-01234567-89ab-cdef-0123-456789abcdef","path":"x"}`,
		} {
			for _, h := range []header{p.as("reader"), p.as("reader", headerSession, id)} {
				tried++
				if res, body := do(t, "POST", url, h, toolCall(7, tool, arguments)); res.StatusCode >= 400 {
					t.Errorf("%s %s: %s %s", tool, arguments, res.Status, body)
				}
			}
		}
	}
	do(t, "POST", url, p.as("reader", headerSession, id), rpc("resources/read", `{"uri":"glovebox://context/default/home/user/x"}`))
	if boxes, err := s.opts.Tools.Boxes.List("token alice", ""); err != nil || len(boxes) > 0 || tried == 0 {
		t.Errorf("%d calls with the scope read created %+v, %v", tried, boxes, err)
	}
	if list, err := os.ReadDir(parent); err != nil || len(list) > 0 {
		t.Errorf("calls with the scope read created %v, %v", list, err)
	}
	if _, body := do(t, "POST", url, p.as("reader"), toolCall(8, "get_volume_path", `{}`)); !strings.Contains(body, parent+"/") {
		t.Errorf("get_volume_path does not say where the directory is: %s", body)
	}
}

// TestReadToken_RevivesNoSession: a read of a session that has just expired makes no new one in its place.
func TestReadToken_RevivesNoSession(t *testing.T) {
	const idle = 2 * time.Second
	p := newPeople(t)
	m := toolstest.Manager(t, func(c *box.Config) { c.IdleTimeout, c.CleanupInterval = idle, idle-time.Millisecond })
	_, url := serve(t, p.options(func(o *Options) { o.Tools.Boxes = m }))
	do(t, "POST", url, p.as("alice"), toolCall(1, "execute_code", `{"session_id":"s","code":"1"}`))
	time.Sleep(idle + idle/10) // it expires before the first check for expired boxes that finds it
	for _, who := range []string{"reader", "alice"} {
		if _, body := do(t, "POST", url, p.as(who), toolCall(2, "list_files", `{"session_id":"s"}`)); !strings.Contains(body, "Session not found: s") {
			t.Errorf("%s: %s", who, body)
		}
	}
	if boxes, err := m.List("token alice", ""); err != nil || len(boxes) > 0 {
		t.Errorf("there are %+v, %v", boxes, err)
	}
}

// TestReadToken_OpenWorld: the scope read does not allow tools that send their arguments
// to others, although they change nothing.
func TestReadToken_OpenWorld(t *testing.T) {
	p := newPeople(t)
	open, closed := true, false
	_, url := serve(t, p.options(func(o *Options) {
		for name, world := range map[string]*bool{"search": &open, "look": &closed, "unsaid": nil} {
			tool := extra(name, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
			})
			tool.Def.Annotations = &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: world}
			o.Extend.Tools = append(o.Extend.Tools, tool)
		}
	}))
	for _, test := range []struct {
		who, tool string
		status    int
	}{{"reader", "look", 200}, {"reader", "search", 403}, {"reader", "unsaid", 403}, {"alice", "search", 200}} {
		if res, body := do(t, "POST", url, p.as(test.who), toolCall(1, test.tool, "{}")); res.StatusCode != test.status {
			t.Errorf("%s calls %s: %s %s, want %d", test.who, test.tool, res.Status, body, test.status)
		}
	}
}

// TestAudit_RefusedRequests: another owner's session, the end of a session, parameters that
// the SDK refuses and limits leave lines in the audit log, and those about limits are few.
func TestAudit_RefusedRequests(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 4)
	_, url := serve(t, p.options(func(o *Options) {
		o.Limits.Calls, o.Limits.OwnerCalls = 4, 4
		o.Extend.Tools = slow(release, started)
	}))
	defer close(release)
	res, _ := do(t, "POST", url, p.as("alice"), initBody)
	id := res.Header.Get(headerSession)
	do(t, "POST", url, p.as("bob", headerSession, id), ping)
	do(t, "DELETE", url, p.as("bob", headerSession, id), "")
	do(t, "GET", url, p.as("bob", headerSession, id, "Accept", eventStream), "")
	do(t, "POST", url, p.as("alice", headerSession, id), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{},"_meta":7}}`)
	do(t, "POST", url, p.as("alice", headerSession, id), `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":7}}`)
	do(t, "DELETE", url, p.as("alice", headerSession, id), "")
	for id := range 4 { // takes all places of bob
		dialWire(t, url).post(t, p.as("bob"), toolCall(id, "slow", "{}"))
		<-started
	}
	for range 3 * refusedLineBurst {
		if res, body := do(t, "POST", url, p.as("bob"), rpc("tools/list", "{}")); res.StatusCode != 429 {
			t.Errorf("over the share: %s %s", res.Status, body)
		}
	}
	got := map[string]int{}
	for _, line := range p.lines(t) {
		switch line["msg"] {
		case "refused":
			got[fmt.Sprint(line["who"], " ", line["reason"])]++
		case "call":
			got[fmt.Sprint(line["who"], " ", line["tool"], " ", line["outcome"], " ", line["code"])]++
		}
	}
	for line, n := range map[string]int{
		"token bob foreign_session":                 3,
		"token alice slow refused -32602":           1,
		"token alice resources/read refused -32602": 1,
		"token alice DELETE ok 0":                   1,
	} {
		if got[line] != n {
			t.Errorf("%d lines %q, want %d", got[line], line, n)
		}
	}
	if n := got["token bob owner_limit"]; n == 0 || n > 2*refusedLineBurst {
		t.Errorf("%d lines about a limit, want 1 to %d", n, 2*refusedLineBurst)
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestAudit_CallThatAsksIsOneCall: a call in a session that asks the client for input is
// logged and counted once.
func TestAudit_CallThatAsksIsOneCall(t *testing.T) {
	p := newPeople(t)
	seen := make(chan Observation, 8)
	_, url := serve(t, p.options(func(o *Options) {
		o.Observe = func(b Observation) {
			if b.Method == callTool {
				seen <- b
			}
		}
		o.Extend.Tools = []Tool{extra("ask", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if len(req.Params.InputResponses) == 0 {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": &mcp.ElicitParams{Message: "name?", RequestedSchema: map[string]any{"type": "object"}}}}, nil
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		})}
		o.Extend.Tools[0].Direct = true
	}))
	cs := connect(t, p.transport("alice", url), "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
	})
	if _, said := must(t, cs, "ask", nil); said != "done" {
		t.Errorf("got %q", said)
	}
	lines := 0
	for _, line := range p.lines(t) {
		if line["msg"] == "call" {
			lines++
		}
	}
	if lines != 1 || len(seen) != 1 {
		t.Errorf("%d lines in the audit log and %d observations of one call", lines, len(seen))
	}
}

// TestHost_BeyondLoopback: without tokens, a web page that resolves its own name to the
// server's address is refused on every address.
func TestHost_BeyondLoopback(t *testing.T) {
	for _, c := range []struct {
		host   string
		change func(*Options)
		want   int
	}{
		{"evil.example:8775", nil, 403},
		{"evil.example", nil, 403},
		{"192.0.2.1.evil.example", nil, 403},
		{"", nil, 403},
		{"192.0.2.1:8775", nil, 200},
		{"[2001:db8::1]:8775", nil, 200},
		{"localhost:8775", nil, 200},
		{"boxes.example", func(o *Options) { o.PublicURL = "https://boxes.example/mcp" }, 200},
		{"evil.example", func(o *Options) { o.PublicURL = "https://boxes.example/mcp" }, 403},
		{"boxes.example:80", func(o *Options) { o.AllowedHosts = []string{"boxes.example"} }, 200},
		{"192.0.2.1", func(o *Options) { o.AllowedHosts = []string{"boxes.example"} }, 403},
		{"boxes.example", func(o *Options) { o.Auth = newPeople(t).v }, 401}, // a page has no token
		// A list is one with tokens too. A listed name gets as far as the token, which the request lacks.
		{"evil.example", func(o *Options) { o.Auth, o.AllowedHosts = newPeople(t).v, []string{"boxes.example"} }, 403},
		{"192.0.2.1:8775", func(o *Options) { o.Auth, o.AllowedHosts = newPeople(t).v, []string{"boxes.example"} }, 403},
		{"boxes.example:8775", func(o *Options) { o.Auth, o.AllowedHosts = newPeople(t).v, []string{"boxes.example"} }, 401},
	} {
		opts := Options{}
		opts.Tools.Boxes = box.New(box.DefaultConfig(), box.Parts{})
		if c.change != nil {
			c.change(&opts)
		}
		r := httptest.NewRequestWithContext(
			context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 8775})),
			"GET", "/mcp", nil)
		r.Host = c.host
		r.Header.Set("Accept", "application/json")
		w := httptest.NewRecorder()
		New(opts).Handler().ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("Host %q: got %d %s, want %d", c.host, w.Code, w.Body, c.want)
		}
	}
}

// TestOwners_BoxesFromBeforeTokens: boxes that were created without authentication belong to
// the local user, and do not exist for any token.
func TestOwners_BoxesFromBeforeTokens(t *testing.T) {
	boxes := withBoxes(t, nil)
	_, open := serve(t, boxes)
	_, body := do(t, "POST", open, nil, toolCall(7, "create_context", `{"name":"of-nobody"}`))
	id := regexp.MustCompile(`ctx-[0-9a-f-]{36}`).FindString(body)
	if id == "" {
		t.Fatalf("create_context without authentication: %s", body)
	}
	p := newPeople(t)
	_, url := serve(t, p.options(boxes))
	if _, body := do(t, "POST", url, p.as("alice"), toolCall(7, "list_contexts", "{}")); strings.Contains(body, id) || !strings.Contains(body, `"total`) {
		t.Errorf("list_contexts with a token: %s", body)
	}
	never := "ctx-00000000-0000-4000-8000-000000000000"
	answer := func(id string) string {
		_, body := do(t, "POST", url, p.as("alice"), toolCall(7, "run_code", fmt.Sprintf(`{"context_id":%q,"code":"print('ran')"}`, id)))
		return strings.ReplaceAll(body, id, "ID")
	}
	if got, want := answer(id), answer(never); got != want || strings.Contains(got, "ran\\n") {
		t.Errorf("run_code with a token in a box of the local user: got %s, want the answer for an id that never existed: %s", got, want)
	}
	if _, body := do(t, "POST", open, nil, toolCall(7, "list_contexts", "{}")); !strings.Contains(body, id) {
		t.Errorf("list_contexts without authentication: %s", body)
	}
}

// interrupted returns a server on which alice cancelled a program in her session "s", after it had called a
// tool that changes something. begin begins an MCP session.
func interrupted(t *testing.T) (s *Server, url string, begin func(who string) header, alice header) {
	t.Helper()
	p := newPeople(t)
	var burnt chan struct{}
	boxes := withBoxes(t, nil)
	var m *box.Manager
	s, url = serve(t, p.options(func(o *Options) {
		boxes(o)
		m = o.Tools.Boxes
		burnt = withBurning(o)
		o.Toolsets = []string{"sessions", "files"}
	}))
	begin = func(who string) header {
		res, _ := do(t, "POST", url, p.as(who), initBody)
		return p.as(who, headerSession, res.Header.Get(headerSession))
	}
	alice = begin("alice")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do(t, "POST", url, alice, toolCall(1, "execute_code", `{"session_id":"s","code":"tools.shelf.burn()\nimport time\ntime.sleep(100)"}`))
	}()
	<-burnt
	do(t, "POST", url, alice, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-ended
	eventually(t, "the program has ended", func() bool {
		list, err := m.List("token alice", box.KindSession)
		return err == nil && len(list) == 1 && list[0].State != box.StateRunning
	})
	return s, url, begin, alice
}

// TestReadToken_LeavesNotes: a read token that uses a session does not use up the note about a program that
// was cut off there: it is for the model whose programs would repeat the calls.
func TestReadToken_LeavesNotes(t *testing.T) {
	_, url, begin, alice := interrupted(t)
	reader := begin("reader")
	for range 2 {
		if _, body := do(t, "POST", url, reader, toolCall(2, "list_files", `{"session_id":"s"}`)); strings.Contains(body, "error") {
			t.Errorf("the reader: %s", body)
		}
	}
	if _, body := do(t, "POST", url, alice, toolCall(3, "execute_code", `{"session_id":"s","code":"1"}`)); !strings.Contains(body, "Their programs had called shelf.burn (1)") {
		t.Errorf("alice has no note: %s", body)
	}
}
