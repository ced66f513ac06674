package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
)

// people are bearers of tokens of a file.
type people struct {
	path   string
	v      *auth.Verifier
	tokens map[string]string // by name and scopes

	mu    sync.Mutex
	audit bytes.Buffer // guarded by mu
}

func (p *people) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.audit.Write(b)
}

// lines returns the audit log.
func (p *people) lines(tb testing.TB) (lines []map[string]any) {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range bytes.Lines(p.audit.Bytes()) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			tb.Fatalf("audit line %q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

// newPeople makes a token for each of alice, bob and carol (use), a second one and a reader of
// alice, and a monitor.
func newPeople(tb testing.TB) *people {
	tb.Helper()
	p := &people{path: filepath.Join(tb.TempDir(), "tokens.toml"), tokens: map[string]string{}}
	p.add(tb, "alice", "alice", auth.Use)
	p.add(tb, "bob", "bob", auth.Use)
	p.add(tb, "carol", "carol", auth.Use)
	p.add(tb, "second", "alice", auth.Use)
	p.add(tb, "reader", "alice", auth.Read)
	p.add(tb, "monitor", "monitor", auth.Metrics)
	p.add(tb, "nothing", "nothing")
	v, err := auth.Open(auth.Config{TokensFile: p.path})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(v.Close)
	p.v = v
	return p
}

func (p *people) add(tb testing.TB, key, name string, scopes ...auth.Scope) {
	tb.Helper()
	secret, token, err := auth.NewToken(name, time.Time{}, scopes)
	if err == nil {
		err = auth.AddToken(p.path, &token)
	}
	if err != nil {
		tb.Fatal(err)
	}
	p.tokens[key] = secret
}

// remove revokes all tokens of a name, now.
func (p *people) remove(tb testing.TB, name string) {
	tb.Helper()
	if n, err := auth.RemoveTokens(p.path, func(t *auth.Token) bool { return t.Name == name }); n == 0 || err != nil {
		tb.Fatalf("remove %s: %d, %v", name, n, err)
	}
	if err := p.v.Reload(); err != nil {
		tb.Fatal(err)
	}
}

func (p *people) options(then func(*Options)) func(*Options) {
	return func(o *Options) {
		o.Auth = p.v
		o.Audit = slog.New(slog.NewJSONHandler(p, nil))
		if then != nil {
			then(o)
		}
	}
}

// as returns an MCP client's headers with a token.
func (p *people) as(key string, more ...string) header {
	h := header{"Accept": "application/json, text/event-stream", "Authorization": "Bearer " + p.tokens[key]}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

// bearing is a client's transport that sends a token.
type bearing string

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (p *people) transport(key, url string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearing(p.tokens[key])}}
}

func rpc(method, params string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`
}

// TestAuth_Requests checks status, challenge and error of requests by token, scope and
// method.
func TestAuth_Requests(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "figures") })
	}))
	base := strings.TrimSuffix(url, "/mcp")
	list := toolCall(7, "list_contexts", "{}")
	run := toolCall(7, "run_code", `{"code":"1"}`)
	both := "application/json, text/event-stream"
	for _, c := range []struct {
		name, method, url string
		h                 header
		body              string
		status            int
		challenge         string // in WWW-Authenticate; "" none
		text              string // in the body
	}{
		{"no token", "POST", url, nil, list, 401, `Bearer realm="glovebox"`, "no token"},
		{"no token, for a stream", "GET", url, header{"Accept": "text/event-stream"}, "", 401, `Bearer`, "no token"},
		{"no token, for the status", "GET", url, header{"Accept": "application/json"}, "", 401, `Bearer`, "no token"},
		{"no token, for metrics", "GET", base + "/metrics", nil, "", 401, `realm="glovebox"`, "no token"},
		{"no token, DELETE", "DELETE", url, header{"Mcp-Session-Id": "x"}, "", 401, `Bearer`, "no token"},
		{"no token, at /", "POST", base + "/", nil, list, 401, `Bearer`, "no token"},
		{"no token, no method", "PUT", url, header{}, "", 401, `Bearer`, "no token"},
		{"unknown token", "POST", url, header{"Accept": both, "Authorization": "Bearer gbx_wrong_wrong_wrong_wrong"}, list, 401, `error="invalid_token"`, "not known"},
		{"token in the URL", "POST", url + "?access_token=" + p.tokens["alice"] + "&token=" + p.tokens["alice"], nil, list, 401, `Bearer`, "no token"},
		{"another scheme", "POST", url, header{"Accept": both, "Authorization": "Token " + p.tokens["alice"]}, list, 401, `error="invalid_token"`, ""},
		{"a password", "POST", url, header{"Accept": both, "Authorization": basic(p.tokens["alice"])}, list, 401, `error="invalid_token"`, ""},
		{"empty", "POST", url, header{"Accept": both, "Authorization": "Bearer "}, list, 401, `error="invalid_token"`, ""},
		{"no scheme", "POST", url, header{"Accept": both, "Authorization": p.tokens["alice"]}, list, 401, `error="invalid_token"`, ""},
		{"a good one", "POST", url, p.as("alice"), list, 200, "", `"total`},
		{"scheme in capitals", "POST", url, header{"Accept": both, "Authorization": "BEARER " + p.tokens["alice"]}, list, 200, "", `"total`},

		{"read may look", "POST", url, p.as("reader"), list, 200, "", `"total`},
		{"read may list tools", "POST", url, p.as("reader"), rpc("tools/list", "{}"), 200, "", `run_code`},
		{"read may not run", "POST", url, p.as("reader"), run, 403, `error="insufficient_scope", error_description="the token does not have the scope 'use'", scope="glovebox:use"`, `scope \"use\"`},
		{"read may not see the status", "GET", url, p.as("reader", "Accept", "application/json"), "", 403, `scope="glovebox:metrics"`, ""},
		{"use may not see the status", "GET", url, p.as("alice", "Accept", "application/json"), "", 403, `scope="glovebox:metrics"`, ""},
		{"use may not see metrics", "GET", base + "/metrics", p.as("alice"), "", 403, `scope="glovebox:metrics"`, ""},
		{"monitor may see metrics", "GET", base + "/metrics", p.as("monitor"), "", 200, "", "figures"},
		{"monitor may see the status", "GET", url, p.as("monitor", "Accept", "application/json"), "", 200, "", `"mcp_sessions"`},
		{"monitor in a browser", "GET", base + "/", header{"Accept": "text/html", "Authorization": basic(p.tokens["monitor"])}, "", 200, "", "MCP sessions"},
		{"monitor's password for metrics", "GET", base + "/metrics", header{"Authorization": basic(p.tokens["monitor"])}, "", 200, "", "figures"},
		{"monitor's password, HEAD", "HEAD", url, header{"Authorization": basic(p.tokens["monitor"])}, "", 200, "", ""},
		{"a password for metrics is not enough", "GET", base + "/metrics", header{"Authorization": basic(p.tokens["alice"])}, "", 403, `scope="glovebox:metrics"`, ""},
		{"a wrong password for metrics", "GET", base + "/metrics", header{"Authorization": basic("gbx_wrong_wrong_wrong_wrong")}, "", 401, `Basic realm="glovebox"`, "not known"},
		{"a password for a stream", "GET", url, header{"Accept": "text/event-stream", "Authorization": basic(p.tokens["alice"])}, "", 401, `error="invalid_token"`, ""},
		{"a password to end a session", "DELETE", url, header{"Mcp-Session-Id": "x", "Authorization": basic(p.tokens["alice"])}, "", 401, `error="invalid_token"`, ""},
		{"a browser is asked", "GET", base + "/", header{"Accept": "text/html"}, "", 401, `Basic realm="glovebox"`, ""},
		{"monitor may not look", "POST", url, p.as("monitor"), list, 403, `insufficient_scope`, ""},
		{"monitor may not send a batch", "POST", url, p.as("monitor"), "[" + list + "]", 403, `insufficient_scope`, ""},
		{"without scopes, a batch", "POST", url, p.as("nothing"), "[" + list + "]", 403, `insufficient_scope`, ""},
		{"monitor may not begin", "POST", url, p.as("monitor"), initBody, 403, `insufficient_scope`, ""},
		{"monitor may not listen", "GET", url, p.as("monitor", "Accept", "text/event-stream", "Mcp-Session-Id", "x"), "", 403, `insufficient_scope`, ""},
		{"monitor may not end", "DELETE", url, p.as("monitor", "Mcp-Session-Id", "x"), "", 403, `insufficient_scope`, ""},
		{"without scopes", "POST", url, p.as("nothing"), list, 403, `insufficient_scope`, ""},

		{"health is open", "GET", base + "/health", header{}, "", 200, "", "healthy"},
		{"ready is open", "GET", base + "/ready", header{}, "", 200, "", "{\n  \"ready\": true\n}"},
		{"no issuer, no metadata", "GET", base + metadataPath, header{}, "", 404, "", ""},
	} {
		res, body := do(t, c.method, c.url, c.h, c.body)
		got := strings.Join(res.Header.Values("WWW-Authenticate"), "; ")
		if res.StatusCode != c.status || !strings.Contains(got, c.challenge) || (c.challenge == "") != (got == "") || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %q %s", c.name, res.StatusCode, got, body)
			continue
		}
		if c.status >= 400 {
			if r := parse(t, body); r.Error == nil || r.Error.Code != codeRefused {
				t.Errorf("%s: body %s", c.name, body)
			}
		}
		for _, token := range p.tokens {
			if strings.Contains(body+got, token) {
				t.Errorf("%s: the answer has the token", c.name)
			}
		}
	}
	// A request with two tokens is refused: either could be meant.
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Authorization"] = []string{"Bearer " + p.tokens["alice"], "Bearer " + p.tokens["bob"]}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 401 {
		t.Errorf("two headers: %v %v", res, err)
	}
	_ = res.Body.Close()
	// A HEAD is a look at the status too. It has no body.
	for key, want := range map[string]int{"alice": 403, "reader": 403, "nothing": 403, "monitor": 200} {
		if res, _ := do(t, "HEAD", url, p.as(key, "Accept", "application/json"), ""); res.StatusCode != want || strings.Contains(res.Header.Get("WWW-Authenticate"), `scope="glovebox:metrics"`) != (want == 403) {
			t.Errorf("HEAD of the status by %s: %s %v, want %d", key, res.Status, res.Header, want)
		}
	}
	// In a batch each message is judged.
	res, body := do(t, "POST", url, p.as("reader"), "["+list+","+strings.Replace(run, `"id":7`, `"id":8`, 1)+"]")
	if res.StatusCode != 200 || !strings.Contains(body, `"total`) || !strings.Contains(body, "Forbidden: the token does not have the scope") {
		t.Errorf("a batch: %s %s", res.Status, body)
	}
}

