package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// secure serves HTTP/1.1 and HTTP/2 over TLS on loopback.
func secure(t testing.TB, ca *egresstest.CA, h http.HandlerFunc, names ...string) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = ca.Config(names...)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func greet(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "hello from %s over %s", r.Host, r.Proto)
}

// TestGate_Curl: real curl reaches allowed hosts through each door, and explains refusals.
func TestGate_Curl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	ca := egresstest.NewCA(t)
	w := newWorld(t, Options{}, []string{"good.example.org"},
		"good.example.org:443="+secure(t, ca, greet, "good.example.org"), "good.example.org:80="+web(t, greet))
	proxy, socks := w.httpDoor(), w.door(protocol.Dial{Door: protocol.DoorSOCKS})
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"http proxy", "hello from good.example.org over HTTP/1.1", []string{"-x", "http://" + proxy, "http://good.example.org/"}},
		{"CONNECT", "hello from good.example.org over HTTP/2.0", []string{"-x", "http://" + proxy, "https://good.example.org/"}},
		{"CONNECT, then HTTP", "hello from good.example.org over HTTP/1.1", []string{"-p", "-x", "http://" + proxy, "http://good.example.org/"}},
		{"SOCKS", "hello from good.example.org over HTTP/2.0", []string{"-x", "socks5h://" + socks, "https://good.example.org/"}},
		{"tcp", "hello from good.example.org over HTTP/2.0", []string{"--connect-to", "::" + w.tcpDoor("good.example.org", 443), "https://good.example.org/"}},
		{"tcp and HTTP", "hello from good.example.org over HTTP/1.1", []string{"--connect-to", "::" + w.tcpDoor("good.example.org", 80), "http://good.example.org/"}},
		{"refused", "Glovebox refused evil.example.org:80: no rule allows it (allowed: good.example.org)", []string{"-x", "http://" + proxy, "http://evil.example.org/"}},
		{"refused CONNECT", "403 Glovebox refused evil.example.org:443: no rule allows it (allowed: good.example.org)", []string{"-v", "-x", "http://" + proxy, "https://evil.example.org/"}},
		{"refused SOCKS", "(2)", []string{"-v", "-x", "socks5h://" + socks, "https://evil.example.org/"}},
		{"other server name", "unrecognized name", []string{"-v", "--connect-to", "::" + w.tcpDoor("good.example.org", 443), "https://evil.example.org/"}},
		{"other Host", "the request is for the host \"evil.example.org\"", []string{"-H", "Host: evil.example.org", "--connect-to", "::" + w.tcpDoor("good.example.org", 80), "http://good.example.org/"}},
	} {
		cmd := exec.CommandContext(t.Context(), curl, append([]string{"-q", "-sS", "-m", "10", "--cacert", ca.File}, tt.args...)...)
		cmd.Env = []string{}
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v\n%s\nwant %q", tt.name, err, out, tt.want)
		}
	}
	until(t, "all connections end", func() bool { return w.g.Stats().Open == 0 })
	if s := w.g.Stats(); s.Refusals[policy.NoRule] != 3 || s.Refusals[SNI] != 1 || s.Refusals[Host] != 1 || s.Sent == 0 || s.Received == 0 {
		t.Errorf("stats: %+v", s)
	}
	if notes := w.n.Take(); len(notes) != 4 || len(w.n.Take()) != 0 {
		t.Errorf("notes: %+v", notes)
	}
}

// TestConnect_SNIMustEqualName: behind CONNECT, the server name of TLS has to be that of
// the request, and has to be there.
func TestConnect_SNIMustEqualName(t *testing.T) {
	ca := egresstest.NewCA(t)
	w := newWorld(t, Options{}, []string{"good.example.org", "*.good.example.org"}, "good.example.org:443="+secure(t, ca, greet, "good.example.org", "other.good.example.org"))
	door := w.httpDoor()
	for name, want := range map[string]string{"good.example.org": "", "GOOD.example.ORG": "", "other.good.example.org": "unrecognized name", "": "unrecognized name"} {
		c := connect(t, door)
		fmt.Fprint(c, "CONNECT good.example.org:443 HTTP/1.1\r\nHost: evil.example.org\r\n\r\n")
		if line, err := readHead(c); err != nil || !strings.Contains(line, " 200 ") {
			t.Fatalf("%q, %v", line, err)
		}
		err := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("server name %q: %v, want %q", name, err, want)
		}
	}
}

