package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func openConnections(s *Server) int {
	open, _ := s.connections.counts()
	return open
}

// establishedConnections returns how many connections are established.
func establishedConnections(s *Server) int {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	return s.connections.established
}

// idleConnections returns how many established connections carry no request.
func idleConnections(s *Server) int {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	n := 0
	for _, c := range s.connections.open {
		if c.place == nil && !c.idle.IsZero() {
			n++
		}
	}
	return n
}

// dialFrom opens a connection to a server from an address of this machine.
func dialFrom(tb testing.TB, from, address string) net.Conn {
	tb.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.DialContext(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// ask sends a GET and returns its answer.
func ask(c net.Conn, path string, h header) (*http.Response, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: localhost\r\n", path)
	for k, v := range h {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	if _, err := io.WriteString(c, b.String()+"\r\n"); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res, err
}

func addressOfURL(url string) string {
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	return address
}

// TestConnections_UnfinishedRequests: clients that send no token and never finish a request
// keep no other client out, neither from another address nor from the same one, whether they stop in
// the TLS handshake or in a request.
func TestConnections_UnfinishedRequests(t *testing.T) {
	certificate := selfSigned(t)
	for _, c := range []struct {
		name, attacker, good string
		tls                  bool
		sends                string // of each unfinished connection
	}{
		{"another address", "127.0.0.2", "127.0.0.1", false, "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"},
		{"the same address", "127.0.0.1", "127.0.0.1", false, "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"},
		{"refused and idle", "127.0.0.2", "127.0.0.1", false, "GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"},
		{"nothing", "127.0.0.2", "127.0.0.1", false, ""},
		{"TLS handshakes", "127.0.0.2", "127.0.0.1", true, "\x16\x03\x01\x02\x00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeople(t)
			change := p.options(func(o *Options) { o.Limits.Connections = 16 })
			var s *Server
			var address string
			open := func(from string) net.Conn { return dialFrom(t, from, address) }
			dial := open
			if c.tls {
				s, address = serveTLS(t, certificate, change)
				dial = func(from string) net.Conn {
					return tls.Client(open(from), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
				}
			} else {
				var url string
				s, url = serve(t, change)
				address = addressOfURL(url)
			}
			early := dial(c.good)
			works := func(name string, conn net.Conn, path string) {
				t.Helper()
				if res, err := ask(conn, path, p.as("monitor", "Accept", "application/json")); err != nil || res.StatusCode != 200 {
					t.Fatalf("%s: %v %v", name, res, err)
				}
			}
			works("before", early, "/mcp")
			attack := func(n int) {
				for range n {
					_, _ = io.WriteString(open(c.attacker), c.sends)
				}
			}
			attack(3 * (16 + newPlaces))
			for range 10 {
				for _, path := range []string{"/mcp", "/health"} {
					conn := dial(c.good)
					works("a new connection, "+path, conn, path)
					conn.Close()
				}
				attack(5)
				works("a connection that authenticated before", early, "/mcp")
			}
			if n := openConnections(s); n > 16+newPlaces {
				t.Errorf("%d connections are open, want at most %d", n, 16+newPlaces)
			}
			if s.Stats().Dropped == 0 {
				t.Error("no dropped connection is counted")
			}
		})
	}
}

// TestConnections_LightAddressKeepsItsOwn: the address with the most new connections makes
// room, not the one whose connection is oldest.
func TestConnections_LightAddressKeepsItsOwn(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Connections = 2 })
	address := addressOfURL(url)
	slow := dialFrom(t, "127.0.0.1", address)
	fmt.Fprint(slow, "GET /health HTTP/1.1\r\n")
	for range 4 * (2 + newPlaces) {
		dialFrom(t, "127.0.0.2", address)
	}
	eventually(t, "the server has accepted all", func() bool { return s.Stats().Dropped >= 3*(2+newPlaces)+1 })
	fmt.Fprint(slow, "Host: localhost\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(slow), nil); err != nil || res.StatusCode != 200 {
		t.Errorf("a slow client of another address: %v %v", res, err)
	}
}

// TestConnections_Limit: established connections are bounded, an idle one makes room, and
// health is served in any case.
func TestConnections_Limit(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Connections = 2 })
	var elapsed atomic.Int64
	start := time.Now()
	s.connections.mu.Lock()
	s.connections.now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	s.connections.mu.Unlock()
	later := func(n int) { // once n connections are idle
		t.Helper()
		eventually(t, "the connections are idle", func() bool { return idleConnections(s) == n })
		elapsed.Add(int64(restBeforeReclaim - 1))
	}
	address := addressOfURL(url)
	dial := func() net.Conn { return dialFrom(t, "127.0.0.1", address) }
	want := func(name string, c net.Conn, path string, status int) *http.Response {
		t.Helper()
		res, err := ask(c, path, nil)
		if err != nil || res.StatusCode != status {
			t.Fatalf("%s: %v %v, want %d", name, res, err, status)
		}
		return res
	}
	first, second := dial(), dial()
	want("the first", first, "/mcp", 200)
	want("the second", second, "/mcp", 200)
	if res := want("the third", dial(), "/mcp", 503); res.Header.Get("Retry-After") == "" || !res.Close {
		t.Errorf("the third: got %v, want Retry-After and the end of the connection", res.Header)
	}
	want("health", dial(), "/health", 200)
	later(2)
	want("the first again", first, "/mcp", 200)
	later(2)
	eventually(t, "an idle connection makes room", func() bool {
		res, err := ask(dial(), "/mcp", nil)
		return err == nil && res.StatusCode == 200
	})
	if _, err := second.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection that was idle longest: %v, want its end", err)
	}
	if n := openConnections(s); n > 2+newPlaces {
		t.Errorf("%d connections are open", n)
	}
}

