package e2e

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// relay passes connections on to a server, so that a client may keep one address
// over a restart, and have its connections cut.
type relay struct {
	url string // as of the server's endpoint

	mu      sync.Mutex
	backend string                // guarded by mu: host and port
	conns   map[net.Conn]struct{} // guarded by mu
}

// steady is a server that keeps its address over restarts: that of a relay. Its
// own is that of its process.
type steady struct {
	*process
	outer *testing.T // of the test that started it, which outlives those inside
	front *relay
	dir   string
	env   []string
}

// launchSteady is launch with a relay before it.
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

// newRelay starts a relay, as yet to nowhere; it ends with the test.
func newRelay(t *testing.T) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "http://" + ln.Addr().String() + "/mcp", conns: make(map[net.Conn]struct{})}
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

// to sends connections that come from now on to another server.
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

// cut ends all connections as a broken line does for the server and a reset for
// the client.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		conn.Close()
	}
}

// pass carries bytes both ways until either side ends.
func (r *relay) pass(client net.Conn) {
	r.mu.Lock()
	backend := r.backend
	r.conns[client] = struct{}{}
	r.mu.Unlock()
	server, err := net.Dial("tcp", backend)
	if err == nil {
		r.mu.Lock()
		r.conns[server] = struct{}{}
		r.mu.Unlock()
		back := make(chan struct{})
		go func() {
			defer close(back)
			io.Copy(client, server)
			client.Close()
		}()
		io.Copy(server, client)
		server.Close()
		<-back
	}
	client.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, client)
	delete(r.conns, server)
}