// readHead reads the head of an answer, and no byte more.
func readHead(c net.Conn) (string, error) {
	var b []byte
	for !strings.HasSuffix(string(b), "\r\n\r\n") {
		one := make([]byte, 1)
		if _, err := c.Read(one); err != nil {
			return string(b), err
		}
		b = append(b, one...)
	}
	return string(b), nil
}

// TestProxy_SmugglingEndsHere: nothing reaches a server but requests that were decided on.
func TestProxy_SmugglingEndsHere(t *testing.T) {
	var paths atomic.Value
	paths.Store("")
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		paths.Store(paths.Load().(string) + fmt.Sprintf("%s %s %s %q|", r.Method, r.Host, r.URL, body))
		if r.Header.Get("Proxy-Authorization") != "" || r.Header.Get("Upgrade") != "" || r.Header.Get("X-Hop") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("headers %v", r.Header)
		}
		greet(w, r)
	})
	w := newWorld(t, Options{}, []string{"good.example.org"}, "good.example.org:80="+server)
	door, origin := w.httpDoor(), w.tcpDoor("good.example.org", 80)
	const end = "Connection: close\r\n\r\n"
	for _, tt := range []struct{ name, door, in, want, seen string }{
		{"absolute form beats Host", door, "GET http://good.example.org/a HTTP/1.1\r\nHost: evil.example.org\r\n" + end, " 200 ", `GET good.example.org /a ""|`},
		{"hop-by-hop headers", door, "GET http://good.example.org/a HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic x\r\nX-Forwarded-For: 127.0.0.1\r\nUpgrade: h2c\r\nX-Hop: 1\r\nConnection: close, X-Hop, Upgrade\r\n\r\n", " 200 ", `GET good.example.org /a ""|`},
		{"two Hosts", origin, "GET /a HTTP/1.1\r\nHost: good.example.org\r\nHost: evil.example.org\r\n" + end, " 400 ", ""},
		{"no Host", origin, "GET /a HTTP/1.1\r\n" + end, " 400 ", ""},
		{"other port", origin, "GET /a HTTP/1.1\r\nHost: good.example.org:81\r\n" + end, " 403 ", ""},
		{"same port", origin, "GET /a HTTP/1.1\r\nHost: Good.example.org:80\r\n" + end, " 200 ", `GET good.example.org /a ""|`},
		{"absolute form of another", origin, "GET http://evil.example.org/a HTTP/1.1\r\nHost: good.example.org\r\n" + end, " 403 ", ""},
		{"CONNECT at an origin", origin, "CONNECT good.example.org:80 HTTP/1.1\r\nHost: good.example.org\r\n" + end, " 403 ", ""},
		{"length and chunks", door, "POST http://good.example.org/a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n" + end + "3\r\nabc\r\n0\r\n\r\nGET http://good.example.org/smuggled HTTP/1.1\r\n\r\n", " 200 ", `POST good.example.org /a "abc"|`},
		{"two lengths", door, "POST http://good.example.org/a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 40\r\n" + end + "abcd", " 400 ", ""},
		{"strange encoding", door, "POST http://good.example.org/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n" + end, " 501 ", ""},
		{"user name", door, "GET http://good.example.org@evil.example.org/ HTTP/1.1\r\nHost: x\r\n" + end, " 400 ", ""},
		{"user name of an allowed host", door, "GET http://u:p@good.example.org/ HTTP/1.1\r\nHost: x\r\n" + end, " 400 ", ""},
		{"https URL", door, "GET https://good.example.org/ HTTP/1.1\r\nHost: x\r\n" + end, " 400 ", ""},
		{"origin form", door, "GET / HTTP/1.1\r\nHost: good.example.org\r\n" + end, " 400 ", ""},
		{"CONNECT with a user name", door, "CONNECT a@good.example.org:80 HTTP/1.1\r\nHost: x\r\n" + end, " 403 ", ""},
		{"CONNECT with a path", door, "CONNECT good.example.org:80/x HTTP/1.1\r\nHost: x\r\n" + end, " 400 ", ""},
		{"CONNECT without a port", door, "CONNECT good.example.org HTTP/1.1\r\nHost: x\r\n" + end, " 400 ", ""},
		{"CONNECT to metadata", door, "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n" + end, " 403 Glovebox refused 169.254.169.254:80: it is the metadata service of a cloud", ""},
		{"early bytes behind CONNECT", door, "CONNECT good.example.org:80 HTTP/1.1\r\nHost: x\r\n\r\nGET /early HTTP/1.1\r\nHost: good.example.org\r\n" + end, " 200 OK", `GET good.example.org /early ""|`},
		{"early bytes for another", door, "CONNECT good.example.org:80 HTTP/1.1\r\nHost: x\r\n\r\nGET /early HTTP/1.1\r\nHost: evil.example.org\r\n" + end, " 403 ", ""},
	} {
		paths.Store("")
		got := say(t, tt.door, tt.in)
		if !strings.Contains(got, tt.want) || paths.Load() != tt.seen {
			t.Errorf("%s: got %q, the server saw %q; want %q, %q", tt.name, got, paths.Load(), tt.want, tt.seen)
		}
	}
}

