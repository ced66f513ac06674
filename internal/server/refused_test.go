package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// refusals returns who was refused, why and by which method, of the lines of the audit log about
// refused requests, in their order.
func (p *people) refusals(tb testing.TB) (all []string) {
	tb.Helper()
	for _, line := range p.lines(tb) {
		if line["msg"] == "refused" {
			all = append(all, fmt.Sprint(line["who"], " ", line["reason"], " ", line["method"]))
		}
	}
	return all
}

// TestAudit_UnknownSessions: a request with the id of an MCP session that does not exist, does not
// exist any more, or belongs to another account leaves a line, and guesses of ids leave few.
func TestAudit_UnknownSessions(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Rate = 0 }))
	begin := func(who string) string {
		t.Helper()
		res, body := do(t, "POST", url, p.as(who), initBody)
		id := res.Header.Get(headerSession)
		if id == "" {
			t.Fatalf("initialize of %s: %s %s", who, res.Status, body)
		}
		return id
	}
	expired, deleted, open, readers := begin("alice"), begin("alice"), begin("alice"), begin("reader")
	s.sessions.remove(expired, errIdle)
	if res, body := do(t, "DELETE", url, p.as("alice", headerSession, deleted), ""); res.StatusCode != http.StatusNoContent {
		t.Fatalf("DELETE: %s %s", res.Status, body)
	}
	for _, c := range []struct {
		name, who, id, method, accept, want string
	}{
		{"unknown", "bob", "guess", "POST", mcpAccept, "token bob unknown_session POST"},
		{"unknown, for a stream", "bob", "guess", "GET", eventStream, "token bob unknown_session GET"},
		{"unknown, to end it", "bob", "guess", "DELETE", "", "token bob unknown_session DELETE"},
		{"expired", "alice", expired, "POST", mcpAccept, "token alice unknown_session POST"},
		{"ended by its client", "alice", deleted, "POST", mcpAccept, "token alice unknown_session POST"},
		{"of another owner", "carol", open, "POST", mcpAccept, "token carol foreign_session POST"},
		{"of use tokens, with a read token", "reader", open, "POST", mcpAccept, "token alice foreign_session POST"},
		{"of read tokens, with a use token", "alice", readers, "POST", mcpAccept, "token alice foreign_session POST"},
		{"of another token of the kind", "second", open, "POST", mcpAccept, ""},
	} {
		before, body, want, status := len(p.refusals(t)), "", "[]", 200
		if c.method == "POST" {
			body = ping
		}
		if c.want != "" {
			want, status = "["+c.want+"]", 404
		}
		res, answer := do(t, c.method, url, p.as(c.who, headerSession, c.id, "Accept", c.accept), body)
		if got := fmt.Sprint(p.refusals(t)[before:]); res.StatusCode != status || got != want {
			t.Errorf("%s: %s %s, lines %s, want %d and %s", c.name, res.Status, answer, got, status, want)
		}
	}
	before := len(p.refusals(t))
	for i := range 4 * refusedLineBurst {
		do(t, "POST", url, p.as("carol", headerSession, fmt.Sprint("guess", i)), ping)
	}
	if n := len(p.refusals(t)) - before; n < refusedLineBurst || n > 2*refusedLineBurst {
		t.Errorf("%d lines of %d guesses, want %d to %d", n, 4*refusedLineBurst, refusedLineBurst, 2*refusedLineBurst)
	}
}

