package server

import (
	"net/http"
	"strings"
	"testing"
)

var mcpAccept = "application/json, text/event-stream"

// TestCORS checks which origins may send requests, and which may read the answers.
func TestCORS(t *testing.T) {
	_, off := serve(t, nil)
	_, any := serve(t, func(o *Options) { o.CORS = true })
	_, listed := serve(t, func(o *Options) { o.AllowedOrigins = []string{"https://app.example", "http://localhost:3000"} })
	for _, c := range []struct {
		name, url, origin string
		status            int
		share             string
	}{
		{"off, no browser", off, "", 200, ""},
		{"off, a page", off, "https://app.example", 403, ""},
		{"off, a page of this machine", off, "http://localhost:3000", 200, ""},
		{"off, a page of this machine over IPv6", off, "http://[::1]:3000", 200, ""},
		{"off, a page of this machine over TLS", off, "https://localhost:3000", 200, ""},
		{"off, a page of this machine by address", off, "https://127.0.0.1", 200, ""},
		{"off, a page of another loopback address", off, "http://127.9.8.7:3000", 200, ""},
		{"off, a page of this machine over IPv6 and TLS", off, "https://[::1]", 200, ""},
		{"off, an address that looks local", off, "http://127.0.0.1.evil.example", 403, ""},
		{"off, an address of the network", off, "http://192.0.2.7:3000", 403, ""},
		{"off, another scheme", off, "ftp://localhost", 403, ""},
		{"off, a page that looks local", off, "http://localhost.evil.example", 403, ""},
		{"off, an extension", off, "chrome-extension://localhost", 403, ""},
		{"off, no origin to name", off, "null", 403, ""},
		{"any", any, "https://app.example", 200, "*"},
		{"any, no origin to name", any, "null", 200, "*"},
		{"listed, no browser", listed, "", 200, ""},
		{"listed", listed, "https://app.example", 200, "https://app.example"},
		{"listed, this machine", listed, "http://localhost:3000", 200, "http://localhost:3000"},
		{"listed, another port", listed, "https://app.example:8443", 403, ""},
		{"listed, another scheme", listed, "http://app.example", 403, ""},
		{"listed, this machine but not listed", listed, "http://localhost:3001", 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, path := range []string{"", "health"} {
				url := c.url
				if path != "" {
					url = strings.TrimSuffix(url, "mcp") + path
				}
				res, body := do(t, "GET", url, header{"Origin": c.origin}, "")
				if res.StatusCode != c.status || res.Header.Get("Access-Control-Allow-Origin") != c.share {
					t.Errorf("GET %s: %s, shared with %q: %.200s", path, res.Status, res.Header.Get("Access-Control-Allow-Origin"), body)
				}
				if c.url == listed && c.status == 200 && res.Header.Get("Vary") != "Origin" {
					t.Errorf("GET %s: Vary is %q", path, res.Header.Get("Vary"))
				}
				if c.origin == "" {
					continue
				}
				res, body = do(t, "OPTIONS", url, header{"Origin": c.origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,mcp-session-id"}, "")
				want := c.status
				if want == 200 {
					want = 204
				}
				h := res.Header
				if res.StatusCode != want || h.Get("Access-Control-Allow-Origin") != c.share {
					t.Errorf("preflight of %s: %s %v %s", path, res.Status, h, body)
				}
				if shared := c.share != ""; shared != strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") ||
					shared != strings.Contains(h.Get("Access-Control-Allow-Methods"), "DELETE") || shared != (h.Get("Access-Control-Max-Age") == "86400") {
					t.Errorf("preflight of %s: %v", path, h)
				}
			}
		})
	}
	res, body := do(t, "POST", listed, header{"Accept": mcpAccept, "Origin": "https://app.example"}, initBody)
	if res.StatusCode != 200 || !strings.Contains(res.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") || parse(t, body).Error != nil {
		t.Errorf("initialize from a page: %s %v %s", res.Status, res.Header, body)
	}
	if res, _ := do(t, "OPTIONS", off, header{}, ""); res.StatusCode != 204 || res.Header.Get("Allow") != methods {
		t.Errorf("OPTIONS that is no preflight: %s %v", res.Status, res.Header)
	}
}

// TestHosts: a Host header that does not name the server is refused (DNS rebinding).
func TestHosts(t *testing.T) {
	_, plain := serve(t, nil)
	_, listed := serve(t, func(o *Options) { o.AllowedHosts = []string{"box.example", "other.example:8443", "[fd00::1]"} })
	for _, c := range []struct {
		url, host string
		status    int
	}{
		{plain, "localhost", 200}, {plain, "LocalHost:8775", 200}, {plain, "127.0.0.1:1", 200}, {plain, "[::1]:1", 200}, {plain, "127.9.9.9", 200},
		{plain, "box.example", 403}, {plain, "localhost.evil.example", 403}, {plain, "127.0.0.1.evil.example:80", 403}, {plain, "evil.example:8775", 403},
		// Any address is a name of the server beyond loopback only. 0.0.0.0 and [::] are no loopback
		// addresses, although browsers may reach this machine by them.
		{plain, "192.0.2.1", 403}, {plain, "192.0.2.1:8775", 403}, {plain, "[2001:db8::1]:8775", 403}, {plain, "0.0.0.0:8775", 403}, {plain, "[::]:8775", 403},
		{listed, "localhost:8775", 200}, {listed, "box.example", 200}, {listed, "BOX.example:9", 200}, {listed, "other.example:8443", 200}, {listed, "[fd00::1]:80", 200},
		{listed, "other.example", 403}, {listed, "other.example:80", 403}, {listed, "a.box.example", 403}, {listed, "[fd00::2]:80", 403},
	} {
		res, body := do(t, "GET", c.url, header{"Host": c.host}, "")
		if res.StatusCode != c.status {
			t.Errorf("Host %s: %s %.200s", c.host, res.Status, body)
		}
		if c.status == http.StatusForbidden && parse(t, body).Error == nil {
			t.Errorf("Host %s: %s", c.host, body)
		}
	}
}

// TestHosts_PublicURLAndProbes: the host of the public URL is accepted beside a list of
// others, and probes may use any name.
func TestHosts_PublicURLAndProbes(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.AllowedHosts, o.PublicURL = []string{"box.example"}, "http://Glovebox:8775/mcp"
	})
	for _, c := range []struct {
		path, host string
		status     int
	}{
		{"/mcp", "glovebox:8775", 200}, {"/mcp", "GLOVEBOX:8775", 200}, {"/mcp", "box.example", 200},
		{"/mcp", "evil.example", 403}, {"/", "evil.example", 403}, {"/metrics", "evil.example", 403},
		{"/health", "evil.example", 200}, {"/ready", "10.0.0.7:8775", 200}, {"/health/x", "evil.example", 403},
	} {
		res, body := do(t, "GET", strings.TrimSuffix(url, "/mcp")+c.path, header{"Host": c.host}, "")
		if res.StatusCode != c.status {
			t.Errorf("%s with the host %s: %s %.200s", c.path, c.host, res.Status, body)
		}
	}
}

