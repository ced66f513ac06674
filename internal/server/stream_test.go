package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestError_AfterProgress: the SDK writes some errors of modern requests as plain JSON,
// even onto a stream that has begun.
func TestError_AfterProgress(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("late", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "t", Progress: 1})
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "late"}
		})}
	})
	for _, version := range []string{"", "2025-11-25"} {
		cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, nil)
		_, err := try(t, cs, "late", nil)
		var e *jsonrpc.Error
		if !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams || e.Message != "late" {
			t.Errorf("%q: got %v", version, err)
		}
	}
	h, body := modernCall(1, "late", "{}")
	res, out := do(t, "POST", url, h, body)
	if res.StatusCode != 200 || strings.Count(out, "data: ") != 2 || !strings.HasSuffix(out, "\n\n") {
		t.Errorf("got %s %q", res.Status, out)
	}
}

// TestBody_OverLimit: a body over the limit is refused with the reason, also if the
// client sends all of it before it reads.
func TestBody_OverLimit(t *testing.T) {
	_, url := serve(t, func(o *Options) { o.Limits.Body = 1 << 20 })
	for _, length := range []int64{-1, 200 << 20} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url, io.LimitReader(zeros{}, 200<<20))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("length %d: %v", length, err)
			continue
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 413 || parse(t, string(body)).Error == nil {
			t.Errorf("length %d: got %s %s", length, res.Status, body)
		}
	}
	if res, _ := do(t, "GET", url, header{}, ""); res.StatusCode != 200 {
		t.Errorf("afterwards: %s", res.Status)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestClientGone_EndsSession: a client that closes its connection ends the session
// cleanly.
func TestClientGone_EndsSession(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	s := New(Options{})
	if err := s.ServeStdio(t.Context(), strings.NewReader(initBody+"\n"), w); err != nil {
		t.Errorf("got %v, want a clean end", err)
	}
}