// TestGate_HTTP2 and a redirect to the metadata service, which the next request meets.
func TestGate_HTTP2AndRedirect(t *testing.T) {
	ca := egresstest.NewCA(t)
	server := secure(t, ca, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
			return
		}
		greet(w, r)
	}, "good.example.org")
	w := newWorld(t, Options{}, []string{"good.example.org", "169.254.0.0/16"}, "good.example.org:443="+server)
	proxy := &url.URL{Scheme: "http", Host: w.httpDoor()}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: ca.Pool}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	for path, want := range map[string]string{"/": "hello from good.example.org over HTTP/2.0", "/redirect": "the metadata service of a cloud, which boxes never reach"} {
		res, err := client.Get("https://good.example.org" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s %q, %v, want %q", path, res.Status, body, err, want)
		}
	}
}

// TestGate_Rebinding: an allowed name that leads to this machine is refused at each door,
// and nothing arrives there.
func TestGate_Rebinding(t *testing.T) {
	var arrived atomic.Int64
	bait := listen(t, func(net.Conn) { arrived.Add(1) })
	_, port, err := net.SplitHostPort(bait)
	if err != nil {
		t.Fatal(err)
	}
	dns := egresstest.NewDNS(t)
	dns.Set("a.example.org", "127.0.0.1")
	dns.Set("b.example.org", "8.8.8.8", "127.0.0.1")
	dns.Set("c.example.org", "CNAME localhost.example.net")
	dns.Set("localhost.example.net", "127.0.0.1")
	w := newWorld(t, Options{Resolver: dns.Resolver()}, []string{"*.example.org:" + port, "127.0.0.0/8:" + port}, "pinned.example.org="+bait)
	door := w.httpDoor()
	for _, host := range []string{"a.example.org", "b.example.org", "c.example.org", "127.0.0.1"} {
		got := say(t, door, "CONNECT "+host+":"+port+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if !strings.Contains(got, " 403 ") || !strings.Contains(got, "boxes never reach") || host != "127.0.0.1" && strings.Contains(got, "127.0.0.1") {
			t.Errorf("%s: %q", host, got)
		}
		if host == "127.0.0.1" {
			continue
		}
		if res := w.n.Lookup(t.Context(), host); res.Status != protocol.LookupRefused {
			t.Errorf("lookup of %s: %+v", host, res)
		}
	}
	if arrived.Load() != 0 {
		t.Errorf("%d connections arrived", arrived.Load())
	}
	// The check just before the connect does not depend on the resolver.
	addr := netip.MustParseAddrPort(bait)
	if c, err := w.n.dialAddr(t.Context(), addr, false, time.Second); err == nil || !strings.Contains(err.Error(), "never reach") {
		t.Errorf("dialAddr: %v, %v", c, err)
	}
	if c, err := w.n.dialAddr(t.Context(), addr, true, time.Second); err != nil {
		t.Errorf("dialAddr of a pinned address: %v", err)
	} else {
		c.Close()
	}
}

func TestNetwork_Lookup(t *testing.T) {
	dns := egresstest.NewDNS(t)
	dns.Set("good.example.org", "8.8.8.8")
	w := newWorld(t, Options{Resolver: dns.Resolver()}, []string{"good.example.org", "gone.example.org", "tcp://good.example.org:22"})
	for name, want := range map[string]string{
		"good.example.org": "{ok [22 80 443] 30}", "gone.example.org": "{nxdomain [] 1}", "evil.example.org": "{refused [] 0}", "a..b": "{refused [] 0}",
	} {
		if got := fmt.Sprint(w.n.Lookup(t.Context(), name)); got != want {
			t.Errorf("Lookup(%q) = %s, want %s", name, got, want)
		}
	}
	if asked := dns.Asked(); len(asked) != 2 {
		t.Errorf("asked for %q: a refused name leaves the machine", asked)
	}
	failed := 0
	for range 2 * lookupBurst {
		if w.n.Lookup(t.Context(), "evil.example.org").Status == protocol.LookupFailed {
			failed++
		}
	}
	if failed < lookupBurst/2 {
		t.Errorf("%d of %d lookups were too many", failed, 2*lookupBurst)
	}
}

// TestGate_Raw: a rule for any protocol passes bytes through, with each end of stream, to
// a server that speaks first.
func TestGate_Raw(t *testing.T) {
	server := listen(t, func(c net.Conn) {
		fmt.Fprint(c, "220 ready\r\n")
		b, err := io.ReadAll(c) // until the client ends its stream
		if err == nil {
			fmt.Fprintf(c, "got %q", b)
		}
	})
	w := newWorld(t, Options{}, []string{"tcp://db.example.org:5432", "web.example.org:5432"}, "db.example.org="+server, "web.example.org="+server)
	for _, door := range []string{"", w.httpDoor()} {
		var c net.Conn
		if door == "" {
			c = connect(t, w.tcpDoor("db.example.org", 5432))
		} else {
			c = connect(t, door)
			fmt.Fprint(c, "CONNECT db.example.org:5432 HTTP/1.1\r\n\r\n")
			if head, err := readHead(c); err != nil || !strings.Contains(head, " 200 ") {
				t.Fatalf("%q, %v", head, err)
			}
		}
		r := bufio.NewReader(c)
		if line, err := r.ReadString('\n'); err != nil || line != "220 ready\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		fmt.Fprint(c, "anything")
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(r); err != nil || string(rest) != `got "anything"` {
			t.Errorf("%q, %v", rest, err)
		}
	}
	if got := say(t, w.tcpDoor("web.example.org", 5432), "SSH-2.0-x\r\n"); got != "" {
		t.Errorf("a web rule passed %q", got)
	}
	notes := w.n.Take()
	if len(notes) != 1 || notes[0].Reason != string(Protocol) || !strings.HasPrefix(notes[0].Text, "Glovebox refused web.example.org:5432: ") {
		t.Errorf("notes: %+v", notes)
	}
	until(t, "records", func() bool { return len(w.recorded()) == 3 })
	for _, r := range w.recorded() {
		if r.Outcome == OK && (r.Sent != 8 || r.Received != 25 || r.Host != "db.example.org" || r.Rule != "tcp://db.example.org:5432" || !r.Addr.IsValid()) {
			t.Errorf("record %+v", r)
		}
	}
}

// TestGate_PolicyChangeEndsConnection: a connection that is no longer allowed ends, and
// others go on.
func TestGate_PolicyChangeEndsConnection(t *testing.T) {
	echo := listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w := newWorld(t, Options{}, []string{"tcp://a.example.org:7", "tcp://b.example.org:7"}, "a.example.org="+echo, "b.example.org="+echo)
	a, b := connect(t, w.tcpDoor("a.example.org", 7)), connect(t, w.tcpDoor("b.example.org", 7))
	ping := func(c net.Conn) error {
		if _, err := io.WriteString(c, "ping"); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 4))
		return err
	}
	if err := errors.Join(ping(a), ping(b)); err != nil {
		t.Fatal(err)
	}
	w.allow("tcp://b.example.org:7")
	w.g.Reevaluate()
	if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection that is no longer allowed: %v", err)
	}
	if err := ping(b); err != nil {
		t.Errorf("the other connection: %v", err)
	}
	select {
	case <-w.n.Changed():
	default:
		t.Error("the change was not announced")
	}
	if !w.n.Active() || !w.n.Connected() || !w.n.Settings().On {
		t.Error("the network is not active, connected and on")
	}
	w.allow()
	w.g.Reevaluate()
	if s := w.n.Settings(); s.On || s.Notice == "" {
		t.Errorf("without rules: %+v", s)
	}
	until(t, "all flows end", func() bool { return w.g.Stats().Connections[PolicyChanged] == 2 && !w.n.Connected() })
	w.wantOutcomes(t, "a.example.org policy_changed", "b.example.org policy_changed")
}

