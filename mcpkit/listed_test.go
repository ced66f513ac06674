package mcpkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// lists returns the number of lists of tools that a trace has.
func (c *closer) lists() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Count(c.b.String(), `"method":"tools/list"`)
}

// has returns a check that the server lists a tool.
func has(name string) func(context.Context, []*mcp.Tool) error {
	return func(_ context.Context, tools []*mcp.Tool) error {
		if !slices.ContainsFunc(tools, func(t *mcp.Tool) bool { return t.Name == name }) {
			return errors.New("the server has no tool " + name)
		}
		return nil
	}
}

// Parallel calls share one list of their connection. A new connection is listed again, and so
// is one whose server reports a change.
func TestCallToolIf_ListsEachConnectionOnce(t *testing.T) {
	for _, era := range []Era{Legacy, Modern} {
		t.Run(map[Era]string{Legacy: "legacy", Modern: "modern"}[era], func(t *testing.T) {
			var trace closer
			changed := make(chan struct{}, 10)
			s := session(t, manager(t, Options{
				Era: era, Trace: func(string) io.WriteCloser { return &trace },
				Hooks: Hooks{ListChanged: func(_ context.Context, _, list string) {
					if list == "tools" {
						changed <- struct{}{}
					}
				}},
			}, program("srv", "good")), "srv")
			echo := func(want int) {
				t.Helper()
				var calls sync.WaitGroup
				for range 20 {
					calls.Go(func() {
						res, err := s.CallToolIf(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "x"}}, has("echo"))
						if err != nil || res.IsError {
							t.Errorf("call: %+v, %v", res, err)
						}
					})
				}
				calls.Wait()
				if got := trace.lists(); got != want {
					t.Errorf("%d lists, want %d", got, want)
				}
			}
			echo(1)
			if _, err := call(t, s, "crash", nil); err == nil {
				t.Fatal("the server goes on")
			}
			echo(2)
			for len(changed) > 0 { // of the reconnection
				<-changed
			}
			wantCall(t, s, "grow", nil, "grown")
			<-changed
			if _, err := s.CallToolIf(t.Context(), &mcp.CallToolParams{Name: "grown"}, has("grown")); err != nil {
				t.Errorf("after a change: %v", err)
			}
			echo(3)
		})
	}
}

// A call that check refuses is not sent.
func TestCallToolIf_Refused(t *testing.T) {
	var trace closer
	s := session(t, manager(t, Options{Trace: func(string) io.WriteCloser { return &trace }}, program("srv", "good")), "srv")
	refusal := errors.New("not this one")
	_, err := s.CallToolIf(t.Context(), &mcp.CallToolParams{Name: "echo"}, func(context.Context, []*mcp.Tool) error { return refusal })
	if !errors.Is(err, refusal) || !errors.Is(err, ErrNotSent) {
		t.Errorf("got %v", err)
	}
	trace.mu.Lock()
	defer trace.mu.Unlock()
	if strings.Contains(trace.b.String(), "tools/call") {
		t.Error("the call was sent")
	}
}

// A server that does not answer the list delays no caller that gives up, and the others only
// for the time-out of requests. None of their calls is sent.
func TestCallToolIf_NoList(t *testing.T) {
	var trace closer
	s := session(t, manager(t, Options{Era: Legacy, Limits: Limits{Request: 2 * time.Second}, Trace: func(string) io.WriteCloser { return &trace }}, program("srv", "legacy")), "srv")
	if _, err := s.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	var calls sync.WaitGroup
	for range 5 {
		calls.Go(func() {
			_, err := s.CallToolIf(t.Context(), &mcp.CallToolParams{Name: "any"}, has("any"))
			var timeout interface{ Timeout() bool }
			if !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, ErrNotSent) {
				t.Errorf("got %v", err)
			}
		})
	}
	until(t, "the list begins", func() bool { return trace.lists() == 1 })
	cancel(gone)
	if _, err := s.CallToolIf(ctx, &mcp.CallToolParams{Name: "any"}, has("any")); !errors.Is(err, gone) {
		t.Errorf("a caller that gives up: %v", err)
	}
	calls.Wait()
	// The last caller that gives up ends the list.
	ctx, cancel = context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := s.CallToolIf(ctx, &mcp.CallToolParams{Name: "any"}, has("any"))
		done <- err
	}()
	until(t, "another list begins", func() bool { return trace.lists() == 2 })
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("the only caller: %v", err)
	}
	until(t, "the server is told", func() bool {
		trace.mu.Lock()
		defer trace.mu.Unlock()
		return strings.Contains(trace.b.String(), errUnwanted.Error()) || strings.Count(trace.b.String(), "notifications/cancelled") >= 2
	})
	trace.mu.Lock()
	defer trace.mu.Unlock()
	if strings.Contains(trace.b.String(), "tools/call") {
		t.Error("a call was sent")
	}
}

// A list over HTTP that is too large fails the calls that wait for it at once, also if the
// server leaves a stream of events open. The calls are not sent.
func TestCallToolIf_TooLargeList(t *testing.T) {
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		t.Run(contentType, func(t *testing.T) {
			var called atomic.Bool
			url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
				switch m.Method {
				case "tools/call":
					called.Store(true)
				case "tools/list":
					w.Header().Set("Content-Type", contentType)
					before, after := "", ""
					if contentType != "application/json" {
						before, after = "data: ", "\n\n"
					}
					fmt.Fprintf(w, `%s{"jsonrpc":"2.0","id":%s,"result":{"tools":[],"_meta":{"x":[%s0]}}}%s`, before, m.ID, strings.Repeat("0,", 500), after)
					if after != "" {
						w.(http.Flusher).Flush()
						<-r.Context().Done()
					}
					return true
				}
				return false
			})
			def := &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)}
			s := session(t, manager(t, Options{Limits: Limits{Values: 200, Request: time.Hour, Connect: patience}}, def), "srv")
			_, err := s.CallToolIf(t.Context(), &mcp.CallToolParams{Name: "good"}, has("good"))
			if !errors.Is(err, ErrTooManyValues) || !errors.Is(err, ErrNotSent) {
				t.Errorf("got %v", err)
			}
			if called.Load() {
				t.Error("the call was sent")
			}
		})
	}
}
