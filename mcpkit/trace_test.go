package mcpkit

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/cassette"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/transcript"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Traces of every transport can be played.
func TestTrace_CanBePlayed(t *testing.T) {
	for name, def := range servers(t) {
		t.Run(name, func(t *testing.T) {
			var trace closer
			m := manager(t, Options{Trace: func(string) io.WriteCloser { return &trace }}, def)
			s := session(t, m, name)
			wantCall(t, s, "echo", map[string]any{"text": "hello"}, "hello")
			tools, err := s.Tools(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.ReadResource(t.Context(), "test://r"); err != nil {
				t.Fatal(err)
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			trace.mu.Lock()
			text := trace.b.String()
			trace.mu.Unlock()
			if trace.closed != 1 {
				t.Errorf("closed %d times", trace.closed)
			}
			if overHTTP := def.URL != nil; overHTTP != strings.Contains(text, `"http":{"method":"POST","url":"http://`) {
				t.Errorf("heads of requests:\n%s", text)
			}
			r, err := cassette.Read(strings.NewReader(text))
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			m = manager(t, Options{
				Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil },
				Dial:  func(context.Context, *mcpjson.Server) (mcp.Connection, error) { return cassette.NewPlayer(r), nil },
			}, &mcpjson.Server{Name: name})
			s = session(t, m, name)
			wantCall(t, s, "echo", map[string]any{"text": "hello"}, "hello")
			if again, err := s.Tools(t.Context()); err != nil || len(again) != len(tools) {
				t.Errorf("%d tools, %v, want %d", len(again), err, len(tools))
			}
			if res, err := s.ReadResource(t.Context(), "test://r"); err != nil || res.Contents[0].Text != "resource" {
				t.Errorf("%v, %v", res, err)
			}
			if _, err := call(t, s, "echo", map[string]any{"text": "other"}); !cassette.IsNotRecorded(err) {
				t.Errorf("a request that was not recorded: %v", err)
			}
		})
	}
}

// Traces contain no secret of a definition, header or body.
func TestTrace_HasNoSecrets(t *testing.T) {
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer() }, nil)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret-token" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "sid", Value: "c00kie"})
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(ts.Close)
	def := endpoint("srv", ts.URL+"/mcp?key=in-the-query")
	def.BearerTokenEnv = "TOKEN"
	def.Headers = []mcpjson.Pair{{Name: "X-Team", Value: mcpjson.Literal("team-of-mine")}}
	var trace closer
	m := manager(t, Options{
		Trace:    func(string) io.WriteCloser { return &trace },
		Resolver: mcpjson.Resolver{Env: func(string) (string, bool) { return "s3cret-token", true }},
	}, def)
	wantCall(t, session(t, m, "srv"), "echo", map[string]any{"text": "it is s3cret-token"}, "it is s3cret-token")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	text := trace.b.String()
	for _, never := range []string{"s3cret-token", "c00kie", "in-the-query", "team-of-mine"} {
		if strings.Contains(text, never) {
			t.Errorf("the trace contains %s", never)
		}
	}
	for _, want := range []string{`"Authorization":["••••"]`, `"Set-Cookie":["••••"]`, `"X-Team":["••••"]`, `"Mcp-Session-Id":["••••"]`, `"Content-Type":["application/json"]`,
		`"status":200`, `/mcp?••••"`, `it is ••••`, `"method":"DELETE"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the trace lacks %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Events are passed on while they are read, however the reads are split. Events larger
// than a message are not kept.
func TestMessageTap_SplitReads(t *testing.T) {
	const one, two = `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":2,"result":{}}`
	text := ": hello\r\nevent: endpoint\ndata: /messages\n\nid: 1\r\ndata: " + one + "\r\n\r\ndata: " + strings.Repeat("x", 5000) + "\ndata: y\n\n" +
		"data: {\"jsonrpc\":\"2.0\",\ndata:\"id\":2,\"result\":{}}\n\nid: 3\n\ndata: {\"cut"
	for _, size := range []int{1, 2, 7, 100, len(text)} {
		var out bytes.Buffer
		w := &httpTracer{w: transcript.NewWriter(&out, "srv", nil), max: 1000}
		h := &messageTap{ReadCloser: io.NopCloser(strings.NewReader(text)), onMessage: w.received, max: w.max, events: true}
		buf, got := make([]byte, size), 0
		for {
			n, err := h.Read(buf)
			got += n
			if err != nil {
				break
			}
		}
		if got != len(text) {
			t.Errorf("in pieces of %d: %d bytes came through, want %d", size, got, len(text))
		}
		if lines := strings.Count(out.String(), "\n"); lines != 3 || !strings.Contains(out.String(), one) || !strings.Contains(out.String(), two) {
			t.Errorf("in pieces of %d:\n%s", size, out.String())
		}
		if cap(h.buf)+cap(h.data) > 4*w.max {
			t.Errorf("in pieces of %d: %d bytes are kept", size, cap(h.buf)+cap(h.data))
		}
	}
}

