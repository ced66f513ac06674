package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

func TestLoopback_AcceptsOnlyTheAwaitedResponse(t *testing.T) {
	l, err := Listen("")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := url.Parse(l.RedirectURL())
	if err != nil || u.Hostname() != "127.0.0.1" || u.Path != "/callback" {
		t.Fatalf("redirect %q, %v", l.RedirectURL(), err)
	}
	get := func(method, target, host string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, target, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	good := l.RedirectURL() + "?code=c&state=s&iss=i"
	if status, _ := get("GET", good, ""); status != http.StatusBadRequest {
		t.Errorf("a response that was not awaited: status %d", status)
	}
	found := make(chan AuthorizationResponse)
	waited, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		a, err := l.Await(waited, "https://as.example.com/authorize?state=s")
		if err != nil {
			t.Error(err)
		}
		found <- a
	}()
	polltest.Until(t, 10*time.Second, "Await waits", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.found != nil
	})
	for name, c := range map[string]struct {
		method, target, host string
		want                 int
	}{
		"another state":       {"GET", l.RedirectURL() + "?code=c&state=x", "", 400},
		"no state":            {"GET", l.RedirectURL() + "?code=c", "", 400},
		"nothing":             {"GET", l.RedirectURL(), "", 400},
		"another path":        {"GET", strings.Replace(good, "/callback", "/", 1), "", 404},
		"another method":      {"POST", good, "", 404},
		"a name of the world": {"GET", good, "evil.example.com:80", 404},
	} {
		if status, body := get(c.method, c.target, c.host); status != c.want || strings.Contains(body, "go back") {
			t.Errorf("%s: %d %q, want %d", name, status, body, c.want)
		}
	}
	if status, body := get("GET", good, ""); status != http.StatusOK || !strings.Contains(body, "close this page") {
		t.Errorf("the answer: %d %q", status, body)
	}
	if a := <-found; a != (AuthorizationResponse{Code: "c", State: "s", Issuer: "i"}) {
		t.Errorf("got %+v", a)
	}
	if status, _ := get("GET", good, ""); status != http.StatusBadRequest {
		t.Errorf("the same again: %d", status)
	}
	gone, stop := context.WithCancelCause(t.Context())
	stop(errors.New("she has left"))
	if _, err := l.Await(gone, "https://as.example.com/?state=s"); err == nil || !strings.Contains(err.Error(), "she has left") {
		t.Errorf("got %v", err)
	}
}

func TestListen_Addresses(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := ln.Addr().String()
	if l, err := Listen("http://" + taken + "/x"); err == nil {
		l.Close()
		t.Error("listens on a port that another listener has")
	}
	ln.Close()
	l, err := Listen("http://" + taken + "/back/here")
	if err != nil {
		t.Fatal(err)
	}
	if got := l.RedirectURL(); got != "http://"+taken+"/back/here" {
		t.Errorf("redirect %q", got)
	}
	l.Close()
	for _, bad := range []string{"https://127.0.0.1/", "http://192.0.2.1/", "http://example.com/", "http://127.0.0.1/?x", "http://0.0.0.0/", ":"} {
		if l, err := Listen(bad); err == nil {
			l.Close()
			t.Errorf("listens at %q", bad)
		}
	}
}

// Clients that connect and send nothing, or too much, do not keep the browser's redirect
// out, and hold a bounded number of connections.
func TestLoopback_BoundsConnections(t *testing.T) {
	l, err := Listen("")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	found := make(chan AuthorizationResponse, 1)
	go func() {
		if a, err := l.Await(t.Context(), "https://as.example.com/authorize?state=s"); err == nil {
			found <- a
		}
	}()
	u, err := url.Parse(l.RedirectURL())
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	// closed reports whether the server closes a connection before it times out.
	closed := func(conn net.Conn) bool {
		conn.SetReadDeadline(time.Now().Add(pageTimeout / 2))
		_, err := io.ReadAll(conn)
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	var idle []net.Conn
	for range 3 * maxPageConns {
		conn := dial()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\n", u.Path)
		idle = append(idle, conn)
	}
	for i, conn := range idle[:2*maxPageConns] {
		if !closed(conn) {
			t.Fatalf("of %d connections without a complete request, number %d is still open", len(idle), i+1)
		}
	}
	flood := dial()
	fmt.Fprintf(flood, "GET %s HTTP/1.1\r\nHost: %s\r\nX: ", u.Path, u.Host)
	flood.SetWriteDeadline(time.Now().Add(pageTimeout / 2))
	if n, err := io.Copy(flood, io.LimitReader(zeros{}, 64<<20)); err == nil {
		t.Errorf("the server read a header of %d bytes", n)
	}
	polltest.Until(t, pageTimeout/2, "the redirect is delivered", func() bool {
		res, err := http.Get(l.RedirectURL() + "?code=c&state=s")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	if a := <-found; a.Code != "c" {
		t.Errorf("got %+v", a)
	}
	again := dial()
	fmt.Fprintf(again, "GET /other HTTP/1.1\r\nHost: %s\r\n\r\n", u.Host)
	if !closed(again) {
		t.Error("the server keeps the connection of a refused request open")
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}