func basic(password string) string {
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth("anybody", password)
	return r.Header.Get("Authorization")
}

// TestOwners_EveryTransport: each request is authenticated by its own token, whichever
// code path serves it and whoever began the session.
func TestOwners_EveryTransport(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(withBoxes(t, nil)))
	names := func(text string) string {
		var found []string
		for _, name := range []string{"of-alice", "of-bob"} {
			if strings.Contains(text, name) {
				found = append(found, name)
			}
		}
		return strings.Join(found, " ")
	}
	for _, version := range []string{"", "2025-11-25", "2024-11-05"} {
		for _, who := range []string{"alice", "bob"} {
			cs := connect(t, p.transport(who, url), version, nil)
			must(t, cs, "create_context", args{"name": "of-" + who})
			if _, out := must(t, cs, "list_contexts", nil); names(out) != "of-"+who {
				t.Errorf("%s %q sees %s", who, version, out)
			}
			m, _ := must(t, cs, "list_contexts", nil)
			for _, c := range m["contexts"].([]any) {
				must(t, cs, "stop_context", args{"context_id": c.(map[string]any)["context_id"]})
			}
		}
	}
	list := toolCall(7, "list_contexts", "{}")
	for _, who := range []string{"alice", "bob"} {
		_, body := do(t, "POST", url, p.as(who), toolCall(7, "create_context", `{"name":"of-`+who+`"}`)) // direct
		if !strings.Contains(body, "active") {
			t.Fatal(body)
		}
	}
	for name, h := range map[string]header{
		"direct": {}, "JSON only": {"Accept": "application/json"}, "anything": {"Accept": "*/*"},
	} {
		for _, who := range []string{"alice", "bob"} {
			all := p.as(who)
			for k, v := range h {
				all[k] = v
			}
			if _, body := do(t, "POST", url, all, list); names(body) != "of-"+who {
				t.Errorf("%s, %s: sees %s", name, who, body)
			}
			if _, body := do(t, "POST", url, all, "["+list+"]"); names(body) != "of-"+who {
				t.Errorf("%s, %s, batch: sees %s", name, who, body)
			}
		}
	}

	// A session is of who began it. To others it is not there, as if it never was.
	res, _ := do(t, "POST", url, p.as("alice"), initBody)
	id := res.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("no session")
	}
	unknown := strings.Repeat("A", len(id))
	for _, c := range []struct{ method, accept, body string }{
		{"POST", "application/json, text/event-stream", list},
		{"GET", "text/event-stream", ""},
		{"DELETE", "", ""},
	} {
		ask := func(id string) (int, string, string) {
			res, body := do(t, c.method, url, p.as("bob", "Accept", c.accept, "Mcp-Session-Id", id), c.body)
			res.Header.Del("Date")
			res.Header.Del("X-Request-Id")
			return res.StatusCode, fmt.Sprint(res.Header), body
		}
		status, headers, body := ask(id)
		wantStatus, wantHeaders, wantBody := ask(unknown)
		if status != 404 || status != wantStatus || headers != wantHeaders || body != wantBody {
			t.Errorf("%s of another owner's session: got %d %s %s, want the answer for an unknown one: %d %s %s", c.method, status, headers, body, wantStatus, wantHeaders, wantBody)
		}
	}
	if _, body := do(t, "POST", url, p.as("alice", "Mcp-Session-Id", id), list); names(body) != "of-alice" {
		t.Errorf("after others tried: %s", body)
	}
	// Another token of the same subject is the same owner, with its own scopes. Tokens that may not run
	// code have sessions of their own.
	if _, body := do(t, "POST", url, p.as("second", "Mcp-Session-Id", id), list); names(body) != "of-alice" {
		t.Errorf("with another token: %s", body)
	}
	res, _ = do(t, "POST", url, p.as("reader"), initBody)
	id = res.Header.Get("Mcp-Session-Id")
	if _, body := do(t, "POST", url, p.as("reader", "Mcp-Session-Id", id), list); names(body) != "of-alice" {
		t.Errorf("with a token that may read: %s", body)
	}
	if res, body := do(t, "POST", url, p.as("reader", "Mcp-Session-Id", id), toolCall(7, "run_code", `{"code":"1"}`)); res.StatusCode != 403 {
		t.Errorf("with a token that may not: %d %s", res.StatusCode, body)
	}
}