// TestHosts_PortOfPublicURL: clients and proxies may name the default port of the public URL or leave
// it out. Another port is not that of the server.
func TestHosts_PortOfPublicURL(t *testing.T) {
	for _, c := range []struct {
		public   string
		accepted []string
		refused  []string
	}{
		{"https://boxes.example.org/mcp", []string{"boxes.example.org", "boxes.example.org:443", "Boxes.example.ORG:443"}, []string{"boxes.example.org:80", "boxes.example.org:4430", "boxes.example.org:443:443", "evil.example:443"}},
		{"https://boxes.example.org:443/mcp", []string{"boxes.example.org", "boxes.example.org:443"}, []string{"boxes.example.org:80"}},
		{"http://boxes.example.org/mcp", []string{"boxes.example.org", "boxes.example.org:80"}, []string{"boxes.example.org:443"}},
		{"http://boxes.example.org:80/mcp", []string{"boxes.example.org", "boxes.example.org:80"}, []string{"boxes.example.org:443"}},
		{"https://boxes.example.org:8443/mcp", []string{"boxes.example.org:8443"}, []string{"boxes.example.org", "boxes.example.org:443"}},
		{"https://[fd00::1]/mcp", []string{"[fd00::1]", "[fd00::1]:443"}, []string{"[fd00::1]:80", "[fd00::2]:443"}},
	} {
		_, server := serve(t, func(o *Options) { o.PublicURL = c.public })
		for want, hosts := range map[int][]string{200: c.accepted, 403: c.refused} {
			for _, host := range hosts {
				if res, body := do(t, "GET", server, header{"Host": host}, ""); res.StatusCode != want {
					t.Errorf("Host %s at %s: %s %.200s, want %d", host, c.public, res.Status, body, want)
				}
			}
		}
	}
}

// TestCORS_WithTokens: preflights, which have no token, are answered, and pages can read
// why a request is refused.
func TestCORS_WithTokens(t *testing.T) {
	const app = "https://app.example"
	p := newPeople(t)
	_, url := serve(t, p.options(func(o *Options) { o.AllowedOrigins = []string{app} }))
	list := toolCall(7, "list_contexts", "{}")
	preflight := header{"Origin": app, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
	for _, c := range []struct {
		name, method string
		h            header
		body         string
		status       int
		share        string
	}{
		{"preflight", "OPTIONS", preflight, "", 204, app},
		{"no token", "POST", header{"Origin": app}, list, 401, app},
		{"a token", "POST", p.as("alice", "Origin", app), list, 200, app},
		{"a token that may not", "POST", p.as("monitor", "Origin", app), list, 403, app},
		{"another page with a token", "POST", p.as("alice", "Origin", "https://other.example"), list, 403, ""},
		{"no preflight", "OPTIONS", header{}, "", 401, ""},
	} {
		res, body := do(t, c.method, url, c.h, c.body)
		h := res.Header
		if res.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != c.share || c.share != "" && !strings.Contains(h.Get("Access-Control-Expose-Headers"), "WWW-Authenticate") {
			t.Errorf("%s: %s %v %s", c.name, res.Status, h, body)
		}
	}
}
