package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

func testLog(tb testing.TB) *slog.Logger {
	if os.Getenv("GLOVEBOX_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// serve starts a server on loopback and returns it with its endpoint.
func serve(tb testing.TB, change func(*Options)) (*Server, string) {
	tb.Helper()
	opts := Options{
		Version: "test", Tools: tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})},
		Limits: Limits{Grace: 5 * time.Second}, Log: testLog(tb),
	}
	if change != nil {
		change(&opts)
	}
	s := New(opts)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	tb.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				tb.Errorf("serve: %v", err)
			}
		case <-time.After(15 * time.Second):
			tb.Error("the server does not stop")
		}
	})
	return s, "http://" + ln.Addr().String() + "/mcp"
}

// withBoxes gives the server real boxes.
func withBoxes(tb testing.TB, change func(*box.Config)) func(*Options) {
	m := toolstest.Manager(tb, change)
	return func(o *Options) { o.Tools.Boxes = m }
}

type header map[string]string

// with returns h with some values changed.
func with(h header, changes ...string) header {
	h = maps.Clone(h)
	for i := 0; i < len(changes); i += 2 {
		h[changes[i]] = changes[i+1]
	}
	return h
}

// do sends one request; a nil header means an MCP client's.
func do(tb testing.TB, method, url string, h header, body string) (*http.Response, string) {
	tb.Helper()
	res := send(tb, method, url, h, body)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatalf("%s %s: read body: %v", method, url, err)
	}
	return res, string(data)
}

// send is do with a body that is still to be read, and closed.
func send(tb testing.TB, method, url string, h header, body string) *http.Response {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if h == nil {
		h = header{"Accept": "application/json, text/event-stream"}
	}
	if _, ok := h["Content-Type"]; !ok && method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range h {
		if k == "Host" {
			req.Host = v
		} else if v != "" {
			req.Header.Set(k, v)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// doAfterBeats is do of a request that ends by what then does, which is called after
// two heartbeats.
func doAfterBeats(tb testing.TB, url string, h header, body string, then func()) string {
	tb.Helper()
	res := send(tb, http.MethodPost, url, h, body)
	defer res.Body.Close()
	var out strings.Builder
	in := bufio.NewReader(res.Body)
	for beats := 0; ; {
		line, err := in.ReadString('\n')
		out.WriteString(line)
		if line == ": hb\n" {
			if beats++; beats == 2 {
				then()
			}
		}
		if err != nil {
			if beats < 2 || err != io.EOF {
				tb.Errorf("%d heartbeats, %v", beats, err)
			}
			return out.String()
		}
	}
}

// reply is the last JSON-RPC response in a body, of either form.
type reply struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
		Data    struct {
			ErrorCode   string            `json:"error_code"`
			Category    string            `json:"category"`
			Severity    string            `json:"severity"`
			Suggestions []string          `json:"recovery_suggestions"`
			Context     map[string]string `json:"context"`
		} `json:"data"`
	} `json:"error"`
}

func parse(tb testing.TB, body string) (r reply) {
	tb.Helper()
	data := body
	for line := range strings.SplitSeq(body, "\n") {
		if rest, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(rest, `"id"`) {
			data = rest
		}
	}
	if err := json.Unmarshal([]byte(data), &r); err != nil {
		tb.Fatalf("parse %.300q: %v", body, err)
	}
	return r
}

const initBody = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// session opens a session by hand and returns its headers.
func session(tb testing.TB, url string) header {
	tb.Helper()
	res, body := do(tb, "POST", url, nil, initBody)
	id := res.Header.Get("Mcp-Session-Id")
	if res.StatusCode != 200 || id == "" {
		tb.Fatalf("initialize: %s, session %q, %s", res.Status, id, body)
	}
	return header{"Accept": "application/json, text/event-stream", "Mcp-Session-Id": id, "Mcp-Protocol-Version": "2025-11-25"}
}

func toolCall(id int, tool, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, args)
}

