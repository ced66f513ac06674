package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A wire is a connection of HTTP by hand, which can be cut.
type wire struct {
	*net.TCPConn
	in *bufio.Reader
}

func dialWire(tb testing.TB, url string) wire {
	tb.Helper()
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	c, err := net.Dial("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return wire{c.(*net.TCPConn), bufio.NewReaderSize(c, 1<<10)}
}

func (w wire) post(tb testing.TB, h header, body string) {
	tb.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	for k, v := range h {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	if _, err := io.WriteString(w, b.String()+"\r\n"+body); err != nil {
		tb.Fatal(err)
	}
}

// head reads the head of the answer.
func (w wire) head(tb testing.TB) *http.Response {
	tb.Helper()
	res, err := http.ReadResponse(w.in, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// cut ends the connection as a cable does that is pulled out of this end.
func (w wire) cut() {
	_ = w.SetLinger(0)
	_ = w.Close()
}

// body returns what follows the head of an answer.
func (w wire) body(tb testing.TB) *bufio.Reader { return bufio.NewReader(w.head(tb).Body) }

// eventID reads an answer until an event has an id.
func eventID(tb testing.TB, r *bufio.Reader) string {
	tb.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			tb.Fatalf("the answer ends without an id: %v", err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			return strings.TrimSpace(id)
		}
	}
}

// resume resumes a stream, as soon as the server has noticed that its
// connection is gone.
func resume(tb testing.TB, url string, h header, id string) string {
	tb.Helper()
	var res *http.Response
	var body string
	eventually(tb, "resume after "+id, func() bool {
		res, body = do(tb, "GET", url, with(h, "Accept", eventStream, "Last-Event-ID", id), "")
		return res.StatusCode != http.StatusConflict
	})
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != eventStream || res.Header.Get("X-Accel-Buffering") != "no" {
		tb.Fatalf("resume after %s: %s %v %.300s", id, res.Status, res.Header, body)
	}
	return body
}

// TestResume_CutConnection: whenever the connection of a call is cut, the client gets the
// answer by resuming after the last event that it received.
func TestResume_CutConnection(t *testing.T) {
	t.Run("SDK", func(t *testing.T) { resumes(t, false) })
	t.Run("direct", func(t *testing.T) { resumes(t, true) })
}

func resumes(t *testing.T, direct bool) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	large := strings.Repeat("x", 8<<20)
	tools := append(slow(release, started),
		extra("large", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: large}}}, nil
		}),
		extra("steps", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 3 {
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: float64(i), Message: fmt.Sprint("step ", i)})
			}
			started <- struct{}{}
			<-release
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		}))
	tools[0].Direct, tools[1].Direct = direct, direct
	s, url := serve(t, func(o *Options) { o.Extend.Tools = tools })

	t.Run("while it runs", func(t *testing.T) {
		h, w := session(t, url), dialWire(t, url)
		w.post(t, h, toolCall(5, "slow", "{}"))
		id := eventID(t, w.body(t))
		<-started
		w.cut()
		time.AfterFunc(200*time.Millisecond, func() { release <- struct{}{} })
		if r := parse(t, resume(t, url, h, id)); string(r.ID) != "5" || !strings.Contains(string(r.Result), "done") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("after it ran", func(t *testing.T) {
		h, w := session(t, url), dialWire(t, url)
		w.post(t, h, toolCall(6, "slow", "{}"))
		id := eventID(t, w.body(t))
		<-started
		w.cut()
		release <- struct{}{}
		for range 2 { // and again, if the second connection breaks as well
			if r := parse(t, resume(t, url, h, id)); string(r.ID) != "6" || !strings.Contains(string(r.Result), "done") {
				t.Errorf("got %+v", r)
			}
		}
	})
	t.Run("in the middle of a result", func(t *testing.T) {
		h, w := session(t, url), dialWire(t, url)
		w.post(t, h, toolCall(7, "large", "{}"))
		body := w.body(t)
		id := eventID(t, body)
		if _, err := io.ReadFull(body, make([]byte, 100<<10)); err != nil {
			t.Fatal(err)
		}
		w.cut()
		if r := parse(t, resume(t, url, h, id)); string(r.ID) != "7" || len(r.Result) < len(large) {
			t.Errorf("got id %s and %d bytes", r.ID, len(r.Result))
		}
	})
	t.Run("after some progress", func(t *testing.T) {
		h, w := session(t, url), dialWire(t, url)
		w.post(t, h, `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"steps","arguments":{},"_meta":{"progressToken":"p"}}}`)
		body := w.body(t)
		eventID(t, body) // the first event carries nothing else
		id := eventID(t, body)
		<-started
		w.cut()
		time.AfterFunc(200*time.Millisecond, func() { release <- struct{}{} })
		got := resume(t, url, h, id)
		if strings.Contains(got, "step 0") || strings.Count(got, "step 1") != 1 || strings.Count(got, "step 2") != 1 || strings.Count(got, "done") != 1 {
			t.Errorf("got %s", got)
		}
	})
	t.Run("before anybody knows", func(t *testing.T) {
		h, w := session(t, url), dialWire(t, url)
		w.post(t, h, toolCall(10, "slow", "{}"))
		body := w.body(t)
		id := eventID(t, body)
		<-started
		name, _, _ := parseEventID(id)
		to := s.sessions.find(h[headerSession]).conn.stream(name)
		to.mu.Lock()
		first := to.res
		to.mu.Unlock()
		answer := make(chan string, 1)
		go func() {
			_, got := do(t, "GET", url, with(h, "Accept", eventStream, "Last-Event-ID", id), "")
			answer <- got
		}()
		if direct { // it holds the connection until the call is over
			eventually(t, "the answer is taken", func() bool {
				to.mu.Lock()
				defer to.mu.Unlock()
				return to.res != nil && to.res != first
			})
			release <- struct{}{}
		}
		if rest, err := io.ReadAll(body); err != nil || strings.Contains(string(rest), "done") {
			t.Errorf("the first connection: %q, %v", rest, err)
		}
		if !direct {
			release <- struct{}{}
		}
		if r := parse(t, <-answer); string(r.ID) != "10" || !strings.Contains(string(r.Result), "done") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("of another session", func(t *testing.T) {
		h, w := session(t, url), dialWire(t, url)
		w.post(t, h, toolCall(9, "slow", "{}"))
		id := eventID(t, w.body(t))
		<-started
		release <- struct{}{}
		if res, body := do(t, "GET", url, with(session(t, url), "Accept", eventStream, "Last-Event-ID", id), ""); res.StatusCode != 400 || parse(t, body).Error == nil {
			t.Errorf("got %s %s", res.Status, body)
		}
	})
}

// TestStream_MessageIsSentOnce: messages of a call are sent on its stream, all others on
// the stream of the session, and none on both.
func TestStream_MessageIsSentOnce(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{extra("tell", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Message: "of the call"})
			_ = req.Session.NotifyProgress(context.Background(), &mcp.ProgressNotificationParams{ProgressToken: "q", Message: "of the session"})
			return &mcp.CallToolResult{}, nil
		})}
	})
	h := session(t, url)
	res := listenTo(t, t.Context(), url, h)
	heard := make(chan string, 1)
	go func() {
		all := ""
		for lines := bufio.NewScanner(res.Body); lines.Scan(); all += lines.Text() + "\n" {
			if strings.Contains(lines.Text(), "last") {
				break
			}
			if strings.Contains(lines.Text(), "of the session") {
				heard <- all + lines.Text()
				return
			}
		}
		heard <- all
	}()
	_, body := do(t, "POST", url, h, toolCall(1, "tell", "{}"))
	if strings.Count(body, "of the call") != 1 || strings.Contains(body, "of the session") {
		t.Errorf("the call: %s", body)
	}
	select {
	case all := <-heard:
		if strings.Contains(all, "of the call") || !strings.Contains(all, "of the session") {
			t.Errorf("the session: %s", all)
		}
	case <-time.After(time.Minute):
		t.Error("the session got no message")
	}
}

