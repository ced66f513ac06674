package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestExchange_ZeroIDsAreAnswered: the SDK turns every spelling of zero into 0, and its
// response still reaches the request.
func TestExchange_ZeroIDsAreAnswered(t *testing.T) {
	s, url := serve(t, nil)
	h := session(t, url)
	for _, id := range []string{"-0", "-0.0", "-1e-400", "0", "0.0"} {
		for name, h := range map[string]header{"without a session": nil, "JSON only": {"Accept": "application/json"}, "session": h} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			res, body, err := tryDo(ctx, url, h, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id))
			cancel()
			if err != nil {
				t.Fatalf("%s, id %s: %v", name, id, err)
			}
			if r := parse(t, body); res.StatusCode != 200 || string(r.ID) != id || r.Error != nil {
				t.Errorf("%s, id %s: got %s %s", name, id, res.Status, body)
			}
		}
	}
	eventually(t, "no POST and no call is held", func() bool { return s.posts.value() == 0 && s.calls.counted.value() == 0 })
}

// TestExchange_LostAnswerWithoutSession: when the response of the SDK matches no call, a
// disconnect of the client ends the call and frees its POST.
func TestExchange_LostAnswerWithoutSession(t *testing.T) {
	log := new(logText)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) { o.Extend.Tools, o.Log = slow(release, started), log.logger() })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, _, err := tryDo(ctx, url, header{"Accept": "application/json"}, toolCall(1, "slow", "{}"))
		failed <- err
	}()
	<-started
	s.calls.mu.Lock()
	for cl := range s.calls.running {
		cl.conn.mu.Lock()
		delete(cl.conn.calls, cl.key)
		cl.key = "lost"
		cl.conn.calls[cl.key] = cl
		cl.conn.mu.Unlock()
	}
	s.calls.mu.Unlock()
	release <- struct{}{}
	eventually(t, "the lost response is logged", func() bool { return strings.Contains(log.String(), "matches no request in flight") })
	cancel()
	if err := <-failed; err == nil {
		t.Error("the call is answered")
	}
	eventually(t, "no POST and no call is held", func() bool { return s.posts.value() == 0 && s.calls.counted.value() == 0 })
}

// A logText keeps the lines of a log.
type logText struct{ polltest.Buffer }

func (l *logText) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// tryDo posts a body, and returns the error of a failed exchange.
func tryDo(ctx context.Context, url string, h header, body string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", mcpAccept)
	for k, v := range h {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return res, string(data), err
}

// A discardWriter takes a response and keeps its header.
type discardWriter struct{ h http.Header }

func (w *discardWriter) Header() http.Header         { return w.h }
func (w *discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *discardWriter) WriteHeader(int)             {}

// TestExchange_BatchCancelsItself: a batch without a session may cancel one of its own
// requests; the server survives, and answers the others.
func TestExchange_BatchCancelsItself(t *testing.T) {
	log := new(logText)
	started := make(chan struct{}, 100)
	_, url := serve(t, func(o *Options) { o.Extend.Tools, o.Log = slow(nil, started), log.logger() })
	cancel1 := fmt.Sprintf(cancelBody, "1")
	for _, accept := range []string{"application/json", mcpAccept, "*/*"} {
		h := header{"Accept": accept}
		res, body := do(t, "POST", url, h, "["+toolCall(1, "slow", "{}")+","+cancel1+"]")
		if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusAccepted || strings.Contains(body, "jsonrpc") {
			t.Errorf("%s: got %s %q, want no answer", accept, res.Status, body)
		}
		if accept == "application/json" && (res.StatusCode != http.StatusAccepted || body != "") {
			t.Errorf("%s: got %s %q, want 202 without a body", accept, res.Status, body)
		}
		res, body = do(t, "POST", url, h, "["+toolCall(1, "slow", "{}")+","+cancel1+","+strings.Replace(ping, `"id":1`, `"id":2`, 1)+"]")
		if res.StatusCode != http.StatusOK || strings.Contains(body, `"id":1`) || !strings.Contains(body, `"id":2`) {
			t.Errorf("%s: got %s %q, want the answer to request 2", accept, res.Status, body)
		}
		res, body = do(t, "POST", url, h, "["+ping+","+fmt.Sprintf(cancelBody, "77")+"]")
		if res.StatusCode != http.StatusOK || !strings.Contains(body, `"id":1`) {
			t.Errorf("%s: got %s %q, want the answer to request 1", accept, res.Status, body)
		}
	}
	if got := log.String(); strings.Contains(got, "panic") {
		t.Errorf("the server panicked: %s", got)
	}
}

// A panicWriter panics when an answer is written.
type panicWriter struct{ http.ResponseWriter }

func (w panicWriter) WriteHeader(int) { panic("write refused") }

// TestConn_WritePanicEndsTheCallOnly: the goroutines of the SDK do not recover, so a panic
// while an answer is written must not reach them.
func TestConn_WritePanicEndsTheCallOnly(t *testing.T) {
	log := new(logText)
	s, url := serve(t, func(o *Options) { o.Log = log.logger() })
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(ping))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	rec := &discardWriter{h: http.Header{}}
	s.Handler().ServeHTTP(panicWriter{rec}, req)
	if got := log.String(); !strings.Contains(got, "panic while delivering") || !strings.Contains(got, "write refused") || !strings.Contains(got, "stack=") {
		t.Errorf("log %q, want the panic and its stack", got)
	}
	if s.posts.value() != 0 || s.calls.counted.value() != 0 {
		t.Errorf("%d posts and %d calls are held", s.posts.value(), s.calls.counted.value())
	}
	if res, body := do(t, "POST", url, nil, ping); res.StatusCode != 200 {
		t.Errorf("afterwards: %s %s", res.Status, body)
	}
}