func modernCall(id int, tool, args string) (header, string) {
	return header{"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool},
		fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, id, tool, args)
}

func TestRefusals(t *testing.T) {
	_, url := serve(t, func(o *Options) { o.Limits.Body = 64 << 10 })
	legacy := session(t, url)
	for _, c := range []struct {
		name   string
		method string
		header header
		body   string
		status int
		code   int64
	}{
		{"not JSON", "POST", nil, `{"jsonrpc":`, 400, -32700},
		{"invalid UTF-8", "POST", nil, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", 400, -32700},
		{"empty", "POST", nil, ``, 400, -32700},
		{"a string", "POST", nil, `"x"`, 400, -32600},
		{"no version", "POST", nil, `{"id":1,"method":"ping"}`, 400, -32600},
		{"no method", "POST", nil, `{"jsonrpc":"2.0","id":1}`, 400, -32600},
		{"method is a number", "POST", nil, `{"jsonrpc":"2.0","id":1,"method":2}`, 400, -32600},
		{"params is a string", "POST", nil, `{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}`, 400, -32600},
		{"two methods", "POST", nil, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","Method":"ping"}`, 400, -32600},
		{"null id", "POST", nil, `{"jsonrpc":"2.0","id":null,"method":"ping"}`, 400, -32600},
		{"fractional id", "POST", nil, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, 400, -32600},
		{"huge id", "POST", nil, `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, 400, -32600},
		{"empty batch", "POST", nil, `[]`, 400, -32600},
		{"batch on a new revision", "POST", legacy, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 400, -32600},
		{"unknown method", "POST", nil, `{"jsonrpc":"2.0","id":1,"method":"no/such"}`, 200, -32601},
		{"unknown method in a session", "POST", legacy, `{"jsonrpc":"2.0","id":1,"method":"no/such"}`, 200, -32601},
		{"unknown tool", "POST", legacy, toolCall(1, "no_such", "{}"), 200, -32601},
		{"no tool name", "POST", legacy, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, 200, -32602},
		{"no params", "POST", legacy, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, 400, -32600},
		{"tool name is a number", "POST", legacy, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}`, 200, -32602},
		{"duplicate initialize", "POST", legacy, initBody, 200, -32600},
		{"unknown session", "POST", header{"Accept": mcpAccept, "Mcp-Session-Id": "nope"}, toolCall(1, "get_sessions", "{}"), 404, -32000},
		{"content type", "POST", header{"Accept": mcpAccept, "Content-Type": "text/plain"}, `{}`, 415, -32600},
		{"accept", "POST", header{"Accept": "text/html"}, toolCall(1, "get_sessions", "{}"), 406, -32600},
		{"accept in a session", "POST", header{"Accept": "application/json", "Mcp-Session-Id": legacy["Mcp-Session-Id"]}, toolCall(1, "get_sessions", "{}"), 406, -32600},
		{"protocol version", "POST", header{"Accept": mcpAccept, "Mcp-Protocol-Version": "1999-01-01"}, toolCall(1, "get_sessions", "{}"), 400, -32600},
		{"too large", "POST", nil, toolCall(1, "execute_code", `{"code":"`+strings.Repeat("x", 70<<10)+`"}`), 413, -32600},
		{"GET of a page", "GET", header{"Accept": "image/png"}, ``, 406, -32600},
		{"GET without a session", "GET", header{"Accept": "text/event-stream"}, ``, 405, -32000},
		{"DELETE without a session", "DELETE", nil, ``, 400, -32600},
		{"DELETE of an unknown session", "DELETE", header{"Mcp-Session-Id": "nope"}, ``, 404, -32000},
		{"GET on a new revision", "GET", header{"Accept": "text/event-stream", "Mcp-Protocol-Version": "2026-07-28"}, ``, 405, -32000},
		{"GET of an unknown session", "GET", header{"Accept": "text/event-stream", "Mcp-Session-Id": "nope"}, ``, 404, -32000},
		{"GET after no event", "GET", with(legacy, "Accept", "text/event-stream", "Last-Event-ID", "x"), ``, 400, -32600},
		{"DELETE on a new revision", "DELETE", header{"Mcp-Protocol-Version": "2026-07-28"}, ``, 405, -32000},
		{"unknown method in an unknown session", "POST", header{"Accept": mcpAccept, "Mcp-Session-Id": "nope"}, `{"jsonrpc":"2.0","id":1,"method":"no/such"}`, 404, -32000},
		{"a compressed body", "POST", header{"Accept": mcpAccept, "Content-Encoding": "gzip"}, ping, 415, -32600},
		{"initialize in a batch", "POST", nil, `[` + initBody + `]`, 400, -32600},
		{"too many in a batch", "POST", nil, `[` + strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/initialized"},`, 256) + ping + `]`, 400, -32600},
		{"an endless id", "POST", nil, `{"jsonrpc":"2.0","id":1` + strings.Repeat("0", 64) + `,"method":"ping"}`, 400, -32600},
		{"a listener in a batch", "POST", nil, `[` + ping + `,{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{"notifications":{}}}]`, 400, -32600},
		{"unknown method in a batch", "POST", nil, `[` + ping + `,{"jsonrpc":"2.0","id":2,"method":"no/such"}]`, 400, -32601},
		{"one id twice in a batch", "POST", nil, `[{"jsonrpc":"2.0","id":7,"method":"ping"},{"jsonrpc":"2.0","id":7.0,"method":"ping"}]`, 400, -32600},
		{"no message in a batch", "POST", nil, `[` + ping + `,5]`, 400, -32600},
		{"batch in a new session without a version", "POST", with(legacy, "Mcp-Protocol-Version", ""), `[` + ping + `]`, 400, -32600},
		{"batch on the newest revision", "POST", header{"Accept": mcpAccept, "Mcp-Protocol-Version": "2026-07-28"}, `[` + ping + `]`, 400, -32600},
		{"PUT", "PUT", nil, ``, 405, -32000},
		{"PATCH", "PATCH", nil, ``, 405, -32000},
		{"origin", "POST", header{"Accept": mcpAccept, "Origin": "https://evil.example"}, toolCall(1, "get_sessions", "{}"), 403, -32000},
		{"null origin", "GET", header{"Origin": "null"}, ``, 403, -32000},
		{"host", "POST", header{"Accept": mcpAccept, "Host": "evil.example"}, toolCall(1, "get_sessions", "{}"), 403, -32000},
		{"host of the status", "GET", header{"Host": "evil.example:8775"}, ``, 403, -32000},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, body := do(t, c.method, url, c.header, c.body)
			if res.StatusCode != c.status {
				t.Fatalf("status %d, want %d: %s", res.StatusCode, c.status, body)
			}
			r := parse(t, body)
			if r.Error == nil || r.Error.Code != c.code || r.Error.Message == "" {
				t.Fatalf("got %s, want code %d", body, c.code)
			}
			if c.status == 405 && res.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
			if c.status >= 400 && res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("content type %q", res.Header.Get("Content-Type"))
			}
		})
	}
	// The server and the session are unharmed.
	if _, body := do(t, "POST", url, legacy, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); parse(t, body).Error != nil {
		t.Errorf("ping after all that: %s", body)
	}
}

