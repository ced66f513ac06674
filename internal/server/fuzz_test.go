package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// cheap returns a server whose tools need no box, and how often it has noted a
// panic.
func cheap(tb testing.TB) (*Server, *atomic.Int64) {
	tb.Helper()
	panics := new(panicLog)
	echo := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(req.Params.Arguments)}}, StructuredContent: req.Params.Arguments}, nil
	}
	late := func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p"})
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "late"}
	}
	direct := extra("direct", echo)
	direct.Direct = true
	s := New(Options{
		Toolsets: []string{"none"}, AllowedOrigins: []string{"https://app.example"}, Log: slog.New(panics),
		Limits: Limits{Body: 64 << 10, Line: 64 << 10, Streams: 4, Sessions: 1 << 20, SessionIdle: time.Hour, Grace: 2 * time.Second, Write: 5 * time.Second},
		Extend: Extension{Tools: []Tool{direct, extra("echo", echo), extra("late", late),
			extra("plain", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return nil, errors.New("plain")
			})}},
	})
	return s, &panics.n
}

// A panicLog counts the panics that the server survived.
type panicLog struct{ n atomic.Int64 }

func (*panicLog) Enabled(context.Context, slog.Level) bool { return true }
func (p *panicLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panic") {
		p.n.Add(1)
	}
	return nil
}
func (p *panicLog) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p *panicLog) WithGroup(string) slog.Handler      { return p }

// statuses are those that the front may answer with.
var statuses = map[int]bool{
	200: true, 202: true, 204: true, 400: true, 403: true, 404: true, 405: true, 406: true,
	409: true, 413: true, 415: true, 429: true, 503: true,
}

