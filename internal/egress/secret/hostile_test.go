package secret

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

// TestServe_UpgradeWithBody: a request with a body asks for no upgrade, after which the rest of the body
// and the program's stream would be read from one connection by two, of which one panics.
func TestServe_UpgradeWithBody(t *testing.T) {
	asked := make(chan string, 2)
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Upgrade")
		io.Copy(rw, r.Body)
	}))
	w.host.TLS.NextProtos = []string{"http/1.1"}
	for _, framing := range []string{"Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"} {
		c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost, "http/1.1"))
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s", apiHost, framing)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		if upgrade := <-asked; upgrade != "" || res.StatusCode != 200 || string(body) != "body" {
			t.Errorf("%q: the host was asked for the upgrade %q, and the program got %s %q", framing, upgrade, res.Status, body)
		}
		c.Close()
	}
}

// TestServe_InformationalResponses: those of the host do not reach the program. net/http may still encode
// their headers after it was told to write them, while ReverseProxy clears them. HTTP/2 has no upgrades, so
// that 101 is one of them.
func TestServe_InformationalResponses(t *testing.T) {
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Link", "</style.css>")
		rw.WriteHeader(http.StatusEarlyHints)
		if r.ProtoMajor == 2 {
			rw.WriteHeader(http.StatusSwitchingProtocols)
		}
		rw.Header().Del("Link")
		io.WriteString(rw, "answer")
	})
	bothVersions(t, h, func(t *testing.T, w *world, c *http.Client) {
		got := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
			got++
			return nil
		}})
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://"+apiHost+"/", nil)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if body, _ := io.ReadAll(res.Body); got != 0 || res.StatusCode != 200 || string(body) != "answer" || res.Header.Get("Link") != "" {
			t.Errorf("%d informational responses, then %s %q %v", got, res.Status, body, res.Header)
		}
	})
}

// TestServe_OpaqueURL: a URL that names another host without being absolute does not reach the host, which
// would believe it rather than the header Host.
func TestServe_OpaqueURL(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the host got %q for %q", r.RequestURI, r.Host) }))
	w.host.TLS.NextProtos = []string{"http/1.1"}
	for _, url := range []string{"https:http://evil.example.net/steal", "https:evil.example.net"} {
		c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost, "http/1.1"))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", url, apiHost, w.placeholder(box, "API_TOKEN"))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 400 || len(w.events(Swapped)) != 0 {
			t.Errorf("%s: %s, want 400", url, res.Status)
		}
		c.Close()
	}
}

// TestServe_GeneralOptions: OPTIONS * is a request like others: it is for the host of the connection, and a
// refusal ends the connection.
func TestServe_GeneralOptions(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost, "http/1.1"))
	defer c.Close()
	io.WriteString(c, strings.Repeat("OPTIONS * HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", 10))
	all, _ := io.ReadAll(c)
	if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 || !strings.HasPrefix(string(all), "HTTP/1.1 421 ") {
		t.Errorf("%d answers: %q", n, all)
	}
}

// TestServe_HeadersWaitForTheirTurn: while an answer of the owner is masked, no headers are.
func TestServe_HeadersWaitForTheirTurn(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(204) }))
	c := w.client(box, apiHost, true)
	get := func() error {
		res, err := c.Get("https://" + apiHost)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	if err := get(); err != nil { // there is a session now
		t.Fatal(err)
	}
	w.i.sessionsMu.Lock()
	load := w.i.loads[box.Owner]
	w.i.sessionsMu.Unlock()
	load.turn.Lock()
	done := make(chan error, 1)
	go func() { done <- get() }()
	select {
	case err := <-done:
		t.Errorf("headers were masked beside an answer of the owner: %v", err)
		load.turn.Unlock()
		return
	case <-time.After(200 * time.Millisecond):
	}
	load.turn.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServe_RequestsOfOwner: an owner has so many requests in progress, in all boxes together; another owner
// has as many, and further ones begin when some have ended.
func TestServe_RequestsOfOwner(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			rw.(http.Flusher).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}))
	status := func(c *http.Client, path string) int {
		t.Helper()
		res, err := c.Get("https://" + apiHost + path)
		if err != nil {
			t.Fatal(err)
		}
		if path != "/wait" {
			res.Body.Close()
		}
		return res.StatusCode
	}
	all := definitions(t)
	for i := range all {
		all[i].Owners = []string{Everyone}
	}
	secrets, err := Load(all)
	if err != nil {
		t.Fatal(err)
	}
	w.i.Replace(secrets)
	second, third := egress.Box{Owner: box.Owner, ID: "box2"}, egress.Box{Owner: box.Owner, ID: "box3"}
	for n := range maxRequests / maxStreams {
		c := w.client([]egress.Box{box, second}[n%2], apiHost, true)
		for range maxStreams {
			if got := status(c, "/wait"); got != 200 {
				t.Fatalf("a request: %d", got)
			}
		}
	}
	c := w.client(box, apiHost, true)
	for b, want := range map[egress.Box]int{
		box: http.StatusServiceUnavailable, second: http.StatusServiceUnavailable, third: http.StatusServiceUnavailable,
		{Owner: "token bob", ID: "box4"}: http.StatusOK,
	} {
		if got := status(w.client(b, apiHost, true), "/"); got != want {
			t.Errorf("after %d requests of %s, one of %+v: %d, want %d", maxRequests, box.Owner, b, got, want)
		}
	}
	for range maxRequests { // none of them takes a place
		if got := status(c, "/"); got != http.StatusServiceUnavailable {
			t.Fatalf("one more request: %d", got)
		}
	}
	close(release)
	for ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second); ; {
		if status(c, "/") == 200 || ctx.Err() != nil {
			if ctx.Err() != nil {
				t.Error("no request begins after others have ended")
			}
			cancel()
			break
		}
	}
}

// TestServe_InvalidStatus: an answer with a status that is none of HTTP does not reach the program. Below 100,
// it is no informational response, which is dropped, and net/http would write its headers as they are.
func TestServe_InvalidStatus(t *testing.T) {
	for _, status := range []string{"000", "042", "099"} {
		h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "HTTP/1.1 %s Echo\r\nX-Echo: %s\r\nContent-Length: 4\r\n\r\nbody", status, r.Header.Get("Authorization"))
		})
		for _, http2 := range []bool{false, true} {
			w := newWorld(t, h)
			w.host.TLS.NextProtos = []string{"http/1.1"}
			res, body := get(t, w.client(box, apiHost, http2), "https://"+apiHost+"/", "Bearer "+w.placeholder(box, "API_TOKEN"))
			if res.StatusCode != http.StatusBadGateway {
				t.Errorf("%s: %s %q, want 502", status, res.Status, body)
			}
			checkClean(t, "the answer with the status "+status, fmt.Sprint(res.Header, body))
		}
	}
}