// TestAudit_LimitsOfOneRequest: a request that exceeds a limit of one request leaves a line.
func TestAudit_LimitsOfOneRequest(t *testing.T) {
	const limit = 1 << 20 // of a body
	values := "[" + strings.Repeat("1,", 1<<18) + "1]"
	post := func(body string) func(*testing.T, *people, string) (int, string) {
		return func(t *testing.T, p *people, url string) (int, string) {
			res, answer := do(t, "POST", url, p.as("alice"), body)
			return res.StatusCode, answer
		}
	}
	for _, c := range []struct {
		name   string
		send   func(t *testing.T, p *people, url string) (status int, body string)
		status int
		text   string
	}{
		{"body", post(strings.Repeat(" ", limit+1)), 413, "exceeds"},
		{"body in chunks", func(t *testing.T, p *people, url string) (int, string) {
			req, err := http.NewRequestWithContext(t.Context(), "POST", url, io.MultiReader(strings.NewReader(strings.Repeat(" ", limit+1))))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range p.as("alice", "Content-Type", "application/json") {
				req.Header.Set(k, v)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(body)
		}, 413, "exceeds"},
		{"late body", func(t *testing.T, p *people, url string) (int, string) {
			w := dialWire(t, url)
			fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", p.tokens["alice"])
			res := w.head(t)
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(body)
		}, 400, "ended early"},
		{"values", post(rpc("tools/list", `{"x":`+values+`}`)), 400, "values in a message"},
		{"values of a batch", post(`[` + rpc("tools/list", `{"x":`+values+`}`) + `]`), 400, "values in a message"},
		{"messages", post(`[` + strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/initialized"},`, 256) + ping + `]`), 400, "messages in a batch"},
		{"what a session keeps", post(strings.Replace(initBody, `"name":"t"`, `"name":"`+strings.Repeat("x", maxHandshake)+`"`, 1)), 200, "those of initialize take"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeople(t)
			_, url := serve(t, p.options(func(o *Options) {
				o.Limits.Body = limit
				if c.name == "late body" {
					o.Limits.Upload = 100 * time.Millisecond
				}
			}))
			status, body := c.send(t, p, url)
			if status != c.status || !strings.Contains(body, c.text) {
				t.Errorf("got %d %.300s, want %d and %q", status, body, c.status, c.text)
			}
			if got := fmt.Sprint(p.refusals(t)); got != "[token alice request_limit POST]" {
				t.Errorf("lines %s, want one of request_limit", got)
			}
		})
	}
}

// TestAudit_ReasonsOfLimits: a request that is refused for its rate, at a limit of its owner or of the
// server, or because the server stops, leaves a line with that reason and its id.
func TestAudit_ReasonsOfLimits(t *testing.T) {
	// listens asks for the stream of a new session.
	listens := func(t *testing.T, p *people, who, url string) *http.Response {
		begun, _ := do(t, "POST", url, p.as(who), initBody)
		return listenTo(t, t.Context(), url, p.as(who, headerSession, begun.Header.Get(headerSession)))
	}
	for _, c := range []struct {
		reason, who, method string
		status              int
		change              func(*Options)
		refused             func(t *testing.T, p *people, s *Server, url string) *http.Response
	}{
		{"rate", "alice", "POST", 429, func(o *Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			do(t, "POST", url, p.as("alice"), ping)
			res, _ := do(t, "POST", url, p.as("alice"), ping)
			return res
		}},
		{"owner_limit", "alice", "GET", 429, func(o *Options) { o.Limits.Streams, o.Limits.OwnerStreams = 2, 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			listens(t, p, "alice", url)
			return listens(t, p, "alice", url)
		}},
		{"server_limit", "bob", "GET", 503, func(o *Options) { o.Limits.Streams = 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			listens(t, p, "alice", url)
			return listens(t, p, "bob", url)
		}},
		{"stopping", "bob", "POST", 503, nil, func(t *testing.T, p *people, s *Server, url string) *http.Response {
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- s.Shutdown(ctx) }() // which waits for the call in flight
			eventually(t, "the server drains", s.draining.Load)
			res, _ := do(t, "POST", url, p.as("bob"), ping)
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("shutdown: %v", err)
			}
			return res
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			p := newPeople(t)
			release, started := make(chan struct{}), make(chan struct{}, 1)
			defer close(release)
			s, url := serve(t, p.options(func(o *Options) {
				o.Extend.Tools = slow(release, started)
				if c.change != nil {
					c.change(o)
				}
			}))
			dialWire(t, url).post(t, p.as("carol"), toolCall(1, "slow", "{}"))
			<-started
			res := c.refused(t, p, s, url)
			want := fmt.Sprintf("[token %s %s %s]", c.who, c.reason, c.method)
			if got := fmt.Sprint(p.refusals(t)); res.StatusCode != c.status || got != want {
				t.Fatalf("got %s and the lines %s, want %d and %s", res.Status, got, c.status, want)
			}
			for _, line := range p.lines(t) {
				if line["msg"] == "refused" && (line["request"] != res.Header.Get(headerRequest) || line["remote"] != "127.0.0.1") {
					t.Errorf("the line %v, want the request %s", line, res.Header.Get(headerRequest))
				}
			}
		})
	}
}

// TestAudit_RequestsOfNoClient: requests that no client of MCP sends are counted, and leave no line,
// also with a valid token.
func TestAudit_RequestsOfNoClient(t *testing.T) {
	p := newPeople(t)
	counted := make(chan int, 1)
	_, url := serve(t, p.options(func(o *Options) {
		o.Refused = func(status int) { counted <- status }
	}))
	for _, c := range []struct {
		name, method, url string
		h                 header
		body              string
		status            int
	}{
		{"Host", "POST", url, p.as("alice", "Host", "evil.example"), ping, 403},
		{"Host, without a token", "POST", url, header{"Host": "evil.example"}, ping, 403},
		{"Origin", "POST", url, p.as("alice", "Origin", "https://evil.example"), ping, 403},
		{"Origin, without a token", "POST", url, header{"Origin": "https://evil.example"}, ping, 403},
		{"method", "PUT", url, p.as("alice"), ping, 405},
		{"content type", "POST", url, p.as("alice", "Content-Type", "text/plain"), ping, 415},
		{"compressed", "POST", url, p.as("alice", "Content-Encoding", "gzip"), ping, 415},
		{"no JSON", "POST", url, p.as("alice"), `{"jsonrpc":`, 400},
		{"no JSON in a batch", "POST", url, p.as("alice"), `[{"jsonrpc":]`, 400},
		{"no message", "POST", url, p.as("alice"), `"x"`, 400},
		{"an empty batch", "POST", url, p.as("alice"), `[]`, 400},
		{"Accept", "POST", url, p.as("alice", "Accept", "text/html"), ping, 406},
		{"path", "POST", strings.TrimSuffix(url, "mcp") + "nope", p.as("alice"), ping, 404},
	} {
		res, body := do(t, c.method, c.url, c.h, c.body)
		if res.StatusCode != c.status {
			t.Errorf("%s: %s %s, want %d", c.name, res.Status, body, c.status)
		}
		select {
		case status := <-counted:
			if status != c.status {
				t.Errorf("%s: counted as %d, want %d", c.name, status, c.status)
			}
		default:
			t.Errorf("%s: not counted", c.name)
		}
	}
	if lines := p.lines(t); len(lines) > 0 {
		t.Errorf("the lines %v, want none", lines)
	}
	do(t, "POST", url, nil, ping) // the log does work
	if got := fmt.Sprint(p.refusals(t)); got != "[unknown no_token POST]" {
		t.Errorf("without a token: the lines %s", got)
	}
}