func TestUnknownTool_ModernClient(t *testing.T) {
	_, url := serve(t, nil)
	h, body := modernCall(7, "execute_cod", "{}")
	res, out := do(t, "POST", url, h, body)
	r := parse(t, out)
	if res.StatusCode != 400 || r.Error == nil || r.Error.Code != -32602 || string(r.ID) != "7" ||
		!strings.Contains(r.Error.Message, "'execute_code'") || r.Error.Data.ErrorCode != "TOOL_NOT_FOUND" {
		t.Errorf("got %s %s", res.Status, out)
	}
	h["Mcp-Method"] = "completion/complete"
	delete(h, "Mcp-Name")
	body = strings.Replace(body, "tools/call", "completion/complete", 1)
	if res, out := do(t, "POST", url, h, body); res.StatusCode != 404 || parse(t, out).Error.Code != -32601 {
		t.Errorf("completion/complete: got %s %s", res.Status, out)
	}
}

// TestLists_AreNotCachedForOthers: lists differ between owners, so shared caches must not
// store them.
func TestLists_AreNotCachedForOthers(t *testing.T) {
	_, url := serve(t, nil)
	h := header{"Accept": mcpAccept, "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
	if res, body := do(t, "POST", url, h, modernBody(1, "tools/list", `"cursor":""`)); res.StatusCode != 200 || !strings.Contains(body, `"cacheScope":"private"`) {
		t.Errorf("got %s %.300s", res.Status, body)
	}
}

func TestStatus(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Status = func(context.Context) map[string]any { return map[string]any{"sessions": 3} }
	})
	for _, accept := range []string{"", "*/*", "application/json"} {
		res, body := do(t, "GET", url, header{"Accept": accept}, "")
		var page struct {
			Status    string   `json:"status"`
			Version   string   `json:"version"`
			Started   bool     `json:"wrapper_started"`
			Count     int      `json:"tools_count"`
			Available []string `json:"available_tools"`
			Sessions  int      `json:"sessions"`
		}
		if err := json.Unmarshal([]byte(body), &page); err != nil || res.StatusCode != 200 {
			t.Fatalf("Accept %q: %s %s", accept, res.Status, body)
		}
		if page.Status != "healthy" || page.Version != "test" || !page.Started || page.Count != catalogueSize() || len(page.Available) != page.Count || page.Sessions != 3 {
			t.Errorf("Accept %q: got %+v", accept, page)
		}
	}
	root := strings.TrimSuffix(url, "/mcp")
	if res, body := do(t, "GET", root+"/health", header{}, ""); res.StatusCode != 200 || !strings.Contains(body, `"healthy"`) {
		t.Errorf("health: %s %s", res.Status, body)
	}
	if res, _ := do(t, "GET", root+"/nope", header{}, ""); res.StatusCode != 404 {
		t.Errorf("/nope: %s", res.Status)
	}
	if res, _ := do(t, "GET", root+"/", header{}, ""); res.StatusCode != 200 {
		t.Errorf("/: %s", res.Status)
	}
}