// TestGate_LimitsAreByOwner: a box, and all boxes of an owner, reach their limits, and
// another owner's box still connects.
func TestGate_LimitsAreByOwner(t *testing.T) {
	echo := listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w := newWorld(t, Options{MaxConnections: 16}, []string{"tcp://a.example.org:7"}, "a.example.org="+echo)
	d := protocol.Dial{Door: protocol.DoorTCP, Name: "a.example.org", Port: 7}
	second := w.g.Open(Box{Owner: "alice", ID: "box-2"})
	other := w.g.Open(Box{Owner: "bob", ID: "box-3"})
	works := func(addr string) bool {
		c := connect(t, addr)
		if _, err := io.WriteString(c, "x"); err != nil {
			return false
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err == nil
	}
	one, two, three := w.door(d), w.doorOf(second, d), w.doorOf(other, d)
	for i := range 4 { // a quarter of 16
		if !works([]string{one, two}[i%2]) {
			t.Fatalf("connection %d failed", i)
		}
	}
	if works(one) || works(two) {
		t.Error("an owner has more connections than a quarter")
	}
	if !works(three) {
		t.Error("another owner is kept out")
	}
	if got := say(t, w.httpDoor(), ""); !strings.HasPrefix(got, "HTTP/1.1 429 Glovebox refused the connection") {
		t.Errorf("the proxy says %q", got)
	}
	if w.g.Stats().Refusals[Limit] < 3 {
		t.Errorf("stats: %+v", w.g.Stats())
	}
	refused := map[string]int{}
	for _, r := range w.recorded() {
		if r.Outcome == Refused {
			refused[fmt.Sprint(r.Reason, " of ", r.Box.ID)]++
		}
	}
	if want := map[string]int{"limit of box-1": 2, "limit of box-2": 1}; !maps.Equal(refused, want) {
		t.Errorf("records of refusals: %v, want %v", refused, want)
	}
}

// TestGate_BytesAreLimited: a transfer is slowed down to the limit, in each direction.
func TestGate_BytesAreLimited(t *testing.T) {
	const size = 1 << 20
	for _, tt := range []struct {
		name           string
		sent, received int // by the box
	}{{"download", 0, size}, {"upload", size, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			arrived := make(chan int64, 1)
			server := listen(t, func(c net.Conn) {
				_, _ = c.Write(make([]byte, tt.received)) // the box counts what it gets
				n, _ := io.Copy(io.Discard, c)            // until the box has sent everything
				arrived <- n
			})
			w := newWorld(t, Options{MaxBytesPerMinute: 60 * size}, []string{"tcp://a.example.org:7"}, "a.example.org="+server)
			w.n.bytes.AllowN(time.Now(), w.n.bytes.Burst()) // no burst
			c := connect(t, w.tcpDoor("a.example.org", 7)).(*net.TCPConn)
			start := time.Now()
			if _, err := c.Write(make([]byte, tt.sent)); err != nil {
				t.Fatal(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, c)
			took := time.Since(start)
			if got := <-arrived; err != nil || n != int64(tt.received) || got != int64(tt.sent) || took < time.Second/2 {
				t.Errorf("the server got %d bytes, and the box %d, in %v, %v; want %d and %d in 1 s", got, n, took, err, tt.sent, tt.received)
			}
		})
	}
}

// TestGate_NotesWhatTheProgramDoesNotSee: a transfer that a limit slows down, and one that a
// change of the policy cuts, which look like faults of the network.
func TestGate_NotesWhatTheProgramDoesNotSee(t *testing.T) {
	w := newWorld(t, Options{MaxBytesPerMinute: 30 << 20}, []string{"tcp://a.example.org:7"})
	near, far := net.Pipe()
	defer near.Close()
	f, r := w.n.newFlow(t.Context(), far, target{protocol.DoorTCP, "a.example.org", 7}, policy.Verdict{Kind: policy.Raw}, netip.MustParseAddr("198.51.100.80"), time.Now())
	if r != nil {
		t.Fatal(r)
	}
	defer f.Close()
	f.noteSlow(slowNote / 2)
	if notes := w.n.Take(); len(notes) > 0 {
		t.Errorf("after a short wait: %+v", notes)
	}
	f.noteSlow(slowNote)
	f.noteSlow(slowNote)
	notes := w.n.Take()
	if len(notes) != 1 || notes[0].Reason != string(Slowed) || notes[0].Count != 1 || notes[0].Host != "a.example.org" || !strings.Contains(notes[0].Text, "30 MB a minute") {
		t.Errorf("after long waits: %+v, want one note", notes)
	}
	w.allow("b.example.org")
	w.g.Reevaluate()
	notes = w.n.Take()
	if len(notes) != 1 || notes[0].Reason != string(Cut) || notes[0].Host != "a.example.org" || !strings.Contains(notes[0].Text, "does not allow it any more") {
		t.Errorf("after the change of the policy: %+v, want one note", notes)
	}
}

// TestGate_BytesAreByOwner: the boxes of an owner share a limit of bytes, and another owner's
// box has its own.
func TestGate_BytesAreByOwner(t *testing.T) {
	const size = 1 << 20
	server := listen(t, func(c net.Conn) { _, _ = c.Write(make([]byte, size)) })
	w := newWorld(t, Options{MaxBytesPerMinute: 30 * size}, []string{"tcp://a.example.org:7"}, "a.example.org="+server)
	d := protocol.Dial{Door: protocol.DoorTCP, Name: "a.example.org", Port: 7}
	w.n.owner.bytes.AllowN(time.Now(), w.n.owner.bytes.Burst()) // as the first box does
	w.n.owner.bytes.SetLimit(1)
	second := w.g.Open(Box{Owner: "alice", ID: "box-2"})
	if n, err := io.Copy(io.Discard, connect(t, w.doorOf(second, d))); n > 0 {
		t.Errorf("another box of the owner got %d bytes, %v; want none", n, err)
	}
	until(t, "the connection has ended", func() bool { return w.g.Stats().Open == 0 })
	if st := w.g.Stats(); st.Connections[Limited] != 1 || st.Connections[Refused] != 0 || st.Refusals[Limit] != 0 {
		t.Errorf("connections by outcome: %+v, refusals: %+v; want one connection that reached a limit", st.Connections, st.Refusals)
	}
	w.wantOutcomes(t, "a.example.org limit")
	if why := w.recorded()[0].Reason; why != Limit {
		t.Errorf("the record of the connection has the reason %q, want %q", why, Limit)
	}
	if notes := second.Take(); len(notes) != 1 || notes[0].Reason != string(Limit) || notes[0].Host != "a.example.org" || notes[0].Port != 7 {
		t.Errorf("notes: %+v, want one about the limit", notes)
	}
	other := w.g.Open(Box{Owner: "bob", ID: "box-3"})
	if n, err := io.Copy(io.Discard, connect(t, w.doorOf(other, d))); err != nil || n != size {
		t.Errorf("the box of another owner got %d bytes, %v; want %d", n, err, size)
	}
}

// TestGate_CloseWithSlowGuest: a guest that reads nothing and a server that says nothing
// do not delay Close.
func TestGate_CloseWithSlowGuest(t *testing.T) {
	endless := listen(t, func(c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, chunk)); err != nil {
				return
			}
		}
	})
	silent := web(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	w := newWorld(t, Options{}, []string{"tcp://a.example.org:7", "b.example.org"}, "a.example.org="+endless, "b.example.org="+silent)
	connect(t, w.tcpDoor("a.example.org", 7))
	fmt.Fprint(connect(t, w.httpDoor()), "GET http://b.example.org/ HTTP/1.1\r\nHost: b.example.org\r\n\r\n")
	connect(t, w.httpDoor())
	connect(t, w.door(protocol.Dial{Door: protocol.DoorSOCKS}))
	connect(t, w.tcpDoor("b.example.org", 443))
	until(t, "five connections are served", func() bool { return w.g.Stats().Open == 5 && w.g.Stats().Received > chunk })
	closed := make(chan error, 1)
	go func() { closed <- w.n.Close() }()
	select {
	case err := <-closed:
		if err != nil || w.g.Stats().Open != 0 {
			t.Errorf("Close: %v, %d connections", err, w.g.Stats().Open)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close takes more than 10 s")
	}
	near, far := net.Pipe()
	defer near.Close()
	if err := w.n.Serve(t.Context(), protocol.Dial{Door: protocol.DoorHTTP}, far); !errors.Is(err, ErrClosed) {
		t.Errorf("Serve after Close: %v", err)
	}
}

// TestServe_EndsWithSilentServer: a connection ends with its program, its link or its
// network, even if the server neither reads nor writes, also after the program has closed
// its half of the stream.
func TestServe_EndsWithSilentServer(t *testing.T) {
	arrived, release := make(chan struct{}, 3), make(chan struct{})
	unread := listen(t, func(net.Conn) {
		arrived <- struct{}{}
		<-release
	})
	silent := listen(t, func(c net.Conn) {
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, c) // until the program has closed its half
		arrived <- struct{}{}
		<-release
	})
	t.Cleanup(func() { close(release) }) // before listen's
	for _, tt := range []struct {
		name, server string
		start        func(guest *net.TCPConn) // what the program does
	}{
		{"half-closed", silent, func(guest *net.TCPConn) {
			_, _ = guest.Write([]byte("hello"))
			_ = guest.CloseWrite()
			<-arrived
		}},
		{"a server that does not read", unread, func(guest *net.TCPConn) {
			// Until the buffers of the path are full.
			for {
				_ = guest.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
				if _, err := guest.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}},
	} {
		for _, how := range []string{"context", "Close"} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				w := newWorld(t, Options{}, []string{"tcp://a.example.org:7"}, "a.example.org="+tt.server)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				near, far := pair(t)
				served := make(chan error, 1)
				go func() {
					served <- w.n.Serve(ctx, protocol.Dial{Door: protocol.DoorTCP, Name: "a.example.org", Port: 7}, far)
				}()
				<-arrived
				tt.start(near)
				if how == "context" {
					cancel()
				} else {
					go func() { _ = w.n.Close() }() // it returns no error; the one below waits
				}
				select {
				case err := <-served:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(5 * time.Second):
					w.n.mu.Lock()
					for f := range w.n.flows {
						f.Conn.Close() // so that the test ends
					}
					w.n.mu.Unlock()
					t.Fatal("the connection does not end")
				}
				w.n.Close()
				if r := w.recorded(); len(r) != 1 || r[0].Outcome != OK {
					t.Errorf("records %+v", r)
				}
			})
		}
	}
}