// TestConnections_PlacesOfNewOnes: connections without a valid request get the places that established
// ones leave free, and 32 more. None closes before these are taken, so that clients which are slow to
// send their first request are served.
func TestConnections_PlacesOfNewOnes(t *testing.T) {
	const limit, more = 4, 32
	s, url := serve(t, func(o *Options) { o.Limits.Connections = limit })
	dial := func() net.Conn { return dialFrom(t, "127.0.0.1", addressOfURL(url)) }
	works := func(name string, c net.Conn, path string) {
		t.Helper()
		if res, err := ask(c, path, nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %v %v", name, res, err)
		}
	}
	established := dial()
	works("the established one", established, "/mcp")
	var silent []net.Conn
	opened := func(n int) (dropped int) { // once the server has accepted so many
		t.Helper()
		eventually(t, fmt.Sprint("the server accepts ", n), func() bool {
			var open int
			open, dropped = s.connections.counts()
			return open+dropped == n
		})
		return dropped
	}
	for i := range limit - 1 + more {
		silent = append(silent, dial())
		opened(2 + i) // one after the other, so that the first is the oldest
	}
	if n := opened(limit + more); n != 0 {
		t.Errorf("%d connections closed while places were free", n)
	}
	for _, c := range silent[1:] {
		works("a new connection while places are free", c, "/health")
	}
	last := dial()
	if n := opened(limit + more + 1); n != 1 {
		t.Errorf("%d connections closed for one that found no place", n)
	}
	if err := end(silent[0]); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection without a request: %v, want its end", err)
	}
	works("the connection that found no place", last, "/health")
	works("the established one again", established, "/mcp")
}

// TestConnections_OwnersWithFewerKeepTheirs: when all connections are taken, an idle one of an owner with
// more of them makes room, however long those of others have been idle.
func TestConnections_OwnersWithFewerKeepTheirs(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Connections = 4 }))
	var elapsed atomic.Int64
	start := time.Now()
	s.connections.mu.Lock()
	s.connections.now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	s.connections.mu.Unlock()
	open := func(who string) (net.Conn, error) {
		c := dialFrom(t, "127.0.0.1", addressOfURL(url))
		res, err := ask(c, "/mcp", p.as(who))
		if err == nil && res.StatusCode != 405 { // served: such a GET is none of MCP
			err = errors.New(res.Status)
		}
		return c, err
	}
	all := make([]net.Conn, 4) // bob's is idle longest
	for i, who := range []string{"bob", "alice", "alice", "carol"} {
		var err error
		if all[i], err = open(who); err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		eventually(t, "the connection is idle", func() bool { return idleConnections(s) == i+1 })
		elapsed.Add(int64(2 * restBeforeReclaim))
	}
	eventually(t, "another connection of carol", func() bool { _, err := open("carol"); return err == nil })
	for i, want := range []bool{false, true} { // bob's, the first of alice's
		all[i].SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := all[i].Read(make([]byte, 1)); errors.Is(err, io.EOF) != want {
			t.Errorf("connection %d: %v, want its end: %t", i, err, want)
		}
	}
}

// TestConnections_ShareOfOwner: one owner gets half of the connections.
func TestConnections_ShareOfOwner(t *testing.T) {
	p := newPeople(t)
	release, started := make(chan struct{}), make(chan struct{}, 4)
	_, url := serve(t, p.options(func(o *Options) {
		o.Limits.Connections, o.Extend.Tools = 4, slow(release, started)
	}))
	defer close(release)
	for range 2 { // in use, so that they make no room
		dialWire(t, url).post(t, p.as("alice"), toolCall(1, "slow", "{}"))
		<-started
	}
	post := func(who string) *http.Response {
		w := dialWire(t, url)
		w.post(t, p.as(who), ping)
		return w.head(t)
	}
	if res := post("alice"); res.StatusCode != 429 || !res.Close || res.Header.Get("Retry-After") == "" {
		t.Errorf("a third connection of one owner: %s %v", res.Status, res.Header)
	}
	for range 2 {
		if res := post("bob"); res.StatusCode != 200 {
			t.Errorf("another owner: %s", res.Status)
		}
	}
}

