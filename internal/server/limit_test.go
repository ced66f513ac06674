package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func busy(t *testing.T, what string, res *http.Response, body string) {
	t.Helper()
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || res.Header.Get("Content-Type") != "application/json" || parse(t, body).Error == nil {
		t.Errorf("%s: %s %v %s", what, res.Status, res.Header, body)
	}
}

// TestCalls_Limit: a call over the limit is refused. Messages that may make room, such as
// a cancellation, are not.
func TestCalls_Limit(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 2)
	_, url := serve(t, func(o *Options) { o.Limits.Calls, o.Extend.Tools = 1, slow(release, started) })
	h := session(t, url)
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, h, toolCall(1, "slow", "{}"))
		ended <- body
	}()
	<-started
	res, body := do(t, "POST", url, h, toolCall(2, "slow", "{}"))
	busy(t, "a second call", res, body)
	if string(parse(t, body).ID) != "2" {
		t.Errorf("a second call: id of %s", body)
	}
	res, body = do(t, "POST", url, nil, initBody)
	busy(t, "initialize", res, body)
	res, body = do(t, "POST", url, h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if res.StatusCode != 202 {
		t.Errorf("cancel: %s %s", res.Status, body)
	}
	if body := <-ended; strings.Contains(body, "jsonrpc") {
		t.Errorf("the cancelled call is answered: %s", body)
	}
	go func() { release <- struct{}{} }()
	if res, body := do(t, "POST", url, h, toolCall(3, "slow", "{}")); res.StatusCode != 200 || !strings.Contains(body, "done") {
		t.Errorf("when there is room again: %s %s", res.Status, body)
	}
}

// TestCalls_LimitOfBatches: a batch takes a place for each of its requests.
func TestCalls_LimitOfBatches(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 4)
	s, url := serve(t, func(o *Options) { o.Limits.Calls, o.Extend.Tools = 3, slow(release, started) })
	batch := func(n int) string {
		var calls []string
		for id := range n {
			calls = append(calls, toolCall(id, "slow", "{}"))
		}
		return "[" + strings.Join(calls, ",") + "]"
	}
	ended := make(chan string, 1)
	post := func(body string) {
		_, body = do(t, "POST", url, nil, body)
		ended <- body
	}
	go post(batch(2))
	<-started
	<-started
	res, body := do(t, "POST", url, nil, batch(2))
	busy(t, "a second batch", res, body)
	if res, body := do(t, "POST", url, nil, ping); res.StatusCode != 200 {
		t.Errorf("a ping beside a batch: %s %s", res.Status, body)
	}
	for range 2 {
		release <- struct{}{}
	}
	<-ended
	eventually(t, "there is room", func() bool { return s.posts.value() == 0 })
	go post(batch(4)) // more than there is room for is served alone
	for range 4 {
		<-started
	}
	res, body = do(t, "POST", url, nil, ping)
	busy(t, "a ping beside a large batch", res, body)
	for range 4 {
		release <- struct{}{}
	}
	if body := <-ended; strings.Count(body, "done") != 4 {
		t.Errorf("a large batch: %s", body)
	}
}

// TestListen_OlderRevision: subscriptions/listen belongs to the modern revision. A
// client of an older one would keep a stream that nothing counts, and in a session take
// the place of the session's own stream.
func TestListen_OlderRevision(t *testing.T) {
	s, url := serve(t, nil)
	h := session(t, url)
	listenTo(t, t.Context(), url, h)
	for name, h := range map[string]header{"session": h, "no session": {"Accept": mcpAccept}} {
		res, body := do(t, "POST", url, h, `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{}}`)
		if r := parse(t, body); res.StatusCode != 200 || r.Error == nil || r.Error.Code != jsonrpc.CodeMethodNotFound {
			t.Errorf("%s: got %s %q, want that there is no such method", name, res.Status, body)
		}
	}
	if n := s.streams.value(); n != 1 {
		t.Errorf("%d streams are open, want the session's own", n)
	}
}

// TestStreams_Limit: streams that only listen have a separate limit, and each session has
// at most one.
func TestStreams_Limit(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Streams = 2 })
	a, b := session(t, url), session(t, url)
	first := listenTo(t, t.Context(), url, a)
	res, body := do(t, "GET", url, with(a, "Accept", eventStream), "")
	if res.StatusCode != 409 || parse(t, body).Error == nil {
		t.Errorf("a second stream of a session: %s %s", res.Status, body)
	}
	listenTo(t, t.Context(), url, b)
	res, body = do(t, "GET", url, with(session(t, url), "Accept", eventStream), "")
	busy(t, "a third stream", res, body)
	h, listenBody := modernCall(1, "x", "{}")
	delete(h, "Mcp-Name")
	h["Mcp-Method"] = methodListen
	listenBody = strings.Replace(listenBody, callTool, methodListen, 1)
	res, body = do(t, "POST", url, h, listenBody)
	busy(t, "a third listener", res, body)
	if res, body := do(t, "POST", url, a, toolCall(1, "get_sessions", "{}")); res.StatusCode != 200 {
		t.Errorf("a call: %s %s", res.Status, body)
	}
	first.Body.Close()
	eventually(t, "the stream ends", func() bool { return s.streams.value() == 1 })
	listenTo(t, t.Context(), url, a)
}