// TestAudit_RefusedNamesCarryNoData: a program cannot write data of its choice into the
// audit log, neither by names nor by their number.
func TestAudit_RefusedNamesCarryNoData(t *testing.T) {
	w := newWorld(t, Options{}, []string{"good.example.org"})
	door := w.httpDoor()
	for i := range 20 {
		say(t, door, fmt.Sprintf("CONNECT secret%d.data.evil.co.uk:443 HTTP/1.1\r\nHost: x\r\n\r\n", i))
		w.n.Lookup(t.Context(), fmt.Sprintf("secret%d.data.evil.co.uk", i))
	}
	records := w.recorded()
	if len(records) == 0 || len(records) > refusalBurst+2 {
		t.Errorf("%d records of 40 refusals", len(records))
	}
	for _, r := range records {
		if r.Host != "" || r.Site != "evil.co.uk" || len(r.Hash) != 8 || r.Outcome != Refused || r.Reason != policy.NoRule {
			t.Errorf("record %+v", r)
		}
	}
	if notes := w.n.Take(); len(notes) != 40 {
		t.Errorf("%d notes", len(notes))
	}
}

// fakeInterceptor answers over TLS itself, after it has connected to the server.
type fakeInterceptor struct{ config *tls.Config }

func (fakeInterceptor) Wants(b Box, host string) bool {
	return b.Owner == "alice" && host == "api.example.org"
}

