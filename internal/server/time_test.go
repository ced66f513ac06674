package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A pipes is a listener whose connections are in memory, so that their time can be
// that of a test.
type pipes struct {
	conns chan net.Conn
	end   sync.Once
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.end.Do(func() { close(p.ended) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serveInMemory starts a server in a bubble; dial connects to it.
func serveInMemory(t *testing.T, opts Options) (s *Server, dial func() net.Conn) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	s = New(opts)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, p) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, func() net.Conn {
		here, there := net.Pipe()
		p.conns <- there
		t.Cleanup(func() { here.Close() })
		return here
	}
}

// say writes a request, of which the body may be missing yet.
func say(t *testing.T, c net.Conn, method, path string, length int, body string) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, length, body); err != nil {
		t.Fatal(err)
	}
}

// hear reads an answer.
func hear(in *bufio.Reader) (*http.Response, string, error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

// TestConnection_IdleIsClosed: an idle connection is closed after a while.
func TestConnection_IdleIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := serveInMemory(t, Options{})
		c := dial()
		in := bufio.NewReader(c)
		for range 2 {
			say(t, c, "GET", "/health", 0, "")
			if res, body, err := hear(in); err != nil || res.StatusCode != 200 {
				t.Fatalf("got %v, %s, %v", res, body, err)
			}
			time.Sleep(idleLimit - time.Second)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Hour))
		begin := time.Now()
		if _, err := in.ReadByte(); err != io.EOF || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v, want the end after a second", err, time.Since(begin))
		}
	})
}

// TestBody_Endless: a client that sends a body without end gets a refusal and loses its
// connection.
func TestBody_Endless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := serveInMemory(t, Options{Limits: Limits{Body: 1 << 10}})
		c := dial()
		begin := time.Now()
		say(t, c, "POST", "/mcp", 1<<20, "{")
		var sending sync.WaitGroup
		sending.Go(func() {
			for {
				time.Sleep(time.Second)
				if _, err := io.WriteString(c, " "); err != nil {
					return
				}
			}
		})
		_ = c.SetReadDeadline(begin.Add(time.Hour))
		in := bufio.NewReader(c)
		res, body, err := hear(in)
		if err != nil || res.StatusCode != 413 || parse(t, body).Error == nil || time.Since(begin) != refusedLimit {
			t.Errorf("got %v, %s, %v after %v", res, body, err, time.Since(begin))
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("afterwards: %v", err)
		}
		sending.Wait()
	})
}

// TestBody_AnnouncedButNotSent: a client that announces a body and does not send it gets
// an answer and loses its connection.
func TestBody_AnnouncedButNotSent(t *testing.T) {
	for _, c := range []struct {
		name, method, path string
		status             int
	}{
		{"health", "GET", "/health", 200},
		{"the status", "GET", "/mcp", 200},
		{"no such path", "POST", "/nowhere", 404},
		{"no such method", "PUT", "/mcp", 405},
		{"no session", "DELETE", "/mcp", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, dial := serveInMemory(t, Options{})
				conn := dial()
				begin := time.Now()
				say(t, conn, c.method, c.path, 100, "{")
				_ = conn.SetReadDeadline(begin.Add(time.Hour))
				in := bufio.NewReader(conn)
				res, body, err := hear(in)
				if err != nil || res.StatusCode != c.status || time.Since(begin) != refusedLimit {
					t.Fatalf("got %v, %s, %v after %v", res, body, err, time.Since(begin))
				}
				if _, err := in.ReadByte(); err != io.EOF {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// TestShutdown_CancelledCallsAnswer: calls that the shutdown cancels have a short time to
// answer.
func TestShutdown_CancelledCallsAnswer(t *testing.T) {
	const grace = 10 * time.Second
	tool := func(end func()) Options {
		deaf := extra("deaf", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			end()
			return nil, errors.New("last words")
		})
		deaf.Direct = true
		return Options{Extend: Extension{Tools: []Tool{deaf}}}
	}
	stop := func(t *testing.T, s *Server, dial func() net.Conn) (took time.Duration, answer string) {
		t.Helper()
		c := dial()
		body := toolCall(1, "deaf", "{}")
		say(t, c, "POST", "/mcp", len(body), body)
		heard := make(chan string)
		go func() {
			_, body, _ := hear(bufio.NewReader(c)) // there may be none
			heard <- body
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), grace)
		defer cancel()
		begin := time.Now()
		stopped := make(chan time.Duration, 1)
		go func() {
			_ = s.Shutdown(ctx) // what is cut off is no error
			stopped <- time.Since(begin)
		}()
		select {
		case took = <-stopped:
		case <-time.After(time.Hour):
			t.Fatal("the stop waits for a call that does not end")
		}
		return took, <-heard
	}
	t.Run("used", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, dial := serveInMemory(t, tool(func() { time.Sleep(afterGrace / 2) }))
			took, answer := stop(t, s, dial)
			if !strings.Contains(answer, "shutting down") {
				t.Errorf("got %q", answer)
			}
			if took < grace+afterGrace/2 || took > grace+afterGrace {
				t.Errorf("the stop took %v", took)
			}
		})
	})
	t.Run("over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			defer close(release)
			s, dial := serveInMemory(t, tool(func() { <-release }))
			took, answer := stop(t, s, dial)
			if answer != "" || took != grace+afterGrace {
				t.Errorf("the stop took %v; got %q", took, answer)
			}
		})
	})
}

// TestStdio_ReaderGone: a client that does not read its answer, of any kind, loses its
// connection.
func TestStdio_ReaderGone(t *testing.T) {
	now := extra("now", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{}, nil
	})
	now.Direct = true
	for _, c := range []struct{ name, method, path, body string }{
		{"health", "GET", "/health", ""},
		{"the status", "GET", "/mcp", ""},
		{"a refusal", "GET", "/nowhere", ""},
		{"a body that is no message", "POST", "/mcp", "{"},
		{"a notification", "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`},
		{"a direct call", "POST", "/mcp", toolCall(1, "now", "{}")},
		{"a request", "POST", "/mcp", ping},
		{"a session", "POST", "/mcp", initBody},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dial := serveInMemory(t, Options{Extend: Extension{Tools: []Tool{now}}})
				say(t, dial(), c.method, c.path, len(c.body), c.body)
				time.Sleep(s.opts.Limits.Write - time.Second)
				if openConnections(s) != 1 {
					t.Error("the connection is gone before its time")
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if openConnections(s) != 0 {
					t.Error("the connection is still there")
				}
			})
		})
	}
}