// TestWrite_StuckReaderLosesConnection: a client that does not read loses its connection
// and delays no other. A slow reader gets everything.
func TestWrite_StuckReaderLosesConnection(t *testing.T) {
	large := strings.Repeat("x", 12<<20)
	ended := make(chan error, 8)
	s, url := serve(t, func(o *Options) {
		o.Limits.Write = 2 * time.Second
		o.Limits.Heartbeat = 50 * time.Millisecond
		o.Extend.Tools = []Tool{extra("large", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ended <- req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Message: large})
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: large}}}, nil
		})}
	})
	h := session(t, url)
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"large","arguments":{},"_meta":{"progressToken":"p"}}}`
	modern, modernBody := modernCall(1, "large", "{}")
	stuck := dialWire(t, url)
	stuck.post(t, h, call)
	for _, send := range []func(wire){
		func(w wire) { w.post(t, modern, modernBody) },
		func(w wire) { w.post(t, header{"Accept": "application/json"}, toolCall(1, "large", "{}")) },
	} {
		send(dialWire(t, url))
	}
	// Others, and the same session, are served meanwhile.
	for i := range 10 {
		if res, body := do(t, "POST", url, h, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, 100+i)); res.StatusCode != 200 || parse(t, body).Error != nil {
			t.Errorf("ping: %s %s", res.Status, body)
		}
	}
	for range 3 {
		select {
		case <-ended:
		case <-time.After(60 * time.Second):
			t.Fatal("a call waits for its reader")
		}
	}
	eventually(t, "nothing is under way any more", func() bool { return s.posts.value() == 0 })

	if testing.Short() {
		return // what comes takes 12 s
	}
	slow := dialWire(t, url)
	_ = slow.SetReadBuffer(64 << 10)
	slow.post(t, h, strings.Replace(call, `"id":1`, `"id":2`, 1))
	body := slow.body(t)
	read := 0
	for buf := make([]byte, 512<<10); ; { // each half takes three times the limit
		n, err := io.ReadFull(body, buf)
		read += n
		if err != nil {
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Errorf("the slow reader, after %d bytes: %v", read, err)
			}
			break
		}
		time.Sleep(250 * time.Millisecond)
	}
	if read < 2*len(large) {
		t.Errorf("the slow reader got %d bytes", read)
	}
}

// TestLostAnswer_IsAnError: a client whose answer was evicted gets an error when it
// resumes the stream, not a stream that never has the answer.
func TestLostAnswer_IsAnError(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	s, url := serve(t, func(o *Options) {
		o.Extend.Tools = slow(release, started)
		o.Limits.Replay = 1
	})
	h := session(t, url)
	w := dialWire(t, url)
	w.post(t, h, toolCall(5, "slow", "{}"))
	id := eventID(t, w.body(t))
	<-started
	w.cut()
	eventually(t, "the server notices", func() bool { return s.posts.value() == 0 })
	release <- struct{}{}
	eventually(t, "the call ends", func() bool { return s.calls.counted.value() == 0 })
	// The answer to another session evicts it: together they exceed the limit of all.
	if res, body := do(t, "POST", url, session(t, url), `{"jsonrpc":"2.0","id":6,"method":"ping"}`); res.StatusCode != 200 {
		t.Fatalf("ping: %s %q", res.Status, body)
	}
	res, body := do(t, "GET", url, with(h, "Accept", eventStream, headerLastEvent, id), "")
	if r := parse(t, body); res.StatusCode != 400 || r.Error == nil || !strings.Contains(r.Error.Message, "not kept") {
		t.Errorf("got %s %q", res.Status, body)
	}
}