func (fakeInterceptor) Plain(Box, string, *http.Request) []string { return nil }

func (fakeInterceptor) Settings(Box) (map[string]string, string) {
	return map[string]string{"TOKEN": "placeholder"}, "PEM"
}

func (i fakeInterceptor) Serve(ctx context.Context, _ Box, host string, port uint16, c net.Conn, dial func(context.Context) (net.Conn, error), _ func(policy.Reason, string)) error {
	up, err := dial(ctx)
	if err != nil {
		return err
	}
	defer up.Close()
	down := tls.Server(c, i.config)
	defer down.Close()
	fmt.Fprintf(down, "intercepted %s:%d\n", host, port)
	return nil
}

func TestGate_Intercepts(t *testing.T) {
	ca, own := egresstest.NewCA(t), egresstest.NewCA(t)
	server := secure(t, ca, greet, "api.example.org", "www.example.org")
	w := newWorld(t, Options{Intercept: fakeInterceptor{own.Config("api.example.org")}, Authorities: "+ours"}, []string{"*.example.org"}, "api.example.org="+server, "www.example.org="+server)
	for _, tt := range []struct {
		name string
		ca   *egresstest.CA
		want string
	}{{"api.example.org", own, "intercepted api.example.org:443\n"}, {"www.example.org", ca, ""}} {
		c := tls.Client(connect(t, w.tcpDoor(tt.name, 443)), &tls.Config{ServerName: tt.name, RootCAs: tt.ca.Pool})
		if err := c.Handshake(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if tt.want != "" {
			if got, err := io.ReadAll(c); err != nil || string(got) != tt.want {
				t.Errorf("%s: %q, %v", tt.name, got, err)
			}
		}
	}
	if s := w.n.Settings(); s.Env["TOKEN"] != "placeholder" || s.CA != "PEM+ours" {
		t.Errorf("settings %+v", s)
	}
}

// TestGate_WebSocket: an upgrade through the proxy passes both streams.
func TestGate_WebSocket(t *testing.T) {
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			t.Errorf("headers %v", r.Header)
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(c, rw) // until the client leaves
	})
	w := newWorld(t, Options{}, []string{"ws.example.org"}, "ws.example.org="+server)
	c := connect(t, w.httpDoor())
	fmt.Fprint(c, "GET http://ws.example.org/ HTTP/1.1\r\nHost: ws.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
	if head, err := readHead(c); err != nil || !strings.Contains(head, " 101 ") {
		t.Fatalf("%q, %v", head, err)
	}
	for range 3 {
		fmt.Fprint(c, "frame")
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "frame" {
			t.Fatalf("%q, %v", b, err)
		}
	}
}

