package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// TestStdio_StopAnswersCallsInFlight: a stopping server answers the calls in flight.
func TestStdio_StopAnswersCallsInFlight(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s := New(Options{Extend: Extension{Alone: true, Tools: slow(release, started)}})
	inr, inw := io.Pipe()
	outr, outw := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer outw.Close()
		ended <- s.ServeStdio(ctx, inr, outw)
	}()
	fmt.Fprintln(inw, initBody)
	answers := bufio.NewScanner(outr)
	answers.Scan()
	fmt.Fprintln(inw, toolCall(1, "slow", "{}"))
	<-started
	cancel()
	release <- struct{}{}
	if !answers.Scan() || !strings.Contains(answers.Text(), "done") {
		t.Errorf("the call in flight: got %q", answers.Text())
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// leaving is the output to a client that is gone after the answer to initialize.
type leaving struct{}

func (leaving) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"serverInfo"`)) {
		return len(p), nil
	}
	return 0, syscall.EPIPE
}

// TestStdio_AnswerFindsNoReader: the server stops once an answer finds no reader, which is the cause
// for the other calls in flight: their boxes report it.
func TestStdio_AnswerFindsNoReader(t *testing.T) {
	begun, cause := make(chan struct{}), make(chan error, 1)
	s := New(Options{Extend: Extension{Alone: true, Tools: []Tool{
		extra("long", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			close(begun)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil, ctx.Err()
		}),
		extra("short", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-begun
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		}),
	}}})
	in, client := io.Pipe()
	defer client.Close()
	go fmt.Fprintf(client, "%s\n%s\n%s\n", initBody, toolCall(1, "long", "{}"), toolCall(2, "short", "{}"))
	if err := s.ServeStdio(t.Context(), in, leaving{}); err != nil {
		t.Error(err)
	}
	if err := <-cause; !errors.Is(err, tools.ErrShutdown) {
		t.Errorf("the other call was cancelled for %v, want %v", err, tools.ErrShutdown)
	}
}

// TestStdio_CallAfterAbort: a call that the SDK registers after the calls of its client were
// cancelled, since the client is gone, is cancelled for the same cause.
func TestStdio_CallAfterAbort(t *testing.T) {
	s := New(Options{})
	calls, abort := context.WithCancelCause(t.Context())
	abort(tools.ErrShutdown)
	_, err := s.register(func(ctx context.Context, _ string, _ mcp.Request) (mcp.Result, error) {
		return nil, context.Cause(ctx)
	})(markStdio(t.Context(), calls), callTool, &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "x"}})
	if !errors.Is(err, tools.ErrShutdown) {
		t.Errorf("cancelled for %v", err)
	}
}