// TestBeginAll_RefusedBatchLeavesNoStream: a batch with an id in flight is refused, and
// its session keeps nothing of it.
func TestBeginAll_RefusedBatchLeavesNoStream(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) { o.Extend.Tools = slow(release, started) })
	res, _ := do(t, "POST", url, nil, strings.Replace(initBody, "2025-11-25", "2025-03-26", 1))
	h := header{"Accept": mcpAccept, headerSession: res.Header.Get(headerSession)}
	ended := make(chan error, 1)
	go func() {
		_, _, err := tryDo(t.Context(), url, h, toolCall(1, "slow", "{}"))
		ended <- err
	}()
	<-started
	batch := "[" + strings.Replace(ping, `"id":1`, `"id":2`, 1) + "," + ping + "]"
	for range 1000 {
		if res, body := do(t, "POST", url, h, batch); res.StatusCode != 400 || parse(t, body).Error.Code != jsonrpc.CodeInvalidRequest {
			t.Fatalf("got %s %s", res.Status, body)
		}
	}
	c := s.sessions.find(h[headerSession]).conn
	c.mu.Lock()
	streams, calls := len(c.streams), len(c.calls)
	c.mu.Unlock()
	if streams != 1 || calls != 1 {
		t.Errorf("the session holds %d streams and %d calls, want those of the slow call", streams, calls)
	}
	release <- struct{}{}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestErrorReply_IsBounded: the SDK repeats params that it cannot decode in its error.
func TestErrorReply_IsBounded(t *testing.T) {
	_, url := serve(t, nil)
	h := session(t, url)
	big := strings.Repeat(`\u0001x<`, 1<<17)
	for name, body := range map[string]string{
		"params": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope","inputResponses":5,"arguments":{"a":"` + big + `"}}}`,
		"method": `{"jsonrpc":"2.0","id":1,"method":"notifications/` + big + `"}`,
		"tool":   `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + big + `"}}`,
		"uri":    `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"` + big + `"}}`,
		"prompt": `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"` + big + `"}}`,
		"level":  `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":5,"x":"` + big + `"}}`,
	} {
		for where, h := range map[string]header{"without a session": nil, "session": h} {
			_, out := do(t, "POST", url, h, body)
			if len(out) > 100<<10 || parse(t, out).Error == nil {
				t.Errorf("%s, %s: an answer of %d bytes: %.300s", name, where, len(out), out)
			}
		}
	}
}