// A pin of one port makes the name known, whichever port the policy lists first.
func TestLookup_PinOfOnePort(t *testing.T) {
	for _, port := range []string{"80", "443"} {
		w := newWorld(t, Options{Resolver: noNames{}}, []string{"api.test.example"}, "api.test.example:"+port+"=127.0.0.1:1")
		if res := w.n.Lookup(t.Context(), "api.test.example"); res.Status != protocol.LookupOK {
			t.Errorf("with a pin of port %s: %+v, want status ok", port, res)
		}
	}
}

// noNames is a resolver that knows no name.
type noNames struct{}

func (noNames) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
}

// TestServe_OpaqueURL: a URL that names another host without being absolute is not forwarded: the server
// would believe it rather than the header Host.
func TestServe_OpaqueURL(t *testing.T) {
	server := web(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the server got %q for %q", r.RequestURI, r.Host)
	})
	w := newWorld(t, Options{}, []string{"http://good.example.org"}, "good.example.org:80="+server)
	request := "GET http:http://evil.example.net/steal HTTP/1.1\r\nHost: good.example.org\r\nConnection: close\r\n\r\n"
	for door, want := range map[string]string{w.tcpDoor("good.example.org", 80): "HTTP/1.1 403 ", w.httpDoor(): "HTTP/1.1 400 "} {
		if got := say(t, door, request); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestServe_UpgradeWithBody: a request with a body asks for no upgrade.
func TestServe_UpgradeWithBody(t *testing.T) {
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			t.Errorf("the server is asked for the upgrade %q", r.Header.Get("Upgrade"))
		}
		io.Copy(w, r.Body)
	})
	w := newWorld(t, Options{}, []string{"good.example.org"}, "good.example.org:80="+server)
	got := say(t, w.tcpDoor("good.example.org", 80), "POST / HTTP/1.1\r\nHost: good.example.org\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nContent-Length: 4\r\n\r\nbody")
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "body") {
		t.Errorf("got %q", got)
	}
}

