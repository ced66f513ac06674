package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestErrorAfterProgress: the SDK writes some errors of modern requests raw,
// even onto a stream that has begun.
func TestErrorAfterProgress(t *testing.T) {
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

// TestResume: an answer that was missed is told again.
func TestResume(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	_, url := serve(t, func(o *Options) { o.Extend.Tools = slow(release, started) })
	h := session(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(toolCall(5, "slow", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range h {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	n, err := res.Body.Read(buf) // the event that carries an id and nothing else
	if err != nil {
		t.Fatal(err)
	}
	<-started
	cancel()
	res.Body.Close()
	time.Sleep(50 * time.Millisecond)
	release <- struct{}{}
	_, id, _ := strings.Cut(string(buf[:n]), "id: ")
	id, _, _ = strings.Cut(id, "\n")
	h["Accept"], h["Last-Event-ID"] = "text/event-stream", id
	for range 50 {
		got, body := do(t, "GET", url, h, "")
		if got.StatusCode == 200 && strings.Contains(body, "done") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("after %q nothing is told", buf[:n])
}

func TestReplayIsBounded(t *testing.T) {
	p := newReplay(1000)
	ctx := t.Context()
	for i := range 5000 {
		stream := fmt.Sprint("s", i/3)
		_ = p.Append(ctx, "x", stream, []byte(strings.Repeat("y", i%50)))
	}
	h := p.sessions["x"]
	if h.bytes > 1000 || len(h.events) > maxReplayEvents || len(h.next) > 2*maxReplayEvents {
		t.Errorf("kept %d bytes, %d events, %d streams", h.bytes, len(h.events), len(h.next))
	}
	collect := func(stream string, after int) (int, error) {
		return collectOf(p, ctx, "x", stream, after)
	}
	if n, err := collect("s1666", -1); n != 2 || err != nil {
		t.Errorf("the newest stream: %d events, %v", n, err)
	}
	_ = p.Append(ctx, "y", "a", []byte("1"))
	for range maxReplayEvents + 5 {
		_ = p.Append(ctx, "y", "a", nil)
	}
	if _, err := collectOf(p, ctx, "y", "a", -1); !errors.Is(err, mcp.ErrEventsPurged) {
		t.Errorf("purged events: got %v", err)
	}
	if n, err := collectOf(p, ctx, "y", "a", maxReplayEvents+3); n != 2 || err != nil {
		t.Errorf("the newest events: %d, %v", n, err)
	}
	_ = p.SessionClosed(ctx, "x")
	if p.sessions["x"] != nil {
		t.Error("a closed session is kept")
	}
}

func collectOf(p *replay, ctx context.Context, session, stream string, after int) (n int, failed error) {
	for _, err := range p.After(ctx, session, stream, after) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// TestHugeBody: a body over the limit is refused with the reason, also to a
// client that sends all of it before it looks for an answer.
func TestHugeBody(t *testing.T) {
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

// TestClientGone: a client that closes its end ends the session cleanly.
func TestClientGone(t *testing.T) {
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
