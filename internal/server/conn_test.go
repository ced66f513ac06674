package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestConn_UndeliveredMessageKeepsSession: the handler gets an error for a message that
// cannot be delivered. The SDK would end a session whose transport fails in any other
// way.
func TestConn_UndeliveredMessageKeepsSession(t *testing.T) {
	failed := make(chan error, 1)
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("late", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			session := req.Session
			go func() {
				<-ctx.Done() // the call has been answered
				failed <- session.NotifyProgress(context.WithoutCancel(ctx), &mcp.ProgressNotificationParams{ProgressToken: "p"})
			}()
			return &mcp.CallToolResult{}, nil
		})}
	})
	h := session(t, url)
	if res, body := do(t, "POST", url, h, toolCall(1, "late", "{}")); res.StatusCode != 200 {
		t.Fatalf("got %s %s", res.Status, body)
	}
	if err := <-failed; err == nil {
		t.Error("a message of a call that has been answered is delivered")
	}
	if res, body := do(t, "POST", url, h, ping); res.StatusCode != 200 || parse(t, body).Error != nil {
		t.Errorf("the session afterwards: %s %s", res.Status, body)
	}
}

// TestConn_ClientWithoutSessionIsNotAsked: a request to a client without a session fails
// at once, since no answer could reach it.
func TestConn_ClientWithoutSessionIsNotAsked(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("ask", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			err := req.Session.Ping(ctx, nil)
			if err == nil {
				return nil, errors.New("the client has answered")
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}, nil
		})}
	})
	if res, body := do(t, "POST", url, nil, toolCall(1, "ask", "{}")); res.StatusCode != 200 || !strings.Contains(body, "without a session") {
		t.Errorf("got %s %s", res.Status, body)
	}
}

// TestConn_ClosedSessionAnswersItsCalls: nothing waits for a session that the SDK has
// ended.
func TestConn_ClosedSessionAnswersItsCalls(t *testing.T) {
	started := make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) { o.Extend.Tools = slow(nil, started) })
	h := session(t, url)
	answer := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, h, toolCall(1, "slow", "{}"))
		answer <- body
	}()
	<-started
	of := s.sessions.find(h[headerSession])
	if err := of.conn.Close(); err != nil {
		t.Error(err)
	}
	if r := parse(t, <-answer); r.Error == nil || r.Error.Code != jsonrpc.CodeInternalError {
		t.Errorf("got %+v", r)
	}
	if res, body := do(t, "POST", url, h, ping); res.StatusCode != http.StatusNotFound {
		t.Errorf("afterwards: got %s %s", res.Status, body)
	}
}