// A stoppedClock is the clock of a server's connections, which tests set.
type stoppedClock struct{ elapsed atomic.Int64 }

func stopClock(s *Server) *stoppedClock {
	c, start := &stoppedClock{}, time.Now()
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	s.connections.now = func() time.Time { return start.Add(time.Duration(c.elapsed.Load())) }
	return c
}

// pass lets so much time pass that connections which are idle may make room, once n of them are idle.
func (c *stoppedClock) pass(t *testing.T, s *Server, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " connections are idle"), func() bool { return idleConnections(s) == n })
	c.elapsed.Add(int64(2 * restBeforeReclaim))
}

// asks sends a request that is served with 405, as it is none of MCP, and returns the status.
func (p *people) asks(t *testing.T, who string, c net.Conn) int {
	t.Helper()
	res, err := ask(c, "/mcp", p.as(who))
	if err != nil {
		t.Fatalf("a request of %s: %v", who, err)
	}
	return res.StatusCode
}

// end returns the error with which a connection that sends nothing ends.
func end(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := c.Read(make([]byte, 1))
	return err
}

// TestConnections_IdleOneOfOwnerCloses: at the share of an owner, the connection of the owner that has
// been idle longest closes for a new one, and no connection of another owner, however long it was idle.
func TestConnections_IdleOneOfOwnerCloses(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Connections = 4 }))
	clock := stopClock(s)
	dial := func() net.Conn { return dialFrom(t, "127.0.0.1", addressOfURL(url)) }
	all := make([]net.Conn, 4)
	for i, who := range []string{"bob", "bob", "alice", "alice"} {
		all[i] = dial()
		if status := p.asks(t, who, all[i]); status != 405 {
			t.Fatalf("connection %d, of %s: %d, want 405", i, who, status)
		}
		clock.pass(t, s, i+1)
	}
	if status := p.asks(t, "alice", dial()); status != 405 {
		t.Errorf("a third connection of alice: %d, want 405", status)
	}
	if err := end(all[2]); !errors.Is(err, io.EOF) {
		t.Errorf("the connection of alice that was idle longest: %v, want its end", err)
	}
	for i, who := range map[int]string{0: "bob", 1: "bob", 3: "alice"} {
		if status := p.asks(t, who, all[i]); status != 405 {
			t.Errorf("connection %d, of %s: %d, want 405", i, who, status)
		}
	}
}

// TestReadToken_Connections: at most half of what an owner may have of connections is for read tokens.
// One of theirs closes for a further one if it is idle, and none of a use token.
func TestReadToken_Connections(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.Limits.Connections = 8 }))
	clock := stopClock(s) // nothing is idle for long enough until it passes
	dial := func() net.Conn { return dialFrom(t, "127.0.0.1", addressOfURL(url)) }
	var all []net.Conn
	want := func(who string, status int) {
		t.Helper()
		c := dial()
		if got := p.asks(t, who, c); got != status {
			t.Fatalf("connection %d, of %s: %d, want %d", len(all), who, got, status)
		}
		if status == 405 {
			all = append(all, c)
		}
	}
	want("alice", 405)
	want("reader", 405)
	want("reader", 405)
	want("reader", 429)
	want("alice", 405)
	want("alice", 429)
	want("bob", 405)

	clock.pass(t, s, 5)
	for _, i := range []int{2, 1} { // the first of alice's is idle longest, then the second of the reader's
		if status := p.asks(t, "reader", all[i]); status != 405 {
			t.Fatalf("connection %d again: %d, want 405", i, status)
		}
		clock.pass(t, s, 5)
	}
	want("reader", 405)
	if err := end(all[2]); !errors.Is(err, io.EOF) {
		t.Errorf("the connection of the reader that was idle longest: %v, want its end", err)
	}
	for i, who := range map[int]string{0: "alice", 1: "reader", 3: "alice", 4: "bob"} {
		if status := p.asks(t, who, all[i]); status != 405 {
			t.Errorf("connection %d, of %s: %d, want 405", i, who, status)
		}
	}
}

// serveTLS is serve with TLS. It returns the address.
func serveTLS(t *testing.T, certificate tls.Certificate, change func(*Options)) (*Server, string) {
	t.Helper()
	opts := Options{Limits: Limits{Grace: time.Second}, Log: testLog(t)}
	change(&opts)
	s := New(opts)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}}
	go func() { ended <- s.Serve(ctx, tls.NewListener(ln, config)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, ln.Addr().String()
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
