package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

const cancelBody = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`

// TestCancelled_GetsNoAnswer: a cancelled request gets an empty stream, on either code
// path, and its answer is not kept for resuming the stream.
func TestCancelled_GetsNoAnswer(t *testing.T) {
	for _, direct := range []bool{false, true} {
		for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
			t.Run(fmt.Sprint("direct ", direct, "/", version), func(t *testing.T) {
				release, started := make(chan struct{}), make(chan struct{}, 1)
				tools := slow(release, started)
				tools[0].Direct = direct
				_, url := serve(t, func(o *Options) { o.Extend.Tools = tools })
				res, _ := do(t, "POST", url, nil, strings.Replace(initBody, "2025-11-25", version, 1))
				h := header{"Accept": mcpAccept, headerSession: res.Header.Get(headerSession), headerVersion: version}

				w := dialWire(t, url)
				w.post(t, h, toolCall(5, "slow", "{}"))
				<-started
				id := ""
				if version >= revision.Resumable {
					id = eventID(t, w.body(t))
					w.cut() // the answer would be kept
				}
				if res, body := do(t, "POST", url, h, fmt.Sprintf(cancelBody, "5")); res.StatusCode != http.StatusAccepted {
					t.Fatalf("cancel: %s %s", res.Status, body)
				}
				if version < revision.Resumable {
					res := w.head(t)
					body, err := io.ReadAll(res.Body)
					if err != nil {
						t.Fatal(err)
					}
					if res.StatusCode != 200 || res.Header.Get("Content-Type") != eventStream || strings.Contains(string(body), "data:") {
						t.Errorf("the cancelled request: got %s %v %q, want an empty stream", res.Status, res.Header, body)
					}
					return
				}
				eventually(t, "the stream is over", func() bool {
					res, body := do(t, "GET", url, with(h, "Accept", eventStream, "Last-Event-ID", id), "")
					if strings.Contains(body, `"id":5`) {
						t.Fatalf("the cancelled request is answered after all: %s", body)
					}
					return res.StatusCode == http.StatusMethodNotAllowed && res.Header.Get("Allow") != ""
				})
			})
		}
	}
}

// TestCancelled_OthersOfBatchAreAnswered: after one request of a batch is cancelled, the
// peers are answered.
func TestCancelled_OthersOfBatchAreAnswered(t *testing.T) {
	release, started, cancelled := make(chan struct{}), make(chan struct{}, 2), make(chan struct{}, 2)
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("slow", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			started <- struct{}{}
			select {
			case <-release:
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
			case <-ctx.Done():
				cancelled <- struct{}{}
				return nil, ctx.Err()
			}
		})}
	})
	res, _ := do(t, "POST", url, nil, strings.Replace(initBody, "2025-11-25", "2025-03-26", 1))
	h := header{"Accept": mcpAccept, headerSession: res.Header.Get(headerSession)}
	for range 50 { // the ids may be used again
		answer := make(chan string, 1)
		go func() {
			_, body := do(t, "POST", url, h, "["+toolCall(1, "slow", "{}")+","+toolCall(2, "slow", "{}")+"]")
			answer <- body
		}()
		<-started
		<-started
		do(t, "POST", url, h, fmt.Sprintf(cancelBody, "1"))
		// The notification is accepted before it takes effect. Until then request 1 could
		// take the release of request 2.
		<-cancelled
		release <- struct{}{}
		if got := <-answer; strings.Contains(got, `"id":1`) || !strings.Contains(got, `"id":2`) || !strings.Contains(got, "done") {
			t.Errorf("got %q, want the answer to request 2 alone", got)
		}
	}
}

// TestResume_FinishedStream: resuming a finished stream after its last event gets 405.
// After 200 without events, stock clients would retry forever.
func TestResume_FinishedStream(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("steps", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		})}
	})
	h := session(t, url)
	_, body := do(t, "POST", url, h, toolCall(1, "steps", "{}"))
	last := ""
	for line := range strings.Lines(body) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			last = strings.TrimSpace(id)
		}
	}
	if last == "" || !strings.Contains(body, "done") {
		t.Fatalf("got %q", body)
	}
	res, body := do(t, "GET", url, with(h, "Accept", eventStream, "Last-Event-ID", last), "")
	if res.StatusCode != http.StatusMethodNotAllowed || parse(t, body).Error == nil {
		t.Errorf("after the last event: got %s %v %q, want 405", res.Status, res.Header, body)
	}
	first, _, _ := strings.Cut(last, "_")
	res, body = do(t, "GET", url, with(h, "Accept", eventStream, "Last-Event-ID", first+"_0"), "")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != eventStream || !strings.Contains(body, "done") {
		t.Errorf("after the first event: got %s %v %q, want what followed", res.Status, res.Header, body)
	}
}