// TestServe_InformationalResponses: those of the server do not reach the program, which still gets 100 Continue
// before it sends a body. Both would be written at the same time.
func TestServe_InformationalResponses(t *testing.T) {
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		io.Copy(w, r.Body)
	})
	w := newWorld(t, Options{}, []string{"good.example.org"}, "good.example.org:80="+server)
	got := say(t, w.tcpDoor("good.example.org", 80), "POST / HTTP/1.1\r\nHost: good.example.org\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody")
	if !strings.HasPrefix(got, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ") || !strings.HasSuffix(got, "body") || strings.Contains(got, "Link") {
		t.Errorf("got %q", got)
	}
}

// TestNetwork_LastConnectionIsNoted: the agent resets connections beyond the limit of a box, of
// which the host learns nothing, so that the note comes with the last one that it may have.
func TestNetwork_LastConnectionIsNoted(t *testing.T) {
	echo := listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w := newWorld(t, Options{}, []string{"tcp://a.example.org:7"}, "a.example.org="+echo)
	door := w.door(protocol.Dial{Door: protocol.DoorTCP, Name: "a.example.org", Port: 7})
	for i := range w.g.maxBox {
		if notes := w.n.Take(); len(notes) != 0 {
			t.Fatalf("with %d connections: %+v", i, notes)
		}
		c := connect(t, door)
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	notes := w.n.Take()
	if len(notes) != 1 || notes[0].Reason != string(Limit) || !strings.Contains(notes[0].Text, "while this box has 64") {
		t.Errorf("with the last connection: %+v", notes)
	}
}