// FuzzFront: whatever is sent gets an answer of the protocol, and the next
// request is served.
func FuzzFront(f *testing.F) {
	s, panics := cheap(f)
	srv := httptest.NewServer(s.Handler())
	f.Cleanup(srv.Close)
	url := srv.URL + "/mcp"
	begin := func(tb testing.TB) string { return session(tb, url)[headerSession] }
	id := begin(f)
	next := 1 << 40

	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":[1]}}}`
	modern, modernBody := modernCall(1, "late", "{}")
	for _, c := range []struct{ method, accept, version, more, body string }{
		{"POST", mcpAccept, "2025-11-25", "S", call},
		{"POST", mcpAccept, "2025-03-26", "S", "[" + call + "," + ping + "]"},
		{"POST", mcpAccept, "", "", "[" + ping + `,{"jsonrpc":"2.0","method":"notifications/initialized"}]`},
		{"POST", mcpAccept, modern[headerVersion], "Mcp-Method: tools/call\nMcp-Name: late", modernBody},
		{"POST", "*/*", "", "", strings.Replace(call, "echo", "direct", 1)},
		{"POST", "application/json", "", "", strings.Replace(call, "echo", "nope", 1)},
		{"POST", "", "", "Content-Type: text/plain", call},
		{"POST", mcpAccept, "2025-06-18", "S", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
		{"POST", mcpAccept, "", "S", `{"jsonrpc":"2.0","id":3,"result":{}}`},
		{"POST", mcpAccept, "", "", initBody},
		{"POST", mcpAccept, modern[headerVersion], "Mcp-Method: subscriptions/listen", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`},
		{"GET", eventStream, "2025-11-25", "S", ""},
		{"GET", eventStream, "2025-11-25", "S\nLast-Event-ID: ABC_0", ""},
		{"GET", "text/html", "", "", ""},
		{"GET", "image/png", "", "Origin: https://app.example", ""},
		{"HEAD", "", "", "Origin: null", ""},
		{"DELETE", "", "2025-11-25", "S", ""},
		{"OPTIONS", "", "", "Origin: https://app.example\nAccess-Control-Request-Method: POST", ""},
		{"BREW", "", "1999-01-01", "Host: evil.example", ""},
	} {
		f.Add(c.method, c.accept, c.version, c.more, []byte(c.body))
	}
	f.Fuzz(func(t *testing.T, method, accept, version, more string, body []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
		if err != nil {
			t.Skip("no method of HTTP")
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		req.Header.Set("Mcp-Protocol-Version", version)
		for line := range strings.SplitSeq(more, "\n") {
			switch name, value, ok := strings.Cut(line, ": "); {
			case line == "S":
				req.Header.Set(headerSession, id)
			case name == "Host" && ok:
				req.Host = value
			case ok:
				req.Header.Add(name, value)
			}
		}
		res, err := http.DefaultClient.Do(req)
		switch {
		case err == nil:
			judge(t, cancel, req, res)
			if begun := res.Header.Get(headerSession); begun != "" {
				do(t, "DELETE", url, header{headerSession: begun}, "") // there is only room for so many
			}
		case ctx.Err() != nil:
			t.Fatal("no answer in a minute")
		} // else the client refuses to send that, or net/http to take it
		if req.Method == http.MethodDelete && req.Header.Get(headerSession) == id {
			id = begin(t)
		}
		// Of an id of its own: a cancellation is taken in a little later than it is sent.
		next++
		if res, out := do(t, "POST", url, header{headerSession: id}, strings.Replace(ping, `"id":1`, `"id":`+strconv.Itoa(next), 1)); res.StatusCode != 200 || string(parse(t, out).Result) == "" {
			t.Errorf("ping afterwards: %s %s", res.Status, out)
		}
		if panics.Load() > 0 {
			t.Fatal("the server noted a panic")
		}
	})
}

// judge holds that an answer is one of the protocol. A stream that only listens
// is left once something has come.
func judge(t *testing.T, leave func(), req *http.Request, res *http.Response) {
	defer res.Body.Close()
	if !statuses[res.StatusCode] && (res.StatusCode != 400 || res.Header.Get("Connection") != "close") {
		t.Errorf("status %s", res.Status)
	}
	if res.StatusCode == 405 && res.Header.Get("Allow") == "" || res.StatusCode == 503 && res.Header.Get("Retry-After") == "" {
		t.Errorf("%s with %v", res.Status, res.Header)
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), eventStream) {
		judgeStream(t, leave, res.Body)
		return
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Errorf("%s: read the body: %v", res.Status, err)
	}
	switch {
	case req.Method == http.MethodHead:
	case res.StatusCode == 202 || res.StatusCode == 204:
		if len(body) > 0 {
			t.Errorf("%s with the body %q", res.Status, body)
		}
	case req.Method == http.MethodGet && res.StatusCode == 200: // the status, for a person or a program
	default:
		judgeMessages(t, body)
		if res.StatusCode >= 400 && !bytes.Contains(body, []byte(`"error":{"code":-3`)) {
			t.Errorf("%s with %q", res.Status, body)
		}
	}
}

func judgeStream(t *testing.T, leave func(), body io.Reader) {
	left := false
	for in := bufio.NewReader(body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			if !left && (err != io.EOF || line != "") {
				t.Errorf("the stream ends with %q: %v", line, err)
			}
			return
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "": // a comment, or the end of an event
			if value == "ok" {
				leave()
				left = true
			}
		case "event", "id":
		case "retry":
			if _, err := strconv.Atoi(value); err != nil {
				t.Errorf("%q", line)
			}
		case "data":
			if value == "" {
				break // of an event that carries an id
			}
			judgeMessages(t, []byte(value))
			if strings.Contains(value, "subscriptions/acknowledged") {
				leave()
				left = true
			}
		default:
			t.Errorf("the stream holds %q", line)
		}
	}
}

// judgeMessages holds that bytes are a message of JSON-RPC, or a batch.
func judgeMessages(t *testing.T, data []byte) {
	all := []json.RawMessage{data}
	if envelope.IsBatch(data) {
		if err := json.Unmarshal(data, &all); err != nil {
			t.Errorf("%q: %v", data, err)
			return
		}
	}
	for _, one := range all {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(one, &m); err != nil {
			t.Errorf("%q: %v", one, err)
			return
		}
		kinds := 0
		for _, member := range []string{"method", "result", "error"} {
			if m[member] != nil {
				kinds++
			}
		}
		if string(m["jsonrpc"]) != `"2.0"` || kinds != 1 || m["result"] != nil && m["id"] == nil {
			t.Errorf("%q is no message", one)
		}
	}
}

// FuzzStdio: whatever is written gets answers of the protocol, and the last
// request is served.
func FuzzStdio(f *testing.F) {
	s, panics := cheap(f)
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":[1]}}}`
	_, modernBody := modernCall(1, "late", "{}")
	for _, lines := range [][]string{
		{call}, {initBody, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, call, modernBody},
		{strings.Replace(initBody, "2025-11-25", "2025-03-26", 1), "[" + call + "," + ping + "]"},
		{initBody, initBody, "[" + ping + "]", "[]", "{", "x", "\xff", `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{modernBody, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
		{ping, ping, strings.Replace(call, "echo", "plain", 1), strings.Replace(call, "echo", "nope", 1)},
		{`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`},
	} {
		f.Add([]byte(strings.Join(lines, "\n")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("the-end")) {
			return
		}
		// The last request is of the era that needs no handshake, which whatever
		// came before cannot have changed.
		last := fmt.Sprintf("\n%s\n", strings.Replace(modernDiscover, "ID", `"the-end"`, 1))
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.ServeStdio(ctx, io.MultiReader(bytes.NewReader(data), strings.NewReader(last)), &out); err != nil {
			t.Errorf("ends with %v", err)
		}
		if ctx.Err() != nil {
			t.Error("does not end in a minute")
		}
		if !strings.Contains(out.String(), `"id":"the-end"`) {
			t.Errorf("the last request has no answer: %q", out.String())
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\n"), "\n") {
			judgeMessages(t, []byte(line))
		}
		if panics.Load() > 0 {
			t.Fatal("the server noted a panic")
		}
	})
}

const modernDiscover = `{"jsonrpc":"2.0","id":ID,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