// TestBodies_LargeOnesAreBounded: large requests are bounded in all, and small ones are
// served meanwhile.
func TestBodies_LargeOnesAreBounded(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Body = 2 << 20 })
	var all []wire
	for range largeBodies {
		w := dialWire(t, url)
		fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", 2<<20)
		all = append(all, w)
	}
	eventually(t, "all are being read", func() bool { return s.bodies.value() == largeBodies<<21 })
	large := strings.Replace(ping, "{", "{"+strings.Repeat(" ", 1<<20), 1)
	res, body := do(t, "POST", url, header{}, large)
	busy(t, "one more", res, body)
	if res, body := do(t, "POST", url, header{}, ping); res.StatusCode != 200 {
		t.Errorf("a small one: %s %s", res.Status, body)
	}
	for _, w := range all {
		w.cut()
	}
	eventually(t, "none is being read", func() bool { return s.bodies.value() == 0 })
	if res, body := do(t, "POST", url, header{}, large); res.StatusCode != 200 {
		t.Errorf("a large one: %s %s", res.Status, body)
	}
	if n := s.bodies.value(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestSlowUpload_LosesConnection: a client that sends a request byte by byte loses its
// connection, and nothing of it is kept.
func TestSlowUpload_LosesConnection(t *testing.T) {
	s, url := serve(t, func(o *Options) { o.Limits.Header, o.Limits.Upload = 300*time.Millisecond, 300*time.Millisecond })
	head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n"
	for name, begin := range map[string]string{"header": head, "body": head + "\r\n{"} {
		start, w := time.Now(), dialWire(t, url)
		fmt.Fprint(w, begin)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, w.in)
		}()
		tick := time.NewTicker(50 * time.Millisecond)
		for trickling := true; trickling; {
			select {
			case <-ended:
				trickling = false
			case <-tick.C:
				fmt.Fprint(w, "x")
			}
		}
		tick.Stop()
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s: the connection was open for %v", name, took)
		}
	}
	eventually(t, "nothing is held", func() bool { return s.bodies.value() == 0 && openConnections(s) == 0 })
}

// TestHeaders_Limit: headers are bounded, and the longest accepted token fits.
func TestHeaders_Limit(t *testing.T) {
	_, url := serve(t, nil)
	for size, want := range map[int]int{16 << 10: 200, maxHeader + 8<<10: 431} {
		if res, body := do(t, "POST", url, header{"Authorization": "Bearer " + strings.Repeat("x", size)}, ping); res.StatusCode != want {
			t.Errorf("%d bytes: got %s %s, want %d", size, res.Status, body, want)
		}
	}
}

// TestHeaders_LimitOfHTTP2: headers are bounded with HTTP/2 too, also those that are large only once
// they are decoded, and of clients that ignore the limit which the server announces.
func TestHeaders_LimitOfHTTP2(t *testing.T) {
	_, address := serveTLS(t, selfSigned(t), func(*Options) {})
	const each = 3 << 10
	fields := func(size int, repeated bool) (all []hpack.HeaderField) {
		for i := range size / each {
			f := hpack.HeaderField{Name: "x-large", Value: strings.Repeat("x", each)}
			if !repeated {
				f.Name, f.Sensitive = fmt.Sprint("x-large-", i), true // never in the table of the connection
			}
			all = append(all, f)
		}
		return all
	}
	for _, c := range []struct {
		name   string
		fields []hpack.HeaderField
		fits   bool
	}{
		{"the longest token", []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + strings.Repeat("x", 16<<10)}}, true},
		{"many fields that fit", fields(maxHeader-4<<10, false), true},
		{"many fields", fields(maxHeader+8<<10, false), false},
		{"a repeated field that fits", fields(maxHeader-4<<10, true), true},
		{"a repeated field", fields(maxHeader+8<<10, true), false},
		{"one field", []hpack.HeaderField{{Name: "x-large", Value: strings.Repeat("x", maxHeader+8<<10)}}, false},
	} {
		status := statusOverHTTP2(t, address, c.fields)
		if c.fits && status != "200" || !c.fits && status != "431" && status != "" {
			t.Errorf("%s: status %q, want 200: %t; else 431 or the end of the connection", c.name, status, c.fits)
		}
	}
}

