package outbound

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a DNS server on loopback that returns its answers one after the other,
// and then the last one again. Without answers it is silent.
func nameServer(t *testing.T, answers ...netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for n := 0; ; {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if len(answers) == 0 || m.Unpack(buf[:size]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: answers[min(n, len(answers)-1)].As4()},
				}}
				n++
			}
			if out, err := m.Pack(); err == nil {
				conn.WriteTo(out, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// client is NewClient with a given name server.
func client(t *testing.T, p *Policy, r *net.Resolver) *http.Client {
	t.Helper()
	c := NewClient("srv", p, 1000)
	d := &dialer{server: "srv", policy: p, resolver: r}
	c.Transport.(*guard).next.DialContext = d.dial
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func get(t *testing.T, c *http.Client, url string, header ...string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func wantRefusal(t *testing.T, err error, want Reason) {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || r.Reason != want || r.Server != "srv" {
		t.Fatalf("got %v, want a refusal for %q", err, want)
	}
}

// hello starts a server on loopback and returns it with its port.
func hello(t *testing.T, h http.HandlerFunc) (url, port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL, s.URL[strings.LastIndex(s.URL, ":"):]
}

func TestClient_NameOfThisMachine(t *testing.T) {
	reached := false
	_, port := hello(t, func(http.ResponseWriter, *http.Request) { reached = true })
	c := client(t, &Policy{AllowHTTP: true}, nameServer(t, netip.MustParseAddr("127.0.0.1")))
	_, err := get(t, c, "http://rebind.example.com"+port+"/")
	wantRefusal(t, err, Localhost)
	if reached {
		t.Error("the server was reached")
	}
}

// The address of a name changes between check and use.
func TestClient_DNSRebinding(t *testing.T) {
	var mu sync.Mutex
	requests := 0
	_, port := hello(t, func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		requests++
		mu.Unlock()
	})
	// The first answer is an address of this machine that is allowed here; what
	// comes after it is not.
	c := client(t, &Policy{AllowHTTP: true, AllowLocalhost: true},
		nameServer(t, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")))
	if _, err := get(t, c, "http://rebind.example.com"+port+"/"); err != nil {
		t.Fatal(err)
	}
	c.CloseIdleConnections()
	_, err := get(t, c, "http://rebind.example.com"+port+"/")
	wantRefusal(t, err, Metadata)
	mu.Lock()
	defer mu.Unlock()
	if requests != 1 {
		t.Errorf("%d requests arrived, want 1", requests)
	}
}

func TestClient_NameServerSilent(t *testing.T) {
	c := client(t, &Policy{LookupTimeout: 100 * time.Millisecond}, nameServer(t))
	_, err := get(t, c, "https://slow.example.com/")
	wantRefusal(t, err, Unresolved)
	if want := "no answer within 100ms"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %q", err, want)
	}
}

func TestClient_Redirects(t *testing.T) {
	var elsewhere sync.Map
	other, _ := hello(t, func(_ http.ResponseWriter, r *http.Request) { elsewhere.Store("key", r.Header.Get("X-Api-Key")) })
	here, port := hello(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		case "/there":
			io.WriteString(w, "there with "+r.Header.Get("X-Api-Key"))
		case "/away":
			http.Redirect(w, r, other, http.StatusTemporaryRedirect)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		}
	})
	local := &Policy{AllowHTTP: true, AllowLocalhost: true}
	for _, p := range []*Policy{local, nil} {
		c := client(t, p, net.DefaultResolver)
		if got, err := get(t, c, here+"/here", "X-Api-Key", "k"); err != nil || got != "there with k" {
			t.Errorf("redirect within the origin: %q, %v", got, err)
		}
		for _, path := range []string{"/away", "/file"} {
			_, err := get(t, c, here+path, "X-Api-Key", "k")
			wantRefusal(t, err, Redirected)
		}
		if _, err := get(t, c, here+"/loop"); err == nil || !strings.Contains(err.Error(), "more than 5 redirects") {
			t.Errorf("a loop of redirects: %v", err)
		}
	}
	if key, reached := elsewhere.Load("key"); reached {
		t.Errorf("the other server was reached, with the key %q", key)
	}

	// The same name, but by then it is another's: each hop is dialled anew.
	c := client(t, local, nameServer(t, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1")))
	c.Transport.(*guard).next.DisableKeepAlives = true
	_, err := get(t, c, "http://moving.example.com"+port+"/here")
	wantRefusal(t, err, Private)
}

func TestClient_BodyLimit(t *testing.T) {
	url, _ := hello(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/declared":
			w.Header().Set("Content-Length", "100000000")
			return
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
		case "/fits":
			io.WriteString(w, strings.Repeat("x", 1000))
			return
		}
		io.WriteString(w, strings.Repeat("x", 1001))
	})
	c := client(t, &Policy{AllowHTTP: true, AllowLocalhost: true}, net.DefaultResolver)
	for path, want := range map[string]int{"/fits": 1000, "/events": 1001} {
		if got, err := get(t, c, url+path); err != nil || len(got) != want {
			t.Errorf("%s: %d bytes, %v, want %d", path, len(got), err, want)
		}
	}
	for _, path := range []string{"/over", "/declared"} {
		var large *TooLargeError
		if got, err := get(t, c, url+path); !errors.As(err, &large) || len(got) > 1000 {
			t.Errorf("%s: %d bytes, %v, want TooLargeError", path, len(got), err)
		}
	}
}

// The proxy of the environment would apply no policy.
func TestClient_NoProxyWithPolicy(t *testing.T) {
	if c := NewClient("srv", &Policy{}, 0); c.Transport.(*guard).next.Proxy != nil {
		t.Error("a proxy is used")
	}
}