// The output of a program is logged as its definition says. A log that cannot be
// written causes a warning.
func TestD6_StdoutLog(t *testing.T) {
	dir := t.TempDir()
	def := program("srv", "answers-in-batches")
	def.Dir = dir
	def.StdoutLog = &mcpjson.StdoutLog{Path: "logs/srv.log", MaxBytesPerPart: 100_000, MaxParts: 2}
	m := manager(t, Options{}, def)
	for range 3 {
		wantCall(t, session(t, m, "srv"), "odd", nil, "good")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, name := range []string{"srv.segment-0001.log", "srv.log"} {
		b, err := os.ReadFile(filepath.Join(dir, "logs", name))
		if err != nil && name == "srv.log" {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	if got := bytes.Count(all, []byte(`"text":"good"`)); got < 1 {
		t.Errorf("%d answers are kept:\n%.2000s", got, all)
	}
	if bytes.Contains(all, []byte(`"method":"tools/call"`)) {
		t.Error("the log contains sent messages")
	}

	var warned bytes.Buffer
	def.StdoutLog.Path = "file/srv.log"
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m = manager(t, Options{Log: slog.New(slog.NewTextHandler(&warned, nil))}, def)
	wantCall(t, session(t, m, "srv"), "good", nil, "good")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(warned.String(), "log of mcp server is not written") {
		t.Errorf("the warning is %q", warned.String())
	}
}

// However the reads are split, the tap passes on the same messages.
func FuzzMessageTap(f *testing.F) {
	f.Add([]byte("id: 1\r\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"x\"}\r\n\r\n: on\n\n"), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		heardIn := func(size int) string {
			var out bytes.Buffer
			w := &httpTracer{w: transcript.NewWriter(&out, "srv", nil), max: 100}
			h := &messageTap{ReadCloser: io.NopCloser(bytes.NewReader(text)), onMessage: w.received, max: w.max, events: true}
			if b, err := io.ReadAll(pieces{h, size}); err != nil || !bytes.Equal(b, text) {
				t.Fatalf("%q came through as %q, %v", text, b, err)
			}
			var messages []string
			for l := range strings.Lines(out.String()) {
				_, message, _ := strings.Cut(l, `"direction"`) // without its time
				messages = append(messages, message)
			}
			return strings.Join(messages[1:], "")
		}
		if one, all := heardIn(1+int(size)), heardIn(len(text)+1); one != all {
			t.Errorf("%q in pieces of %d: got\n%s, want\n%s", text, 1+int(size), one, all)
		}
	})
}

// pieces splits reads.
type pieces struct {
	io.Reader
	size int
}

func (r pieces) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), r.size)]) }

// Logs of standard error and of messages are rotated, whatever the servers' names.
func TestD6_LogDir_Rotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	m := manager(t, Options{LogDir: dir, Limits: Limits{LogPart: 4 << 10, LogParts: 3}}, program("../a b", "good"), program("plain", "good"))
	said := strings.Repeat("x", 1000)
	for range 20 {
		wantCall(t, session(t, m, "../a b"), "echo", map[string]any{"text": said}, said)
	}
	for range 2 { // a connection each
		if _, err := call(t, session(t, m, "plain"), "crash", nil); err == nil {
			t.Error("a crash: no error")
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
		name := regexp.MustCompile(`segment-\d+`).ReplaceAllString(e.Name(), "segment")
		got[name] += string(b)
		if name == "..%2Fa%20b.wire.segment.jsonl" && (len(b) > 4<<10 || !strings.HasSuffix(string(b), "}\n")) {
			t.Errorf("%s has %d bytes and ends with %q", e.Name(), len(b), b[max(0, len(b)-10):])
		}
	}
	if n := strings.Count(got["plain.stderr.log"], "out of luck\n"); n != 2 {
		t.Errorf("the error stream of two connections: %q", got["plain.stderr.log"])
	}
	if n := strings.Count(got["plain.wire.jsonl"]+got["plain.wire.segment.jsonl"], `"cassette":1`); n != 2 {
		t.Errorf("the wire has %d connections, want 2", n)
	}
	parts := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..%2Fa%20b.wire.") {
			parts++
		}
	}
	if parts != 3 || !strings.Contains(got["..%2Fa%20b.wire.jsonl"]+got["..%2Fa%20b.wire.segment.jsonl"], said) {
		t.Errorf("%d parts, want 3", parts)
	}

	// A directory that cannot be one costs a warning for each log, and nothing else.
	var warned bytes.Buffer
	m = manager(t, Options{LogDir: filepath.Join(dir, "plain.stderr.log"), Log: slog.New(slog.NewTextHandler(&warned, nil))}, program("srv", "good"))
	wantCall(t, session(t, m, "srv"), "echo", map[string]any{"text": "x"}, "x")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(warned.String(), "is not written"); n != 2 {
		t.Errorf("the warning is %q", warned.String())
	}
}