// statusOverHTTP2 sends a ping with more fields in its header, however large, which the client of
// net/http would not. It returns the status of the answer; "" if the connection ends without one.
func statusOverHTTP2(t *testing.T, address string, more []hpack.HeaderField) string {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{http2.NextProtoTLS}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: address}, {Name: ":path", Value: "/mcp"},
		{Name: "content-type", Value: "application/json"}, {Name: "accept", Value: mcpAccept},
	}, more...) {
		_ = encoder.WriteField(f) // into memory
	}
	const frame = 16 << 10 // the longest that every server takes
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	_, err = io.WriteString(c, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings())
	part := block.Next(frame)
	err = errors.Join(err, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part, EndHeaders: block.Len() == 0}))
	if err != nil {
		t.Fatal(err)
	}
	for block.Len() > 0 {
		part := block.Next(frame)
		_ = framer.WriteContinuation(1, block.Len() == 0, part) // the server may have closed: reading tells
	}
	_ = framer.WriteData(1, true, []byte(ping))
	for {
		f, err := framer.ReadFrame()
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.GoAwayFrame:
			return ""
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("neither an answer nor the end of the connection")
		}
		if err != nil {
			return ""
		}
	}
}

// TestExpectContinue_TooLarge: a client that waits for 100 Continue gets the refusal of a
// large body at once.
func TestExpectContinue_TooLarge(t *testing.T) {
	_, url := serve(t, func(o *Options) { o.Limits.Body = 1 << 10 })
	w := dialWire(t, url)
	fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", 1<<20)
	begin := time.Now()
	if res := w.head(t); res.StatusCode != 413 || time.Since(begin) >= refusedLimit {
		t.Errorf("%s after %v", res.Status, time.Since(begin))
	}
}

// blanks are a body of so many bytes; read counts them.
type blanks struct{ left, read int64 }

func (b *blanks) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), b.left)
	b.left -= n
	b.read += n
	return int(n), nil
}

// TestRefusedBody_IsReadInPart: the server reads a bounded part of a body that is too
// large, so that its client can read the refusal.
func TestRefusedBody_IsReadInPart(t *testing.T) {
	s := New(Options{Limits: Limits{Body: 1 << 10}})
	body := &blanks{left: refusedBody + 64<<20}
	r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/mcp", body)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code != 413 || body.read < refusedBody || body.read > refusedBody+1<<20 {
		t.Errorf("got %d after %d bytes", w.Code, body.read)
	}
}

// TestRates_RecentCallersAreKept: the server keeps the rates of a bounded number of
// callers, the most recent ones.
func TestRates_RecentCallersAreKept(t *testing.T) {
	r, now := newRates(0.001, 1), time.Now()
	take := func(key string) bool { return r.take(key, 1, now) == 0 }
	if !take("first") || take("first") {
		t.Fatal("the first caller's rate does not hold")
	}
	for i := range maxRates {
		take(fmt.Sprint("caller ", i))
	}
	if n := r.buckets.Len(); n != maxRates {
		t.Errorf("%d callers' rates are kept, want %d", n, maxRates)
	}
	if take(fmt.Sprint("caller ", maxRates-1)) || take("caller 1") {
		t.Error("a recent caller's rate was dropped")
	}
	if !take("first") {
		t.Error("the least recent caller's rate was kept")
	}
}

// TestAnswer_LongOneIsAnEvent: a short answer is JSON. A long one is an event for clients
// that can resume a stream, and JSON for others.
func TestAnswer_LongOneIsAnEvent(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("text", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var in struct{ Size int }
			err := json.Unmarshal(req.Params.Arguments, &in)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", in.Size)}}}, err
		})}
		o.Extend.Tools[0].Direct = true
	})
	h := session(t, url)
	for _, c := range []struct {
		size    int
		version string
		kind    string
	}{
		{maxAtOnce - 1<<10, "2025-11-25", "application/json"},
		{maxAtOnce, "2025-11-25", eventStream},
		{maxAtOnce, "2025-06-18", "application/json"},
	} {
		var res *http.Response
		var body string
		eventually(t, "an answer before the stream opens by itself", func() bool {
			res, body = do(t, "POST", url, with(h, headerVersion, c.version), toolCall(1, "text", fmt.Sprintf(`{"size":%d}`, c.size)))
			return res.Header.Get("Content-Type") == c.kind
		})
		if res.StatusCode != http.StatusOK || strings.Contains(body, "\nid: ") != (c.kind == eventStream) || len(parse(t, body).Result) < c.size {
			t.Errorf("%d bytes, %s: got %s, %v, %d bytes", c.size, c.version, res.Status, res.Header, len(body))
		}
	}
}
