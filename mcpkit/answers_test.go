package mcpkit

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

func TestMessageLimit_Socket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http")
	startOn(t, path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.Repeat(" ", 2<<20))
	}))
	s := session(t, manager(t, Options{Limits: Limits{Message: 1 << 20}}, endpoint("srv", "unix://"+path)), "srv")
	if _, err := s.Initialize(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestMessageLimit_Program(t *testing.T) {
	s := session(t, manager(t, Options{Limits: Limits{Message: 1 << 20}}, program("srv", "huge")), "srv")
	if _, err := call(t, s, "any", nil); err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}

// An answer over the limit fails its request, and no other request of the connection.
func TestMessageLimit_OtherRequests(t *testing.T) {
	nothingLeft(t)
	arrived, sent := make(chan struct{}), make(chan struct{})
	large := fmt.Sprintf(`{"content":[{"type":"text","text":"%s"}]}`, strings.Repeat("x", 3<<20))
	over := func(answer func(w http.ResponseWriter, m message)) *mcpjson.Server {
		url := hostileHTTP(t, func(w http.ResponseWriter, _ *http.Request, m message) bool {
			switch {
			case m.Method == "tools/call" && m.Params.Name == "first":
				arrived <- struct{}{}
				<-sent
			case m.Method == "tools/call":
				answer(w, m)
				return true
			}
			return false
		})
		return &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)}
	}
	for name, def := range map[string]*mcpjson.Server{
		"program": program("srv", "large"),
		"JSON":    over(func(w http.ResponseWriter, m message) { reply(w, m, large) }),
		"events": over(func(w http.ResponseWriter, m message) {
			_ = events(w)("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, large)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			var trace closer
			m := manager(t, Options{Era: Legacy, Limits: Limits{Message: 1 << 20, Request: patience}, Trace: func(string) io.WriteCloser { return &trace }}, def)
			s := session(t, m, "srv")
			first := make(chan error, 1)
			go func() {
				_, err := call(t, s, "first", nil)
				first <- err
			}()
			if name == "program" {
				until(t, "the first call is sent", func() bool {
					trace.mu.Lock()
					defer trace.mu.Unlock()
					return strings.Contains(trace.b.String(), `"tools/call"`)
				})
			} else {
				<-arrived
			}
			_, err := call(t, s, "second", nil)
			if _, ok := errors.AsType[*outbound.TooLargeError](err); !ok || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
				t.Errorf("the large answer: %v", err)
			}
			if name != "program" {
				sent <- struct{}{}
			}
			if err := <-first; err != nil {
				t.Errorf("the other call: %v", err)
			}
			trace.mu.Lock()
			if n := strings.Count(trace.b.String(), `"method":"initialize"`); n != 1 {
				t.Errorf("%d connections", n)
			}
			trace.mu.Unlock()
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Errors tell whether the server may have received the request.
func TestErrNotSent(t *testing.T) {
	s := session(t, manager(t, Options{}, program("srv", "good")), "srv")
	if _, err := call(t, s, "crash", nil); err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("a call that ended the server: %v", err)
	}
	gone := &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportStdio, Command: mcpjson.Literal("/nonexistent/server"), Dir: os.TempDir()}
	if _, err := call(t, session(t, manager(t, Options{}, gone), "srv"), "any", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("a server that does not start: %v", err)
	}
	var up atomic.Bool
	up.Store(true)
	url := hostileHTTP(t, func(http.ResponseWriter, *http.Request, message) bool {
		if !up.Load() {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	s = session(t, manager(t, Options{}, endpoint("srv", url)), "srv")
	wantCall(t, s, "any", nil, "good")
	up.Store(false)
	if _, err := call(t, s, "any", nil); err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("a connection that breaks before the answer: %v", err)
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	if _, err := call(t, session(t, manager(t, Options{}, endpoint("srv", closed.URL)), "srv"), "any", nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("a server over HTTP that is down: %v", err)
	}
}
