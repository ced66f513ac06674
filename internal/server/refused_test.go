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
	// uploads begins n requests of an owner, whose bodies do not arrive.
	uploads := func(t *testing.T, p *people, url, who string, n, size int) {
		for range n {
			fmt.Fprintf(dialWire(t, url), "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", p.tokens[who], size)
		}
	}
	const body, small = 1 << 20, 100
	large := func(o *Options) { o.Limits.Body = body }
	posts := func(t *testing.T, p *people, who, url, body string) *http.Response {
		res, _ := do(t, "POST", url, p.as(who), body)
		return res
	}
	for _, c := range []struct {
		name, reason, who, method string
		status                    int
		change                    func(*Options)
		refused                   func(t *testing.T, p *people, s *Server, url string) *http.Response
	}{
		{"rate", "rate", "alice", "POST", 429, func(o *Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			posts(t, p, "alice", url, ping)
			return posts(t, p, "alice", url, ping)
		}},
		{"rate of a batch", "rate", "alice", "POST", 429, func(o *Options) { o.Limits.Rate, o.Limits.Burst = 0.001, 3 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			posts(t, p, "alice", url, ping)
			return posts(t, p, "alice", url, batchOf(3, "list_contexts", "{}"))
		}},
		{"rate without a token", "rate", "unknown", "POST", 429, nil, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			for range 2 * unauthenticatedBurst {
				if res, _ := do(t, "POST", url, nil, ping); res.StatusCode != 401 {
					return res
				}
			}
			t.Fatal("there is no limit")
			return nil
		}},
		{"streams of an owner", "owner_limit", "alice", "GET", 429, func(o *Options) { o.Limits.Streams, o.Limits.OwnerStreams = 2, 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			listens(t, p, "alice", url)
			return listens(t, p, "alice", url)
		}},
		{"streams", "server_limit", "bob", "GET", 503, func(o *Options) { o.Limits.Streams = 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			listens(t, p, "alice", url)
			return listens(t, p, "bob", url)
		}},
		{"calls", "server_limit", "bob", "POST", 503, func(o *Options) { o.Limits.Calls = 1 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			return posts(t, p, "bob", url, ping) // beside the call in flight
		}},
		{"requests in flight of an owner", "owner_limit", "alice", "POST", 429, func(o *Options) { o.BehindProxy, o.Limits.Connections = true, 4 }, func(t *testing.T, p *people, s *Server, url string) *http.Response {
			uploads(t, p, url, "alice", 2, small)
			eventually(t, "two requests are in flight, and the call", func() bool { return s.inFlight.value() == 3 })
			return posts(t, p, "alice", url, ping)
		}},
		{"connections of an owner", "owner_limit", "alice", "POST", 429, func(o *Options) { o.Limits.Connections = 4 }, func(t *testing.T, p *people, s *Server, url string) *http.Response {
			uploads(t, p, url, "alice", 2, small)
			eventually(t, "two connections are established, and that of the call", func() bool { return establishedConnections(s) == 3 })
			return posts(t, p, "alice", url, ping)
		}},
		{"connections", "server_limit", "bob", "POST", 503, func(o *Options) { o.Limits.Connections = 2 }, func(t *testing.T, p *people, s *Server, url string) *http.Response {
			uploads(t, p, url, "alice", 1, small)
			eventually(t, "a connection is established, and that of the call", func() bool { return establishedConnections(s) == 2 })
			return posts(t, p, "bob", url, ping)
		}},
		{"sessions of an owner", "owner_limit", "alice", "POST", 429, func(o *Options) { o.Limits.Sessions = 2 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			listens(t, p, "alice", url) // so that its session is in use
			return posts(t, p, "alice", url, initBody)
		}},
		{"sessions", "server_limit", "bob", "POST", 503, func(o *Options) { o.Limits.Sessions = 2 }, func(t *testing.T, p *people, _ *Server, url string) *http.Response {
			listens(t, p, "alice", url)
			listens(t, p, "carol", url)
			return posts(t, p, "bob", url, initBody)
		}},
		{"large bodies of an owner", "owner_limit", "alice", "POST", 429, large, func(t *testing.T, p *people, s *Server, url string) *http.Response {
			uploads(t, p, url, "alice", largeBodies/2, body)
			eventually(t, "the bodies are being read", func() bool { return s.bodies.value() == largeBodies/2*body })
			return posts(t, p, "alice", url, strings.Repeat(" ", body/2)+ping)
		}},
		{"large bodies", "server_limit", "bob", "POST", 503, large, func(t *testing.T, p *people, s *Server, url string) *http.Response {
			uploads(t, p, url, "alice", largeBodies/2, body)
			uploads(t, p, url, "carol", largeBodies/2, body)
			eventually(t, "the bodies are being read", func() bool { return s.bodies.value() == largeBodies*body })
			return posts(t, p, "bob", url, strings.Repeat(" ", body/2)+ping)
		}},
		{"stopping", "stopping", "bob", "POST", 503, nil, func(t *testing.T, p *people, s *Server, url string) *http.Response {
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
		t.Run(c.name, func(t *testing.T) {
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
			all := p.refusals(t)
			if c.who == "unknown" { // after the lines of requests without a token
				want, all = fmt.Sprintf("[unknown %s %s]", c.reason, c.method), all[len(all)-1:]
			}
			if got := fmt.Sprint(all); res.StatusCode != c.status || got != want {
				t.Fatalf("got %s and the lines %s, want %d and %s", res.Status, got, c.status, want)
			}
			for _, line := range p.lines(t) {
				if line["msg"] == "refused" && line["reason"] == c.reason && (line["request"] != res.Header.Get(headerRequest) || line["remote"] != "127.0.0.1") {
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

// TestAudit_NoRequestYet: headers over their limit, and connections that the server closes before it
// has the headers of a request, have no line, also with a valid token.
func TestAudit_NoRequestYet(t *testing.T) {
	begun := func(p *people) string {
		return "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + p.tokens["alice"] + "\r\n"
	}
	for _, c := range []struct {
		name   string
		change func(*Options)
		send   func(t *testing.T, p *people, s *Server, url string)
	}{
		{"headers over their limit", nil, func(t *testing.T, p *people, _ *Server, url string) {
			w := dialWire(t, url)
			go fmt.Fprintf(w, "%sX-Long: %s\r\n\r\n", begun(p), strings.Repeat("x", maxHeader+8<<10)) // an error if the server ends it first
			res := w.head(t)
			res.Body.Close()
			if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("got %s, want 431", res.Status)
			}
			w.Close()
		}},
		{"late headers", func(o *Options) { o.Limits.Header = 100 * time.Millisecond }, func(t *testing.T, p *people, _ *Server, url string) {
			w := dialWire(t, url)
			fmt.Fprint(w, begun(p))
			if answer, err := io.ReadAll(w.in); err != nil || len(answer) > 0 {
				t.Errorf("got %q, %v, want the end of the connection", answer, err)
			}
		}},
		{"connections that make room", func(o *Options) { o.Limits.Connections = 1 }, func(t *testing.T, p *people, s *Server, url string) {
			var all []wire
			for range 1 + newPlaces + 1 {
				w := dialWire(t, url)
				fmt.Fprint(w, begun(p))
				all = append(all, w)
			}
			eventually(t, "a connection makes room", func() bool { _, dropped := s.connections.counts(); return dropped == 1 })
			for _, w := range all {
				w.Close()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeople(t)
			s, url := serve(t, p.options(c.change))
			c.send(t, p, s, url)
			eventually(t, "the connections are closed", func() bool { return openConnections(s) == 0 })
			if lines := p.lines(t); len(lines) > 0 {
				t.Errorf("the lines %v, want none", lines)
			}
			do(t, "POST", url, nil, ping) // the log does work
			if got := fmt.Sprint(p.refusals(t)); got != "[unknown no_token POST]" {
				t.Errorf("without a token: the lines %s", got)
			}
		})
	}
}

// TestAudit_RemoteIsTheClient: behind a proxy, each line has the address that the proxy saw and the
// id that it gave the request, whatever the client wrote; without one, nothing of these headers counts.
func TestAudit_RemoteIsTheClient(t *testing.T) {
	for _, c := range []struct {
		name        string
		proxied     bool
		from, want  string
		wantRequest bool
	}{
		{"IPv4", true, "198.51.100.66, 192.0.2.7", "192.0.2.7", true},
		{"IPv6", true, "2001:db8::7", "2001:db8::7", true},
		{"no proxy", false, "192.0.2.7", "127.0.0.1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeople(t)
			_, url := serve(t, p.options(func(o *Options) { o.BehindProxy = c.proxied }))
			for i, kind := range []struct {
				msg, outcome string // of its line
				h            header
				body         string
			}{
				{"call", "ok", p.as("alice"), toolCall(7, "list_contexts", "{}")},
				{"call", "refused", p.as("alice"), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}`},
				{"refused", "", p.as("monitor"), ping},
				{"refused", "", header{"Authorization": "Bearer gbx_guess"}, ping},
			} {
				id := fmt.Sprint("request-", i)
				res, _ := do(t, "POST", url, with(kind.h, "X-Forwarded-For", c.from, headerRequest, id), kind.body)
				lines := p.lines(t)
				if len(lines) != i+1 {
					t.Fatalf("%d lines, want %d: %v", len(lines), i+1, lines)
				}
				line, outcome := lines[i], any(nil)
				if kind.outcome != "" {
					outcome = kind.outcome
				}
				if line["msg"] != kind.msg || line["outcome"] != outcome || line["remote"] != c.want {
					t.Errorf("got the line %v, want %s %s from %s", line, kind.msg, kind.outcome, c.want)
				}
				if got := line["request"]; got != res.Header.Get(headerRequest) || (got == id) != c.wantRequest {
					t.Errorf("the line has the request %v, the answer %q; the client or proxy sent %s", got, res.Header.Get(headerRequest), id)
				}
			}
		})
	}
}
