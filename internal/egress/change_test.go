package egress

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// rule replaces the policy by one with a rule for some requests.
func (w *world) rule(host, method, path string) {
	w.t.Helper()
	r, err := policy.NewRule([]string{host}, []string{method}, []string{path})
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := policy.New([]policy.Rule{r}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set = policy.Set{Owner: p}
}

// TestGate_ChangeEndsUpgradedConnection: a WebSocket ends when its request would be refused.
func TestGate_ChangeEndsUpgradedConnection(t *testing.T) {
	server := web(t, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(c, rw) // until the client leaves
	})
	for _, tt := range []struct {
		name string
		ends bool
		rule func(*world)
	}{
		{"the host is allowed", false, func(w *world) { w.allow("http://ws.example.org", "other.example.org") }},
		{"only the same request is allowed", true, func(w *world) { w.rule("http://ws.example.org", "GET", "/chat") }},
		{"another path is allowed", true, func(w *world) { w.rule("http://ws.example.org", "GET", "/other") }},
		{"another method is allowed", true, func(w *world) { w.rule("http://ws.example.org", "POST", "/chat") }},
		{"another host is allowed", true, func(w *world) { w.allow("other.example.org") }},
	} {
		for _, door := range []string{"proxy", "CONNECT", "origin"} {
			t.Run(tt.name+", "+door, func(t *testing.T) {
				w := newWorld(t, Options{}, []string{"ws.example.org"}, "ws.example.org="+server)
				w.t = t
				uri, to := "/chat", w.httpDoor()
				switch door {
				case "proxy":
					uri = "http://ws.example.org/chat"
				case "origin":
					to = w.tcpDoor("ws.example.org", 80)
				}
				c := connect(t, to)
				if door == "CONNECT" {
					fmt.Fprint(c, "CONNECT ws.example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n")
					if head, err := readHead(c); err != nil || !strings.Contains(head, " 200 ") {
						t.Fatalf("%q, %v", head, err)
					}
				}
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: ws.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", uri)
				if head, err := readHead(c); err != nil || !strings.Contains(head, " 101 ") {
					t.Fatalf("%q, %v", head, err)
				}
				tt.rule(w)
				w.g.Reevaluate()
				fmt.Fprint(c, "frame")
				_, err := io.ReadFull(c, make([]byte, 5))
				if e, ok := err.(net.Error); (err != nil) != tt.ends || ok && e.Timeout() {
					t.Errorf("after the change, reading a frame gives %v; the connection ends: want %v", err, tt.ends)
				}
				if tt.ends {
					w.wantOutcomes(t, "ws.example.org policy_changed")
				}
			})
		}
	}
}

// waitingInterceptor keeps the connection of the program until its context ends.
type waitingInterceptor struct {
	fakeInterceptor
	err error // of a dial after the end
}

func (i *waitingInterceptor) Serve(ctx context.Context, _ Box, _ string, _ uint16, c net.Conn, dial func(context.Context) (net.Conn, error), _ func(policy.Reason, string)) error {
	down := tls.Server(c, i.config)
	defer down.Close()
	if err := down.HandshakeContext(ctx); err != nil {
		return err
	}
	fmt.Fprint(down, "here")
	<-ctx.Done()
	_, i.err = dial(context.Background())
	return nil
}

// TestGate_ChangeEndsInterceptedConnection: an intercepted connection ends, also between two
// requests, and nothing is dialled for it any more.
func TestGate_ChangeEndsInterceptedConnection(t *testing.T) {
	own := egresstest.NewCA(t)
	for _, door := range []string{"CONNECT", "tcp"} {
		i := &waitingInterceptor{fakeInterceptor: fakeInterceptor{own.Config("api.example.org")}}
		w := newWorld(t, Options{Intercept: i}, []string{"*.example.org"}, "api.example.org=127.0.0.1:1")
		var c net.Conn
		if door == "tcp" {
			c = connect(t, w.tcpDoor("api.example.org", 443))
		} else {
			c = connect(t, w.httpDoor())
			fmt.Fprint(c, "CONNECT api.example.org:443 HTTP/1.1\r\n\r\n")
			if head, err := readHead(c); err != nil || !strings.Contains(head, " 200 ") {
				t.Fatalf("%q, %v", head, err)
			}
		}
		s := tls.Client(c, &tls.Config{ServerName: "api.example.org", RootCAs: own.Pool})
		if _, err := io.ReadFull(s, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		w.allow("other.example.org")
		w.g.Reevaluate()
		_, err := s.Read(make([]byte, 1))
		if e, ok := err.(net.Error); err == nil || ok && e.Timeout() {
			t.Errorf("%s: after the change, reading gives %v", door, err)
		}
		until(t, "the place is free", func() bool { return w.g.Stats().Open == 0 })
		if i.err == nil || !strings.Contains(i.err.Error(), "no rule allows it") {
			t.Errorf("%s: after the change, a dial gives %v", door, i.err)
		}
	}
}

// TestProxy_LimitedRuleUpgradesNothing: with a rule for some requests, no connection becomes
// one whose content cannot be read.
func TestProxy_LimitedRuleUpgradesNothing(t *testing.T) {
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "upgrade %q", r.Header["Upgrade"])
	})
	w := newWorld(t, Options{}, nil, "ws.example.org="+server)
	w.rule("http://ws.example.org", "GET", "/chat")
	got := say(t, w.httpDoor(), "GET http://ws.example.org/chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n")
	if !strings.Contains(got, "upgrade []") {
		t.Errorf("the server got %q", got)
	}
}

// TestProxy_KeepsQueries: a query reaches the server as the program wrote it.
func TestProxy_KeepsQueries(t *testing.T) {
	server := web(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.RawQuery) })
	w := newWorld(t, Options{}, []string{"a.example.org"}, "a.example.org="+server)
	got := say(t, w.httpDoor(), "GET http://a.example.org/?a=1;2&b=%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if !strings.Contains(got, "a=1;2&b=%zz") {
		t.Errorf("got %q", got)
	}
}