// TestRevokedToken_EndsStreamsAndCalls: revoking a token ends its open streams and
// running calls.
func TestRevokedToken_EndsStreamsAndCalls(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(withBoxes(t, nil)))
	res, _ := do(t, "POST", url, p.as("alice"), initBody)
	id := res.Header.Get("Mcp-Session-Id")
	stream := make(chan error, 1)
	opened := make(chan struct{})
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		for k, v := range p.as("alice", "Accept", "text/event-stream", "Mcp-Session-Id", id) {
			req.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(req)
		close(opened)
		if err == nil {
			if res.StatusCode != 200 {
				err = errors.New(res.Status)
			} else {
				_, err = io.Copy(io.Discard, res.Body)
			}
			_ = res.Body.Close()
		}
		stream <- err
	}()
	type ended struct {
		how string
		res *mcp.CallToolResult
		err error
	}
	calls := make(chan ended, 2)
	mark := filepath.Join(t.TempDir(), "mark")
	for _, version := range []string{"", "2025-11-25"} {
		cs := connect(t, p.transport("alice", url), version, nil)
		go func() {
			res, err := try(t, cs, "execute_code", args{"session_id": "s" + version, "code": fmt.Sprintf("open(%q, 'w').close()\nimport time\ntime.sleep(120)", mark+version)})
			calls <- ended{version, res, err}
		}()
		eventually(t, "the code runs", func() bool { _, err := os.Stat(mark + version); return err == nil })
	}
	bob := connect(t, p.transport("bob", url), "", nil)
	<-opened
	p.remove(t, "alice")
	for range 2 {
		select {
		case c := <-calls:
			if c.err == nil {
				t.Errorf("call %q of a revoked token had a result: %+v", c.how, c.res)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a call of a revoked token did not end")
		}
	}
	select {
	case err := <-stream:
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("stream of a revoked token: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the stream of a revoked token did not end")
	}
	if res, body := do(t, "POST", url, p.as("alice", "Mcp-Session-Id", id), toolCall(7, "list_contexts", "{}")); res.StatusCode != 401 {
		t.Errorf("request of a revoked token in an open session: %d %s", res.StatusCode, body)
	}
	must(t, bob, "list_contexts", nil)
}