// TestRequests_WithoutSession: first-generation clients send a call without a handshake.
func TestRequests_WithoutSession(t *testing.T) {
	_, url := serve(t, nil)
	for _, h := range []header{{}, {"Accept": "*/*"}, {"Accept": "application/json"}, nil} {
		res, body := do(t, "POST", url, h, `{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{}}`)
		r := parse(t, body)
		if res.StatusCode != 200 || r.Error != nil || string(r.ID) != `"a"` || !bytes.Contains(r.Result, []byte(`"execute_code"`)) {
			t.Errorf("%v: tools/list: %s %.300s", h, res.Status, body)
		}
		if h != nil && res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%v: content type %q", h, res.Header.Get("Content-Type"))
		}
		_, body = do(t, "POST", url, h, toolCall(2, "get_sessions", `{}`))
		if r := parse(t, body); r.Error != nil || !bytes.Contains(r.Result, []byte(`"structuredContent":{"sessions":[]}`)) {
			t.Errorf("%v: tools/call: %s", h, body)
		}
	}
	res, _ := do(t, "POST", url, nil, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if res.StatusCode != 202 {
		t.Errorf("notification: %s", res.Status)
	}
	res, body := do(t, "POST", url, header{"Accept": "*/*"}, `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"tools/list"}]`)
	if res.StatusCode != 200 || !strings.HasPrefix(body, "[") {
		t.Errorf("batch: %s %.200s", res.Status, body)
	}
}

