//go:build linux

package attack

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

func httpClass() class {
	web := func(name, claim string, r func(s *server) request, want ...int) Attack {
		return Attack{Name: name, Claim: claim, run: refusedRequest(r, want...)}
	}
	return class{
		name:  "http",
		about: "Web pages, strangers on the network and other owners attack a server over HTTP.",
		attacks: []Attack{
			web("dns-rebinding", "a page whose name was rebound to loopback is refused by its Host header", func(*server) request { return request{host: "evil.example", body: list} }, 403),
			web("dns-rebinding-port", "a foreign name with the right port is refused", func(s *server) request { return request{host: "evil.example:" + port(s), body: list} }, 403),
			web("host-suffix", "a name that contains a permitted one is refused", func(s *server) request { return request{host: "127.0.0.1.evil.example:" + port(s), body: list} }, 403),
			web("zero-address", "a page at 0.0.0.0 cannot call tools", func(s *server) request {
				return request{host: "0.0.0.0:" + port(s), headers: map[string]string{"Origin": "http://0.0.0.0:" + port(s)}, body: list}
			}, 403),
			web("foreign-origin", "a page of another origin is refused", func(*server) request {
				return request{headers: map[string]string{"Origin": "https://evil.example"}, body: list}
			}, 403),
			web("null-origin", "a page without an origin of its own is refused", func(*server) request { return request{headers: map[string]string{"Origin": "null"}, body: list} }, 403),
			web("origin-suffix", "an origin that contains a permitted name is refused", func(s *server) request {
				return request{headers: map[string]string{"Origin": "http://localhost.evil.example:" + port(s)}, body: list}
			}, 403),
			{Name: "loopback-page", Claim: "a page on another port of loopback is not permitted by CORS, nor can it send simple requests", run: loopbackPage},
			web("simple-request", "a request that browsers send without asking first is refused", func(*server) request {
				return request{headers: map[string]string{"Content-Type": "text/plain", "Accept": "*/*"}, body: list}
			}, 400, 403, 415),
			web("form", "an HTML form cannot call tools", func(*server) request {
				return request{headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}, body: list}
			}, 400, 403, 406, 415),
			{Name: "preflight", Claim: "a foreign page is not permitted by CORS", run: preflight},
			{Name: "smuggling", Claim: "a request whose length is in doubt is refused, or the last one of its connection", run: smuggling},
			{Name: "header-flood", Claim: "headers beyond 64 KiB are refused", run: headerFlood},
			{Name: "body-too-large", Claim: "a body beyond the limit is refused", run: largeBody},
			{Name: "compressed-body", Claim: "a compressed body is not expanded", run: compressedBody},
			{Name: "deep-body", Claim: "a message of deeply nested lists is refused", run: refusedGuarded(request{body: strings.Repeat("[", 100_000)}, 400, 413)},
			{Name: "many-values", Claim: "a message of a million values is refused", run: refusedGuarded(request{body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":[` + strings.Repeat("0,", 1_000_000) + `0]}}`}, 400, 413)},
			{Name: "large-batch", Claim: "a batch of a thousand requests is refused", run: refusedGuarded(request{body: "[" + strings.Repeat(list+",", 1000) + list + "]"}, 400, 413, 429)},
			{Name: "no-token", Claim: "a request without a token is refused", run: withToken("", nil, 401)},
			{Name: "token-in-url", Claim: "a token in the URL is not accepted", run: tokenInURL},
			{Name: "wrong-token", Claim: "a token with one wrong character is refused", run: wrongToken},
			{Name: "token-guessing", Claim: "guessing tokens is slowed down and does not shut others out", Alone: true, run: guessing},
			{Name: "spoofed-address", Claim: "a forged X-Forwarded-For gives no new budget of requests", Alone: true, run: spoofedAddress},
			{Name: "session-theft", Claim: "another owner's MCP session cannot be used", run: sessionTheft},
			{Name: "stream-theft", Claim: "another owner's stream cannot be resumed", run: streamTheft},
			{Name: "box-theft", Claim: "another owner's box does not exist", Alone: true, run: boxTheft},
			{Name: "slow-headers", Claim: "connections that send headers slowly do not shut others out and are closed", Alone: true, run: slowHeaders},
			{Name: "slow-bodies", Claim: "requests that send their body slowly do not shut others out", Alone: true, run: slowBodies},
			{Name: "slow-reader", Claim: "clients that do not read their answers do not shut others out", Alone: true, run: slowReaders},
			{Name: "unfinished-requests", Claim: "one address without a token does not shut out owners with one", Alone: true, run: unfinished},
			{Name: "slow-handshakes", Claim: "connections that never finish the TLS handshake do not shut others out and are closed", Alone: true, run: slowHandshakes},
			{Name: "rapid-reset", Claim: "streams that are opened and reset over HTTP/2 do not shut others out (CVE-2023-44487)", Alone: true, run: rapidReset},
			{Name: "continuation-flood", Claim: "headers that never end over HTTP/2 are refused and do not shut others out (CVE-2023-45288)", Alone: true, run: continuationFlood},
			{Name: "control-flood", Claim: "floods of control frames over HTTP/2 do not shut others out", Alone: true, run: controlFlood},
			{Name: "zero-window", Claim: "clients that take no data over HTTP/2 do not shut others out", Alone: true, run: zeroWindow},
			{Name: "program-in-url", Claim: "no request names a program of the host to start (CVE-2025-49596)", run: programRequests},
			{Name: "path-tricks", Claim: "no other path reaches the endpoint or a file", run: pathTricks},
			{Name: "header-injection", Claim: "line breaks in what a client sends do not appear in headers", run: injection},
		},
	}
}

func port(s *server) string {
	_, p, _ := net.SplitHostPort(s.addr)
	return p
}

// expect records an answer with another status.
func (t *trial) expect(what string, res answer, err error, want ...int) {
	for _, w := range want {
		if err == nil && res.status == w {
			t.held(1)
			return
		}
	}
	if err != nil {
		t.held(1) // the connection was closed
		return
	}
	t.broke("%s is answered with %d instead of %v: %s", what, res.status, want, printable(res.body))
}

// refusedRequest sends a request to a server without tokens, which must refuse it.
func refusedRequest(make func(*server) request, want ...int) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		s, err := t.open(ctx)
		if err != nil {
			return err
		}
		res, err := s.send(ctx, make(s))
		t.expect("the request", res, err, want...)
		s.works(ctx, t, "")
		return nil
	}
}

