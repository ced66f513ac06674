package e2e

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// relay forwards connections to a server. A client keeps one address over a restart, and
// tests can cut its connections.
type relay struct {
	url string // as of the server's endpoint

	mu      sync.Mutex
	backend string         // guarded by mu: host and port
	links   map[*link]bool // guarded by mu: whether the client is lost
}

// link is a forwarded connection.
type link struct{ client, server net.Conn }

// steady is a server behind a relay, whose address stays the same over restarts.
type steady struct {
	*process
	outer *testing.T // of the test that started it, which outlives those inside
	front *relay
	dir   string
	env   []string
}

// launchSteady is launch with a relay in front of the server.
func launchSteady(t *testing.T, dir string, env ...string) *steady {
	t.Helper()
	s := &steady{process: launch(t, dir, env...), outer: t, dir: dir, env: env}
	s.front = newRelay(t)
	s.front.to(t, s.process)
	return s
}

// restart stops the server, which must end cleanly, and starts it again.
func (s *steady) restart() {
	s.outer.Helper()
	s.stop(s.outer)
	s.process = launch(s.outer, s.dir, s.env...)
	s.front.to(s.outer, s.process)
}

// newRelay starts a relay without a target. It ends with the test.
func newRelay(t *testing.T) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "http://" + ln.Addr().String() + "/mcp", links: make(map[*link]bool)}
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			ended.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		r.cut()
		ended.Wait()
	})
	return r
}

// to forwards new connections to another server.
func (r *relay) to(t *testing.T, p *process) {
	t.Helper()
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backend = u.Host
}

// cut resets all connections towards the client and closes them towards the server.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		reset(l.client)
		l.server.Close()
	}
}

// lose resets all connections towards the client only. The server does not notice, as when
// a machine moves to another network.
func (r *relay) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		r.links[l] = true
		reset(l.client)
	}
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

func (r *relay) lost(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[l]
}

// pass copies bytes both ways until either side closes.
func (r *relay) pass(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	backend := r.backend
	r.mu.Unlock()
	server, err := net.Dial("tcp", backend)
	if err != nil {
		return
	}
	l := &link{client, server}
	r.mu.Lock()
	r.links[l] = false
	r.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		io.Copy(client, server)
		client.Close()
		if r.lost(l) {
			io.Copy(io.Discard, server)
		}
	})
	io.Copy(server, client)
	if !r.lost(l) {
		server.Close()
	}
	back.Wait()
	server.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}