func TestPanic(t *testing.T) {
	_, url := serve(t, func(o *Options) {
		o.Extend.Tools = []Tool{
			extra("boom", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { panic("boom") }),
			extra("plain", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return nil, fmt.Errorf("plain")
			}),
		}
	})
	h := session(t, url)
	for _, tool := range []string{"boom", "plain"} {
		_, body := do(t, "POST", url, h, toolCall(1, tool, "{}"))
		if r := parse(t, body); r.Error == nil || r.Error.Code != -32603 {
			t.Errorf("%s: %s", tool, body)
		}
	}
}

// extra is a tool without arguments that needs a session.
func extra(name string, handler mcp.ToolHandler) Tool {
	def := &mcp.Tool{Name: name, Description: name, InputSchema: json.RawMessage(`{"type":"object"}`)}
	return Tool{Def: def, Handler: handler}
}

// slow is a tool that waits for a channel or its cancellation.
func slow(release <-chan struct{}, started chan<- struct{}) []Tool {
	return []Tool{extra("slow", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		started <- struct{}{}
		select {
		case <-release:
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})}
}

func TestHeartbeat(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 1)
	_, url := serve(t, func(o *Options) {
		o.Limits.Heartbeat = 20 * time.Millisecond
		o.Extend.Tools = slow(release, started)
	})
	h := session(t, url)
	h2 := header{"Accept": "application/json, text/event-stream", "Mcp-Session-Id": h["Mcp-Session-Id"], "Mcp-Protocol-Version": "2025-06-18"}
	for _, h := range []header{h, h2} {
		body := doAfterBeats(t, url, h, toolCall(1, "slow", "{}"), func() { release <- struct{}{} })
		if !strings.Contains(body, "done") {
			t.Errorf("got %q", body)
		}
		<-started
	}
}

func TestDelete_CancelsCalls(t *testing.T) {
	started := make(chan struct{}, 1)
	_, url := serve(t, func(o *Options) { o.Extend.Tools = slow(nil, started) })
	h := session(t, url)
	ended := make(chan string, 1)
	go func() {
		_, body := do(t, "POST", url, h, toolCall(1, "slow", "{}"))
		ended <- body
	}()
	<-started
	begin := time.Now()
	res, body := do(t, "DELETE", url, h, "")
	if res.StatusCode != 204 || time.Since(begin) > 20*time.Second {
		t.Errorf("DELETE: %s %s after %v", res.Status, body, time.Since(begin))
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the call did not end")
	}
	if res, _ := do(t, "POST", url, h, toolCall(1, "slow", "{}")); res.StatusCode != 404 {
		t.Errorf("after DELETE: %s", res.Status)
	}
}

func TestDrain(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 2)
	s, url := serve(t, func(o *Options) { o.Extend.Tools = slow(release, started) })
	h := session(t, url)
	other := session(t, url)
	bodies := make(chan string, 2)
	for i, h := range []header{h, other} {
		go func() {
			_, body := do(t, "POST", url, h, toolCall(i, "slow", "{}"))
			bodies <- body
		}()
		<-started
	}
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(ctx) }()
	eventually(t, "the server drains", s.draining.Load)
	res, body := do(t, "POST", url, h, `{"jsonrpc":"2.0","id":9,"method":"ping"}`)
	if r := parse(t, body); res.StatusCode != 503 || r.Error == nil || string(r.ID) != "9" {
		t.Errorf("while draining: %s %s", res.Status, body)
	}
	release <- struct{}{} // one call ends by itself, the other is cancelled
	done, cancelled := 0, 0
	for range 2 {
		switch body := <-bodies; {
		case strings.Contains(body, "done"):
			done++
		case strings.Contains(body, "shutting down"):
			cancelled++
		default:
			t.Errorf("got %q", body)
		}
	}
	if done != 1 || cancelled != 1 {
		t.Errorf("%d done and %d cancelled, want one each", done, cancelled)
	}
	if err := <-ended; err != nil {
		t.Errorf("shutdown: %v", err)
	}
}
