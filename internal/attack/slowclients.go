//go:build linux

package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// hold opens n connections that send text, keeps them while f runs, and returns how
// many the server has closed by then.
func (s *server) hold(ctx context.Context, n int, text string, f func()) (closed int, err error) {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", s.addr)
		if err != nil {
			closed++
			continue
		}
		conns = append(conns, c)
		c.SetDeadline(time.Now().Add(2 * time.Second))
		io.WriteString(c, text) // a closed connection is counted below
	}
	f()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, c := range conns {
		wg.Go(func() {
			c.SetDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := io.Copy(io.Discard, c)
			if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
				mu.Lock()
				closed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return closed, nil
}

func slowHeaders(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	const n, headerLimit = 60, 12 * time.Second
	closed, err := s.hold(ctx, n, "POST /mcp HTTP/1.1\r\nHost: "+s.addr+"\r\nX-Slow: ", func() {
		s.works(ctx, t, s.tokens["alice"])
		sleep(ctx, headerLimit) // a context that ended shows in the next request
		s.works(ctx, t, s.tokens["alice"])
	})
	t.check(closed >= n/2, "only %d of %d connections with unfinished headers were closed after %v", closed, n, headerLimit)
	return err
}

func slowBodies(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	text := "POST /mcp HTTP/1.1\r\nHost: " + s.addr + "\r\nAuthorization: Bearer " + s.tokens["bob"] + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: 1000000\r\n\r\n{"
	_, err = s.hold(ctx, 60, text, func() {
		for range 5 {
			s.works(ctx, t, s.tokens["alice"])
		}
	})
	return err
}

func slowReaders(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	text := strings.Repeat("POST /mcp HTTP/1.1\r\nHost: "+s.addr+"\r\nAuthorization: Bearer "+s.tokens["bob"]+"\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: "+fmt.Sprint(len(list))+"\r\n\r\n"+list, 20)
	_, err = s.hold(ctx, 20, text, func() {
		for range 5 {
			s.works(ctx, t, s.tokens["alice"])
		}
	})
	return err
}

// unfinished opens fifty connections a second that send half of a request, while an
// owner with a token calls.
func unfinished(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	flood, stop := context.WithTimeout(ctx, 6*time.Second)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				c.Close()
			}
		}()
		for {
			select {
			case <-flood.Done():
				return
			case <-tick.C:
			}
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(flood, "tcp", s.addr)
			if err == nil {
				io.WriteString(c, "POST /mcp HTTP/1.1\r\nHost: "+s.addr+"\r\n") // the server may have closed it
				conns = append(conns, c)
			}
		}
	})
	for flood.Err() == nil {
		s.works(ctx, t, s.tokens["alice"])
		res, err := s.send(ctx, request{method: "GET", path: "/health"})
		t.check(err == nil && res.status == http.StatusOK, "/health is not served: %d, %v", res.status, err)
		sleep(ctx, 200*time.Millisecond) // a context that ended shows in the next request
	}
	wg.Wait()
	return nil
}