// refusedGuarded sends a request as alice, which must be refused.
func refusedGuarded(r request, want ...int) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		s, err := t.guarded(ctx)
		if err != nil {
			return err
		}
		r := r
		r.token = s.tokens["alice"]
		res, err := s.send(ctx, r)
		t.expect("the request", res, err, want...)
		s.works(ctx, t, s.tokens["bob"])
		return nil
	}
}

func preflight(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	res, err := s.send(ctx, request{method: "OPTIONS", headers: map[string]string{
		"Origin": "https://evil.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}})
	if err != nil {
		return err
	}
	t.check(res.header.Get("Access-Control-Allow-Origin") == "", "the page is permitted: %q", res.header.Get("Access-Control-Allow-Origin"))
	return nil
}

func loopbackPage(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	for _, origin := range []string{"http://127.0.0.1:9", "http://localhost:6274"} {
		res, err := s.send(ctx, request{method: "OPTIONS", headers: map[string]string{
			"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}})
		if err != nil {
			return err
		}
		t.check(res.header.Get("Access-Control-Allow-Origin") == "", "the page %s is permitted: %q", origin, res.header.Get("Access-Control-Allow-Origin"))
		res, err = s.send(ctx, request{headers: map[string]string{"Origin": origin, "Content-Type": "text/plain"}, body: list})
		t.expect("a simple request of "+origin, res, err, 400, 403, 415)
	}
	return nil
}

func headerFlood(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	for name, headers := range map[string]string{
		"one header": "X: " + strings.Repeat("x", 1<<20), "many headers": strings.Repeat("X: y\r\n", 100_000),
	} {
		got, _, err := s.raw(ctx, "POST /mcp HTTP/1.1\r\nHost: "+s.addr+"\r\n"+headers+"\r\n\r\n", 5*time.Second)
		if err != nil {
			return err
		}
		t.check(!strings.Contains(got, "HTTP/1.1 200"), "%s of a mebibyte are accepted", name)
	}
	s.works(ctx, t, "")
	return nil
}

func largeBody(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	before := statusKB(fmt.Sprint(s.cmd.Process.Pid), "VmRSS")
	res, err := s.send(ctx, request{body: `{"x":"` + strings.Repeat("x", 64<<20) + `"}`})
	t.expect("a body of 64 MiB", res, err, 413, 400)
	t.check(statusKB(fmt.Sprint(s.cmd.Process.Pid), "VmRSS") < before+256<<10, "the body stays in memory")
	s.works(ctx, t, "")
	return nil
}

func compressedBody(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	z := gzip.NewWriter(&b)
	io.WriteString(z, list) // expanded, it would be a valid request
	for range 256 {
		io.WriteString(z, strings.Repeat(" ", 1<<20)) // a strings.Builder does not fail
	}
	z.Close()
	res, err := s.send(ctx, request{body: b.String(), headers: map[string]string{"Content-Encoding": "gzip"}})
	t.expect("a compressed body", res, err, 400, 415, 413)
	s.works(ctx, t, "")
	return nil
}

// withToken sends a request with a token that must be refused.
func withToken(token string, headers map[string]string, want int) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		s, err := t.guarded(ctx)
		if err != nil {
			return err
		}
		for _, path := range []string{"/mcp", "/", "/metrics"} {
			res, err := s.send(ctx, request{path: path, token: token, headers: headers, body: list})
			t.expect("a request to "+path, res, err, want, http.StatusTooManyRequests)
		}
		return nil
	}
}

func tokenInURL(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"token", "access_token", "api_key"} {
		res, err := s.send(ctx, request{path: "/mcp?" + name + "=" + s.tokens["alice"], body: list})
		t.expect("a token in the URL", res, err, 401, 429)
	}
	return nil
}

func wrongToken(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	right := s.tokens["alice"]
	last := "x"
	if strings.HasSuffix(right, last) {
		last = "y"
	}
	for _, token := range []string{right[:len(right)-1] + last, right[:len(right)-1], right + "x", strings.ToUpper(right), right[4:], "x" + right} {
		res, err := s.send(ctx, request{token: token, body: list})
		t.expect("a wrong token", res, err, 401, 429)
	}
	return nil
}

func guessing(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	limited := 0
	for i := range 150 {
		res, err := s.send(ctx, request{token: fmt.Sprintf("gbx_%040d", i), body: list})
		if err == nil && res.status == http.StatusTooManyRequests {
			limited++
		} else {
			t.expect("a guessed token", res, err, 401)
		}
	}
	t.check(limited > 0, "150 guesses were not limited")
	s.works(ctx, t, s.tokens["alice"])
	return nil
}

func spoofedAddress(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	limited := 0
	for i := range 150 {
		res, err := s.send(ctx, request{token: "gbx_wrong", body: list, headers: map[string]string{"X-Forwarded-For": fmt.Sprintf("192.0.2.%d", i), "X-Real-Ip": fmt.Sprintf("192.0.2.%d", i)}})
		if err == nil && res.status == http.StatusTooManyRequests {
			limited++
		}
	}
	t.check(limited > 0, "150 guesses with forged addresses were not limited")
	return nil
}

func pathTricks(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	ask := func(path string) (string, error) {
		got, _, err := s.raw(ctx, "POST "+path+" HTTP/1.1\r\nHost: "+s.addr+"\r\nConnection: close\r\nAuthorization: Bearer "+s.tokens["alice"]+
			"\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\nContent-Length: "+fmt.Sprint(len(initialize))+"\r\n\r\n"+initialize, 5*time.Second)
		return got, err
	}
	if got, err := ask("/mcp"); err != nil || !strings.Contains(got, "HTTP/1.1 200") {
		return fmt.Errorf("the request is refused at the endpoint, too: %w: %s", err, printable(got))
	}
	for _, path := range []string{"/../mcp", "//mcp", "/mcp/", "/mcp/..", "/%2e%2e/mcp", "/mcp%00", "/mcp;x", "/MCP", "/../../../../etc/passwd", "/health/../mcp", "/debug/pprof/", "/.well-known/../mcp"} {
		got, err := ask(path)
		if err != nil {
			return err
		}
		t.check(!strings.Contains(got, "HTTP/1.1 200"), "%s is answered: %s", path, printable(got))
	}
	return nil
}

func injection(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	for _, text := range []string{
		"GET /health HTTP/1.1\r\nHost: " + s.addr + "\r\nX-Request-Id: a\rX-Evil: 1\r\n\r\n",
		"GET /mcp%0d%0aX-Evil:1 HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n",
		"GET /health HTTP/1.1\r\nHost: " + s.addr + "\r\nOrigin: http://a%0d%0aX-Evil: 1\r\n\r\n",
	} {
		got, _, err := s.raw(ctx, text, 2*time.Second)
		if err != nil {
			return err
		}
		headers, _, _ := strings.Cut(got, "\r\n\r\n")
		t.check(!strings.Contains(headers, "\nX-Evil") && !strings.Contains(headers, "\rX-Evil"), "a header was injected: %s", printable(headers))
	}
	return nil
}