// announcesTools makes a server declare that it announces changes of its tools: it ends a stream of the
// modern revision at once that asks for nothing which it declares.
func announcesTools(o *Options) {
	o.Extend.Capabilities = &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}}
}

// askModernListen asks a server that announcesTools for a stream of the modern revision, which has no
// sessions.
func (p *people) askModernListen(tb testing.TB, ctx context.Context, url, key string) *http.Response {
	tb.Helper()
	h := p.as(key, "Accept", mcpAccept, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
	return openStream(tb, ctx, "POST", url, h, modernBody(7, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`))
}

// modernListen opens a stream of the modern revision, and checks that it is one which stays open.
func (p *people) modernListen(tb testing.TB, ctx context.Context, url, key string) *http.Response {
	tb.Helper()
	res := p.askModernListen(tb, ctx, url, key)
	if res.StatusCode != 200 {
		tb.Fatalf("subscriptions/listen: %s", res.Status)
	}
	const agreed = `"notifications":{"toolsListChanged":true}`
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.Contains(lines.Text(), agreed) {
			return res
		}
	}
	tb.Fatal("subscriptions/listen: the stream ended before it was acknowledged")
	return nil
}

// TestExpiredToken_EndsStreamsAndFinishesCalls: when a token expires, of the file or of an
// issuer, its streams end and its requests are refused, but calls that are running finish: without a
// session, in one, and as a task.
func TestExpiredToken_EndsStreamsAndFinishesCalls(t *testing.T) {
	const skew = 30 * time.Second // tolerated for the clocks of issuers
	p := newPeople(t)
	p.add(t, "later", "brief", auth.Use) // of the same owner
	secret, token, err := auth.NewToken("brief", time.Now().Add(6*time.Second), auth.Scopes{auth.Use})
	if err == nil {
		err = auth.AddToken(p.path, &token)
	}
	if err != nil {
		t.Fatal(err)
	}
	issuer, sign := openIssuer(t)
	p.v, err = auth.Open(auth.Config{TokensFile: p.path, Issuers: []auth.IssuerConfig{{URL: issuer, Audiences: []string{"boxes"}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.v.Close)
	p.tokens["of a file"] = secret
	p.tokens["of an issuer"] = sign(map[string]any{"exp": time.Now().Add(6*time.Second - skew).Unix()})
	release, started := make(chan struct{}), make(chan struct{}, 5)
	_, url := serve(t, p.options(func(o *Options) {
		announcesTools(o)
		o.Limits.Tasks.AnswerWait = time.Millisecond
		slow := func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			started <- struct{}{}
			<-release
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, ctx.Err()
		}
		o.Extend.Tools = []Tool{extra("slow", slow), extra("slow_task", slow)}
		o.Extend.Tools[1].Direct, o.Extend.Tools[1].Task = true, &tasks.Policy{}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answers := make(chan string, 4)
	streams := map[string]*http.Response{}
	for _, key := range []string{"of a file", "of an issuer"} {
		var res *http.Response
		eventually(t, "the issuer's keys are there", func() bool {
			res, _ = do(t, "POST", url, p.as(key), initBody)
			return res.StatusCode != 503
		})
		session := p.as(key, headerSession, res.Header.Get(headerSession))
		for _, h := range []header{p.as(key), session} {
			go func() {
				_, body := do(t, "POST", url, h, toolCall(1, "slow", "{}"))
				answers <- body
			}()
			<-started
		}
		streams["session, token "+key] = listenTo(t, ctx, url, session)
		streams["listen, token "+key] = p.modernListen(t, ctx, url, key)
	}
	task := (&taskClient{tb: t, url: url, token: secret}).call("slow_task", "{}").TaskID
	<-started
	others := p.modernListen(t, ctx, url, "alice")
	for name, stream := range streams {
		if _, err := io.Copy(io.Discard, stream.Body); stream.StatusCode != 200 || err != nil {
			t.Errorf("stream of an expired token (%s): %s, %v", name, stream.Status, err)
		}
	}
	for _, key := range []string{"of a file", "of an issuer"} {
		if res, body := do(t, "POST", url, p.as(key), ping); res.StatusCode != 401 {
			t.Errorf("request with an expired token %s: %s %s, want 401", key, res.Status, body)
		}
	}
	close(release)
	for range 4 {
		if body := <-answers; !strings.Contains(body, "done") {
			t.Errorf("call that was running when its token expired: %s, want its result", body)
		}
	}
	if got := (&taskClient{tb: t, url: url, token: p.tokens["later"]}).wait(task); got.Status != "completed" {
		t.Errorf("task that was running when its token expired: %+v, want its result", got)
	}
	p.remove(t, "alice")
	if _, err := io.Copy(io.Discard, others.Body); ctx.Err() != nil || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("stream of the modern revision whose token was revoked: %v", err)
	}
}

func TestRate_OfOwner(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 3 }))
	list := toolCall(7, "list_contexts", "{}")
	statuses := func(h header, n int) (all []int) {
		for range n {
			res, body := do(t, "POST", url, h, list)
			all = append(all, res.StatusCode)
			if res.StatusCode == 429 && (res.Header.Get("Retry-After") == "" || parse(t, body).Error.Code != codeRefused) {
				t.Errorf("429: %v %s", res.Header, body)
			}
		}
		return all
	}
	if got := fmt.Sprint(statuses(p.as("alice"), 5)); got != "[200 200 200 429 429]" {
		t.Errorf("alice: %s", got)
	}
	if got := fmt.Sprint(statuses(p.as("bob"), 2)); got != "[200 200]" {
		t.Errorf("bob, beside alice: %s", got)
	}
	if got := fmt.Sprint(statuses(p.as("second"), 1)); got != "[429]" {
		t.Errorf("alice, with another token: %s", got)
	}
	// Guessing is slowed down, without harm to who shares the address.
	all := fmt.Sprint(statuses(nil, unauthenticatedBurst+5))
	if !strings.HasPrefix(all, "[401 401") || !strings.Contains(all, "429") {
		t.Errorf("unauthenticated: %s", all)
	}
	if got := fmt.Sprint(statuses(p.as("bob"), 1)); got != "[200]" {
		t.Errorf("bob, beside unauthenticated: %s", got)
	}
	refused := 0
	for _, line := range p.lines(t) {
		if line["msg"] == "refused" && line["reason"] == "no_token" {
			refused++
		}
	}
	if refused < refusedLineBurst || refused > 2*refusedLineBurst {
		t.Errorf("%d lines of unauthenticated, want %d, and one in ten seconds", refused, refusedLineBurst)
	}
}

// TestRate_OfEveryMethod: requests of every method take from one rate, those for streams and for the
// end of sessions too, and are refused when it is used up.
func TestRate_OfEveryMethod(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 3 }))
	useUp := func(who string) {
		t.Helper()
		begun, _ := do(t, "POST", url, p.as(who), initBody)
		h := p.as(who, headerSession, begun.Header.Get(headerSession))
		if res := listenTo(t, t.Context(), url, h); res.StatusCode != 200 {
			t.Errorf("the stream of %s: %s", who, res.Status)
		}
		if res, body := do(t, "DELETE", url, h, ""); res.StatusCode != 204 {
			t.Errorf("the end of the session of %s: %s %s", who, res.Status, body)
		}
	}
	useUp("alice")
	for _, method := range []string{"POST", "GET", "DELETE", "HEAD", "OPTIONS", "PUT"} {
		res, body := do(t, method, url, p.as("alice", "Accept", eventStream), "")
		if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s after three requests: %s %v %s, want 429", method, res.Status, res.Header, body)
		}
	}
	useUp("bob") // whom alice's requests do not slow down
}

// TestRate_OfAddress: without authentication, each address has a rate limit; IPv6
// addresses of one /64 share it.
func TestRate_OfAddress(t *testing.T) {
	_, url := serve(t, func(o *Options) { o.Limits.Rate, o.Limits.Burst, o.BehindProxy = 0.001, 2, true })
	ask := func(from string) int {
		res, _ := do(t, "POST", url, header{"Accept": "application/json", "X-Forwarded-For": from}, toolCall(7, "list_contexts", "{}"))
		return res.StatusCode
	}
	for i, c := range []struct {
		from string
		want int
	}{
		{"192.0.2.1", 200}, {"192.0.2.1", 200}, {"192.0.2.1", 429}, {"192.0.2.2", 200},
		{"192.0.2.9, 192.0.2.1", 429}, {"192.0.2.1, 192.0.2.3", 200},
		{"2001:db8::1", 200}, {"2001:db8::2", 200}, {"2001:db8::3", 429}, {"2001:db8:0:1::3", 200},
		{"nonsense", 200}, {"'; drop table", 200}, {"", 429},
	} {
		if got := ask(c.from); got != c.want {
			t.Errorf("%d, %q: %d, want %d", i, c.from, got, c.want)
		}
	}
}

// TestRate_OfBatch: each message of a batch counts, a notification too. A batch larger than the
// burst needs the whole burst, and later requests wait for the rest.
func TestRate_OfBatch(t *testing.T) {
	_, url := serve(t, func(o *Options) { o.Limits.Rate, o.Limits.Burst, o.BehindProxy = 0.001, 5, true })
	const notification = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
	for i, c := range []struct {
		from    string
		n, told int // requests and notifications
		want    int
	}{
		{"192.0.2.1", 3, 0, 200}, {"192.0.2.1", 3, 0, 429}, {"192.0.2.1", 1, 0, 200}, {"192.0.2.1", 1, 0, 429},
		{"192.0.2.2", 9, 0, 200}, {"192.0.2.2", 1, 0, 429},
		{"192.0.2.3", 5, 0, 200}, {"192.0.2.3", 1, 0, 429},
		{"192.0.2.4", 0, 3, 202}, {"192.0.2.4", 1, 2, 429}, {"192.0.2.4", 1, 0, 200}, {"192.0.2.4", 1, 0, 429},
	} {
		all := slices.Repeat([]string{notification}, c.told)
		for id := range c.n {
			all = append(all, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, id))
		}
		res, body := do(t, "POST", url, header{"Accept": mcpAccept, "X-Forwarded-For": c.from}, "["+strings.Join(all, ",")+"]")
		if res.StatusCode != c.want || c.want == 429 && (res.Header.Get("Retry-After") == "" || parse(t, body).Error == nil) {
			t.Errorf("%d, %d messages: got %s %v %s, want %d", i, len(all), res.Status, res.Header, body, c.want)
		}
	}
}

func TestOwnerCalls_Limit(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) {
		withBoxes(t, nil)(o)
		o.Limits.OwnerCalls = 1
	}))
	mark := filepath.Join(t.TempDir(), "mark")
	done := make(chan string, 1)
	alice := connect(t, p.transport("alice", url), "2025-11-25", nil)
	go func() {
		_, out := must(t, alice, "execute_code", args{"session_id": "s", "code": fmt.Sprintf(
			"import os, time\nopen(%q, 'w').close()\nwhile os.path.exists(%q): time.sleep(0.05)\nprint('went on')", mark, mark)})
		done <- out
	}()
	eventually(t, "the code runs", func() bool { _, err := os.Stat(mark); return err == nil })
	list := toolCall(7, "list_contexts", "{}")
	res, body := do(t, "POST", url, p.as("alice"), list)
	if r := parse(t, body); res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || r.Error.Code != jsonrpc.CodeInvalidRequest ||
		r.Error.Data.ErrorCode != "RESOURCE_LIMIT_ERROR" || string(r.ID) != "7" {
		t.Errorf("a call over the limit: %d %v %s", res.StatusCode, res.Header, body)
	}
	if res, body := do(t, "POST", url, p.as("alice"), "["+list+"]"); !strings.Contains(body, "RESOURCE_LIMIT_ERROR") {
		t.Errorf("a batch over the limit: %d %s", res.StatusCode, body)
	}
	if res, body := do(t, "POST", url, p.as("alice"), rpc("tools/list", "{}")); res.StatusCode != 200 {
		t.Errorf("a request that is no call: %d %s", res.StatusCode, body)
	}
	if res, body := do(t, "POST", url, p.as("bob"), list); res.StatusCode != 200 {
		t.Errorf("bob: %d %s", res.StatusCode, body)
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	if out := <-done; !strings.HasPrefix(out, "went on\n[") {
		t.Errorf("the call: %q", out)
	}
	if res, body := do(t, "POST", url, p.as("alice"), list); res.StatusCode != 200 {
		t.Errorf("afterwards: %d %s", res.StatusCode, body)
	}
}

// TestRate_NetworkOfAnAddress: requests without a valid token from one /64 share a rate, behind a proxy
// and in what a connection counts as.
func TestRate_NetworkOfAnAddress(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.BehindProxy = true }))
	refused := 0
	for n := range 2 * unauthenticatedBurst {
		if res, _ := do(t, "POST", url, header{"Accept": mcpAccept, "X-Forwarded-For": fmt.Sprintf("2001:db8:1:2::%x", n)}, ping); res.StatusCode == 429 {
			refused++
		}
	}
	if refused < unauthenticatedBurst/2 {
		t.Errorf("%d of %d requests from one network are refused", refused, 2*unauthenticatedBurst)
	}
	if res, _ := do(t, "POST", url, header{"Accept": mcpAccept, "X-Forwarded-For": "2001:db8:1:3::1"}, ping); res.StatusCode != 401 {
		t.Errorf("from another network: %s, want 401", res.Status)
	}
	s.connections.mu.Lock()
	before := len(s.connections.fresh)
	s.connections.mu.Unlock()
	for n := range 3 {
		c := remoteConn{addr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("2001:db8:1:2::%x", n+1)), Port: 1}}
		s.connections.opened(t.Context(), &c)
	}
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	if n := len(s.connections.fresh) - before; n != 1 {
		t.Errorf("connections from one network count for %d", n)
	}
}

// remoteConn is a connection from an address.
type remoteConn struct {
	net.Conn
	addr net.Addr
}

func (c *remoteConn) RemoteAddr() net.Addr { return c.addr }
func (c *remoteConn) Close() error         { return nil }

// TestOwnerShares_SessionsOfOwnersWithFewerStay: an owner with fewer sessions than another keeps its
// own, also an idle one. One with a single session more gives up one that has been idle for long.
func TestOwnerShares_SessionsOfOwnersWithFewerStay(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Sessions = 6 }))
	begin := func(who string) (int, string) {
		t.Helper()
		res, _ := do(t, "POST", url, p.as(who), initBody)
		return res.StatusCode, res.Header.Get(headerSession)
	}
	_, bobs := begin("bob")
	_, carols := begin("carol")
	for _, who := range []string{"carol", "carol", "alice", "alice"} {
		begin(who)
	}
	s.sessions.rest(bobs)
	if status, _ := begin("alice"); status != 503 {
		t.Errorf("a session beyond those that an owner with more could give up: %d, want 503", status)
	}
	s.sessions.rest(carols)
	if status, _ := begin("alice"); status != 200 {
		t.Errorf("a session in place of an idle one of an owner with one more: %d, want 200", status)
	}
	if res, _ := do(t, "POST", url, p.as("carol", headerSession, carols), ping); res.StatusCode != 404 {
		t.Errorf("the idle session of the owner with one more: %s, want 404", res.Status)
	}
	if res, _ := do(t, "POST", url, p.as("bob", headerSession, bobs), ping); res.StatusCode != 200 {
		t.Errorf("the idle session of the owner with the fewest: %s", res.Status)
	}
}

// TestMetrics_ConnectionsHaveAnOwner: a connection that asks for the figures with a token counts as
// one with a valid request.
func TestMetrics_ConnectionsHaveAnOwner(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "figures") })
	}))
	c := dialFrom(t, "127.0.0.1", addressOfURL(url))
	if res, err := ask(c, "/metrics", p.as("monitor")); err != nil || res.StatusCode != 200 {
		t.Fatalf("got %v, %v", res, err)
	}
	eventually(t, "the connection is idle", func() bool { return idleConnections(s) == 1 })
}

// TestOwnerShares_StreamsAndSessions: the streams and sessions of one owner leave room
// for those of others.
func TestOwnerShares_StreamsAndSessions(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.OwnerStreams, o.Limits.Sessions = 1, 6 }))
	begin := func(who string) (int, string) {
		t.Helper()
		res, _ := do(t, "POST", url, p.as(who), initBody)
		return res.StatusCode, res.Header.Get("Mcp-Session-Id")
	}
	there := func(who, id string) bool {
		res, _ := do(t, "POST", url, p.as(who, "Mcp-Session-Id", id), ping)
		return res.StatusCode == 200
	}
	_, bobs := begin("bob")
	s.sessions.rest(bobs)
	_, first := begin("alice")
	_, second := begin("alice")
	_, third := begin("alice")
	if status, _ := begin("alice"); status != 429 {
		t.Errorf("a session over the owner's share: %d, want 429", status)
	}
	s.sessions.rest(second)
	if status, _ := begin("alice"); status != 200 || there("alice", second) || !there("bob", bobs) {
		t.Errorf("a session of the same owner makes room: %d", status)
	}
	var later string
	for range 2 {
		var status int
		if status, later = begin("bob"); status != 200 {
			t.Errorf("another owner's session: %d", status)
		}
	}
	s.sessions.rest(bobs)
	// All places are taken, and no other session has been idle for long.
	if status, _ := begin("carol"); status != 200 || there("bob", bobs) {
		t.Errorf("a session of an owner with more makes room: %d", status)
	}
	if status, _ := begin("carol"); status != 200 || there("alice", first) {
		t.Errorf("a recently used session of an owner with more makes room: %d", status)
	}
	if status, _ := begin("carol"); status != 503 {
		t.Errorf("a third of six sessions for each of three owners: %d, want 503", status)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listen := func(who, id string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range p.as(who, "Accept", "text/event-stream", "Mcp-Session-Id", id) {
			req.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.StatusCode
	}
	if got := listen("alice", third); got != 200 {
		t.Errorf("a stream: %d", got)
	}
	if got := listen("alice", third); got != 429 {
		t.Errorf("a stream over the owner's share: %d, want 429", got)
	}
	if got := listen("bob", later); got != 200 {
		t.Errorf("another owner's stream: %d", got)
	}
}

// TestOwnerShares_StreamsOfBothRevisions: the streams of sessions and those of the modern revision
// count together, so that no owner gets twice its share.
func TestOwnerShares_StreamsOfBothRevisions(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) {
		announcesTools(o)
		o.Limits.OwnerStreams = 2
	}))
	begun, _ := do(t, "POST", url, p.as("alice"), initBody)
	ofSession := func() *http.Response {
		return listenTo(t, t.Context(), url, p.as("alice", headerSession, begun.Header.Get(headerSession)))
	}
	modern := func(who string) *http.Response { return p.askModernListen(t, t.Context(), url, who) }
	first := p.modernListen(t, t.Context(), url, "alice")
	p.modernListen(t, t.Context(), url, "alice")
	over := func(what string, res *http.Response) {
		t.Helper()
		if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s over the owner's share: %s %v, want 429", what, res.Status, res.Header)
		}
	}
	over("a stream of the modern revision", modern("alice"))
	over("a stream of a session", ofSession())
	if res := modern("bob"); res.StatusCode != 200 {
		t.Errorf("another owner's stream: %s", res.Status)
	}
	first.Body.Close()
	eventually(t, "the stream ends", func() bool { return s.streams.value() == 2 })
	if res := ofSession(); res.StatusCode != 200 {
		t.Errorf("a stream of a session in the place of one that ended: %s", res.Status)
	}
	over("a stream of the modern revision, beside one of a session,", modern("alice"))
}

// TestSession_CallerIsThatOfTheRequest: each message of a batch in a session is judged by the
// scopes of the token of its request, which the audit log names.
func TestSession_CallerIsThatOfTheRequest(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(withBoxes(t, nil)))
	res, _ := do(t, "POST", url, p.as("reader"), strings.Replace(initBody, "2025-11-25", "2025-03-26", 1))
	id := res.Header.Get(headerSession)
	for _, c := range []struct{ tool, text, outcome string }{
		{"list_contexts", `"result"`, "ok"}, {"run_code", "Forbidden", "refused"}, {"list_contexts", `"result"`, "ok"},
	} {
		res, body := do(t, "POST", url, p.as("reader", headerSession, id), "["+toolCall(1, c.tool, "{}")+"]")
		if res.StatusCode != 200 || !strings.Contains(body, c.text) {
			t.Errorf("%s: %s %s", c.tool, res.Status, body)
		}
		lines := p.lines(t)
		if len(lines) == 0 {
			t.Fatal("the audit log is empty")
		}
		if last := lines[len(lines)-1]; last["outcome"] != c.outcome || last["request"] != res.Header.Get(headerRequest) {
			t.Errorf("%s: the audit log has %v of the request %s", c.tool, last, res.Header.Get(headerRequest))
		}
	}
}
