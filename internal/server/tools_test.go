package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// connect returns a session of the SDK's client; version "" is the newest.
func connect(tb testing.TB, t mcp.Transport, version string, opts *mcp.ClientOptions) *mcp.ClientSession {
	tb.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	cs, err := c.Connect(tb.Context(), t, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cs.Close() })
	return cs
}

type args = map[string]any

// try calls a tool.
func try(tb testing.TB, cs *mcp.ClientSession, tool string, a any) (*mcp.CallToolResult, error) {
	tb.Helper()
	return cs.CallTool(tb.Context(), &mcp.CallToolParams{Name: tool, Arguments: a})
}

// must calls a tool and returns its structured content and its first text.
func must(tb testing.TB, cs *mcp.ClientSession, tool string, a any) (map[string]any, string) {
	tb.Helper()
	res, err := try(tb, cs, tool, a)
	if err != nil {
		tb.Fatalf("%s %v: %v", tool, a, err)
	}
	m, _ := res.StructuredContent.(map[string]any)
	return m, text(tb, res)
}

func text(tb testing.TB, res *mcp.CallToolResult) string {
	tb.Helper()
	if len(res.Content) == 0 {
		tb.Fatal("a result without content")
	}
	c, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		tb.Fatalf("first content is %T", res.Content[0])
	}
	return c.Text
}

// catalogueSize returns the number of tools without code mode.
func catalogueSize() (n int) {
	for _, t := range tools.All() {
		if t.In(tools.Offer{}) {
			n++
		}
	}
	return n
}

// everything uses every tool of the catalogue once and more.
func everything(t *testing.T, cs *mcp.ClientSession) {
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != catalogueSize() {
		t.Errorf("%d tools are listed, want %d", len(list.Tools), catalogueSize())
	}

	// Sessions.
	m, out := must(t, cs, "execute_code", args{"code": "x = 45\nprint(x)"})
	id, _ := m["session_id"].(string)
	if !strings.HasPrefix(out, "45\n[session "+id+" new · ") || id == "" || m["language"] != "python" || m["session_created"] != true || m["success"] != true || m["template"] != "python" || m["flavor"] != "small" {
		t.Errorf("execute_code: %q %v", out, m)
	}
	m, out = must(t, cs, "execute_code", args{"params": args{"code": "import sys\nprint(x, file=sys.stderr)\nx + 1", "session_id": id}})
	if !strings.Contains(out, "46") || !strings.Contains(out, "\n45\n[session "+id[:12]+"… · ") || m["session_created"] != false || m["success"] != true || m["stderr"] != "45\n" {
		t.Errorf("execute_code in a session: %q %v", out, m)
	}
	res, err := try(t, cs, "execute_code", args{"code": "1/0", "session_id": id})
	if err != nil || !res.IsError || !strings.Contains(text(t, res), "ZeroDivisionError") {
		t.Errorf("execute_code 1/0: %v %+v", err, res)
	}
	m, out = must(t, cs, "execute_command", args{"command": "echo hi | tr a-z A-Z", "session_id": id})
	if !strings.HasPrefix(out, "HI\n[session "+id[:12]+"… · exit 0 · ") || m["exit_code"] != 0.0 || m["success"] != true {
		t.Errorf("execute_command: %q %v", out, m)
	}
	m, out = must(t, cs, "execute_command", args{"command": "echo", "args": []string{"a | b", "$HOME"}, "session_id": id})
	if !strings.HasPrefix(out, "a | b $HOME\n[") {
		t.Errorf("execute_command with args: %q %v", out, m)
	}
	res, err = try(t, cs, "execute_command", args{"command": "no-such-program-at-all", "session_id": id})
	if m, _ := res.StructuredContent.(map[string]any); err != nil || !res.IsError || m["exit_code"] != 127.0 || fmt.Sprint(m["notes"]) != "[Exit code 127: the command was not found.]" {
		t.Errorf("execute_command of nothing: %v %+v", err, res)
	}
	m, out = must(t, cs, "get_sessions", args{})
	if list, _ := m["sessions"].([]any); len(list) != 1 || !strings.Contains(out, id) {
		t.Errorf("get_sessions: %s", out)
	}
	if m, _ = must(t, cs, "get_sessions", args{"session_id": "other"}); len(m["sessions"].([]any)) != 0 {
		t.Errorf("get_sessions of another: %v", m)
	}
	for _, tool := range []string{"get_volume_path", "get_volume_mappings"} {
		if _, out = must(t, cs, tool, nil); out != "[]" {
			t.Errorf("%s: %q", tool, out)
		}
	}

	// Files of the session.
	res, err = try(t, cs, "upload_file", args{"session_id": id, "path": "~/dir/a.txt", "content": "héllo", "mode": "0600"})
	if err != nil {
		t.Fatal(err)
	}
	if m, _ = res.StructuredContent.(map[string]any); m["size"] != 6.0 || m["session_id"] != id || len(res.Meta["glovebox/sha256"].(string)) != 64 {
		t.Errorf("upload_file: %+v", res)
	}
	m, _ = must(t, cs, "download_file", args{"session_id": id, "path": "dir/a.txt"})
	if m["content"] != "héllo" || m["encoding"] != "utf-8" || m["truncated"] != false {
		t.Errorf("download_file: %v", m)
	}
	m, _ = must(t, cs, "download_file", args{"session_id": id, "path": "dir/a.txt", "max_bytes": 2})
	if m["content"] != "h" || m["truncated"] != true || m["size"] != 6.0 {
		t.Errorf("download_file, cut: %v", m)
	}
	png := append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte{0xff, 0}, 10)...)
	must(t, cs, "upload_file", args{"session_id": id, "path": "p.png", "content": base64.StdEncoding.EncodeToString(png), "encoding": "base64"})
	res, err = try(t, cs, "download_file", args{"session_id": id, "path": "p.png"})
	if err != nil || len(res.Content) != 2 {
		t.Errorf("download_file of a picture: %v %+v", err, res)
	} else if img, ok := res.Content[1].(*mcp.ImageContent); !ok || img.MIMEType != "image/png" || !bytes.Equal(img.Data, png) {
		t.Errorf("download_file of a picture: %+v", res.Content[1])
	} else if text := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, "encoding base64") {
		t.Errorf("download_file of a picture: %q does not say how a client without images gets the bytes", text)
	}
	m, _ = must(t, cs, "download_file", args{"session_id": id, "path": "p.png", "encoding": "base64"})
	if m["type"] != "image/png" || m["content"] != base64.StdEncoding.EncodeToString(png) {
		t.Errorf("download_file of a picture as base64: %v", m)
	}
	m, _ = must(t, cs, "list_files", args{"session_id": id, "depth": 2})
	if out := fmt.Sprint(m); !strings.Contains(out, "a.txt") || !strings.Contains(out, "0600") || !strings.Contains(out, "p.png") {
		t.Errorf("list_files: %v", m)
	}
	if _, out = must(t, cs, "stop_session", args{"session_id": id}); out != "Session "+id+" stopped successfully" {
		t.Errorf("stop_session: %q", out)
	}
	if m, out = must(t, cs, "stop_session", args{"session_id": id}); out != "Session "+id+" not found" || m["success"] != false {
		t.Errorf("stop_session again: %q", out)
	}

	// Contexts.
	m, out = must(t, cs, "create_context", args{"name": "bob", "description": "d"})
	ctx, _ := m["context_id"].(string)
	if !strings.HasPrefix(ctx, "ctx-") || m["language"] != "python" || m["status"] != "active" || m["message"] != "Python context created successfully" || !strings.Contains(out, "\n  \"name\": \"bob\"") {
		t.Errorf("create_context: %s", out)
	}
	m, out = must(t, cs, "run_code", args{"code": "x = 42\nprint('<', x)", "context_id": ctx})
	if m["stdout"] != "< 42\n" || m["success"] != true || !strings.Contains(out, `"stdout": "< 42\n"`) {
		t.Errorf("run_code: %s", out)
	}
	m, _ = must(t, cs, "run_code", args{"code": "undefined_variable + x", "context_id": "bob"})
	if m["success"] != false || !strings.Contains(m["stderr"].(string), "NameError") {
		t.Errorf("run_code of a mistake: %v", m)
	}
	m, _ = must(t, cs, "list_contexts", args{})
	if m["total"] != 1.0 {
		t.Errorf("list_contexts: %v", m)
	}
	m, _ = must(t, cs, "stop_context", args{"context_id": ctx})
	if m["status"] != "stopped" || m["context_id"] != ctx {
		t.Errorf("stop_context: %v", m)
	}
	if _, out = must(t, cs, "run_code", args{"code": "1", "context_id": ctx}); !strings.Contains(out, `"code": "CONTEXT_NOT_FOUND"`) {
		t.Errorf("run_code in what was stopped: %s", out)
	}
}

func TestTools_OverHTTP(t *testing.T) {
	for _, version := range []string{"", "2025-11-25", "2024-11-05"} {
		t.Run("revision "+version, func(t *testing.T) {
			_, url := serve(t, withBoxes(t, nil))
			everything(t, connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, nil))
		})
	}
}

// TestTools_OverStdio also checks that standard output has nothing but the protocol.
func TestTools_OverStdio(t *testing.T) {
	for _, version := range []string{"", "2025-11-25"} {
		t.Run("revision "+version, func(t *testing.T) {
			opts := Options{Log: testLog(t)}
			withBoxes(t, nil)(&opts)
			s := New(opts)
			inR, inW := io.Pipe()
			outR, outW := io.Pipe()
			served := make(chan error, 1)
			go func() {
				err := s.ServeStdio(t.Context(), inR, outW)
				outW.Close()
				served <- err
			}()
			clientR, tee := io.Pipe()
			read := make(chan struct{})
			go func() {
				defer close(read)
				defer tee.Close()
				sc := bufio.NewScanner(outR)
				sc.Buffer(nil, 16<<20)
				for sc.Scan() {
					var m struct {
						V string `json:"jsonrpc"`
					}
					if err := json.Unmarshal(sc.Bytes(), &m); err != nil || m.V != "2.0" {
						t.Errorf("a line that is no JSON-RPC: %q", sc.Text())
					}
					if _, err := fmt.Fprintf(tee, "%s\n", sc.Bytes()); err != nil {
						break
					}
				}
				_, _ = io.Copy(io.Discard, outR)
			}()
			cs := connect(t, &mcp.IOTransport{Reader: clientR, Writer: inW}, version, nil)
			everything(t, cs)
			_ = cs.Close()
			_ = clientR.Close()
			select {
			case err := <-served:
				if err != nil {
					t.Errorf("serve: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the session does not end")
			}
			<-read
		})
	}
}

func TestTools_InvalidArguments(t *testing.T) {
	for _, protocol := range []bool{false, true} {
		t.Run(fmt.Sprintf("protocol=%v", protocol), func(t *testing.T) { badInputs(t, protocol) })
	}
}

// badInputs: every mistake in arguments is reported, by results that the model reads or
// by errors of the protocol.
func badInputs(t *testing.T, protocol bool) {
	boxes := withBoxes(t, func(c *box.Config) { c.MaxSessions = 3; c.Evict = false })
	_, url := serve(t, func(o *Options) { boxes(o); o.Tools.ProtocolErrors = protocol })
	for _, version := range []string{"", "2025-11-25"} {
		cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, nil)
		big := strings.Repeat("# 0123456789\n", 10<<20/13)
		for _, c := range []struct {
			tool string
			args any
			code int64  // of the protocol error, where there are any; 0: a result
			want string // in the error or the text of the result
		}{
			{"execute_code", args{}, -32602, "Missing required parameter: code"},
			{"execute_code", args{"code": ""}, -32602, "must not be empty"},
			{"execute_code", args{"code": 1}, -32602, "must be a string"},
			{"execute_code", args{"code": "1", "x": 1}, -32602, "Unknown parameter: x"},
			{"execute_code", args{"code": "1", "template": "ruby"}, -32602, "Template not found: ruby"},
			{"execute_code", args{"code": "1", "flavor": "huge"}, -32602, "Unsupported flavor: huge"},
			{"execute_code", args{"code": "1", "timeout": 0}, -32602, "must be >= 1"},
			{"execute_code", args{"code": "1", "timeout": -1}, -32602, "must be >= 1"},
			{"execute_code", args{"code": "1", "timeout": 1e9}, -32602, "must be <= 300"},
			{"execute_code", args{"code": "1", "session_id": "../../etc"}, -32602, ""},
			{"execute_code", args{"code": "1", "session_id": strings.Repeat("x", 5000)}, -32602, ""},
			{"execute_command", args{"command": "a\x00b", "session_id": "s"}, -32602, ""},
			{"stop_session", args{}, -32602, "Missing required parameter: session_id"},
			{"run_code", args{"context_id": "x"}, 0, `"code": "INVALID_PARAMS"`},
			{"run_code", args{"code": "1", "context_id": "ctx-none"}, 0, `"error": "Context not found: ctx-none`},
			{"run_code", args{"code": "1", "context_id": 3}, 0, "INVALID_PARAMS"},
			{"create_context", args{}, 0, "INVALID_PARAMS"},
			{"create_context", args{"name": "a/b"}, 0, "INVALID_CONTEXT_NAME"},
			{"create_context", args{"name": "  "}, 0, "INVALID_CONTEXT_NAME"},
			{"create_context", args{"name": "x", "language": "ruby"}, 0, "Unsupported language: ruby. Must be 'python' or 'javascript'"},
			{"stop_context", args{"context_id": "ctx-none"}, 0, "CONTEXT_NOT_FOUND"},
			{"list_files", args{"path": "a"}, 0, "INVALID_PARAMS"},
			{"upload_file", args{"path": "a", "content": "b", "session_id": "s", "context_id": "c"}, 0, "not both"},
			{"upload_file", args{"path": "/etc/glovebox-test", "content": "b", "session_id": "s"}, 0, "PATH_NOT_ALLOWED"},
			{"upload_file", args{"path": "../../../../../../etc/x", "content": "b", "session_id": "s"}, 0, "PATH_NOT_ALLOWED"},
			{"upload_file", args{"path": "a\x00b", "content": "b", "session_id": "s"}, 0, `"code"`},
			{"upload_file", args{"path": "a", "content": "***", "encoding": "base64", "session_id": "s"}, 0, "must be base64"},
			{"upload_file", args{"path": "a", "content": "b", "mode": "9", "session_id": "s"}, 0, "octal"},
			{"upload_file", args{"path": "a", "content": strings.Repeat("x", 24<<20), "session_id": "s"}, 0, "FILE_TOO_LARGE"},
			{"download_file", args{"path": "nothing", "session_id": "s"}, 0, "FILE_NOT_FOUND"},
			{"download_file", args{"path": "a", "session_id": "unknown"}, 0, "SESSION_NOT_FOUND"},
			{"list_files", args{"path": "nothing", "session_id": "s"}, 0, "FILE_NOT_FOUND"},
			{"list_files", args{"session_id": "s", "depth": 99}, 0, "must be <= 16"},
			{"execute_code", args{"code": "print(1)\x00", "session_id": "s"}, 0, "null bytes"},
			{"execute_code", args{"code": strings.Repeat("#", 17<<20), "session_id": "s"}, -32602, "Code too long"},
		} {
			name := fmt.Sprintf("%q %s %.100v", version, c.tool, c.args)
			if testing.Short() && len(fmt.Sprint(c.args)) > 1<<20 {
				continue // for megabytes the race detector takes a minute
			}
			begin := time.Now()
			res, err := try(t, cs, c.tool, c.args)
			if d := time.Since(begin); d > time.Second {
				t.Logf("%s %.60v took %v", c.tool, c.args, d)
			}
			if c.code != 0 && protocol {
				var e *jsonrpc.Error
				if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Message, c.want) {
					t.Errorf("%s: got %v, %+v, want code %d and %q", name, err, res, c.code, c.want)
					continue
				}
				var data struct {
					ErrorCode   string            `json:"error_code"`
					Category    string            `json:"category"`
					Severity    string            `json:"severity"`
					Suggestions []string          `json:"recovery_suggestions"`
					Context     map[string]string `json:"context"`
				}
				if json.Unmarshal(e.Data, &data) != nil || data.ErrorCode == "" || data.Category == "" || data.Severity == "" || len(data.Suggestions) == 0 || data.Context["tool"] != c.tool {
					t.Errorf("%s: data %s", name, e.Data)
				}
				continue
			}
			if err != nil || !res.IsError || !strings.Contains(text(t, res), c.want) {
				t.Errorf("%s: got %v, %+v, want an error with %q", name, err, res, c.want)
			} else if e, _ := res.Meta["glovebox/error"].(map[string]any); c.code != 0 && e["code"] != float64(c.code) {
				t.Errorf("%s: got metadata %v, want the code %d for programs", name, res.Meta, c.code)
			}
		}
		if m, _ := must(t, cs, "execute_code", args{"code": big + "print('big')", "session_id": "s"}); m["stdout"] != "big\n" {
			t.Errorf("%q: ten megabytes of code: %v", version, m)
		}
		if m, _ := must(t, cs, "execute_code", args{"code": "print(7)", "session_id": "s"}); m["stdout"] != "7\n" {
			t.Errorf("%q: after all that: %v", version, m)
		}
	}
}

func TestTools_LimitError(t *testing.T) {
	boxes := withBoxes(t, func(c *box.Config) { c.MaxSessions = 1; c.Evict = false })
	_, url := serve(t, func(o *Options) { boxes(o); o.Tools.ProtocolErrors = true })
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", nil)
	must(t, cs, "execute_code", args{"code": "1", "session_id": "one"})
	_, err := try(t, cs, "execute_code", args{"code": "1", "session_id": "two"})
	var e *jsonrpc.Error
	if !errors.As(err, &e) || e.Code != -32600 || !strings.HasPrefix(e.Message, "Resource limit exceeded: ") || !strings.Contains(string(e.Data), `"RESOURCE_LIMIT_ERROR"`) {
		t.Errorf("got %v", err)
	}
	_, err = try(t, cs, "execute_code", args{"code": "1", "session_id": "one", "template": "node"})
	if !errors.As(err, &e) || e.Code != -32602 {
		t.Errorf("another template: got %v", err)
	}
}

// The tools of sessions have their own time limit, also in a context.
func TestTools_TimeLimitInContext(t *testing.T) {
	_, url := serve(t, withBoxes(t, func(c *box.Config) { c.ContextTimeout = time.Second }))
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", nil)
	m, _ := must(t, cs, "create_context", args{"name": "bob"})
	id := m["context_id"]
	if m, out := must(t, cs, "execute_command", args{"command": "sleep 1.5; echo over", "session_id": id}); m["stdout"] != "over\n" {
		t.Errorf("execute_command: %q", out)
	}
	if m, out := must(t, cs, "execute_code", args{"code": "import time; time.sleep(1.5); print('over')", "session_id": id}); m["stdout"] != "over\n" {
		t.Errorf("execute_code: %q", out)
	}
}

func TestTools_ProgressAndCancel(t *testing.T) {
	_, url := serve(t, withBoxes(t, nil))
	for _, version := range []string{"", "2025-11-25"} {
		var seen atomic.Int32
		var first atomic.Value
		cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				if seen.Add(1) == 1 {
					first.Store(r.Params.Message)
				}
			},
		})
		p := &mcp.CallToolParams{Name: "execute_code", Arguments: args{
			"session_id": "p" + version, "code": "import time\nfor i in range(6):\n    print('step', i, flush=True)\n    time.sleep(0.2)",
		}}
		p.SetProgressToken("tok")
		res, err := cs.CallTool(t.Context(), p)
		if err != nil || res.IsError {
			t.Fatalf("%q: %v %+v", version, err, res)
		}
		if n := seen.Load(); n < 2 || n > 7 || !strings.Contains(fmt.Sprint(first.Load()), "step 0") {
			t.Errorf("%q: %d notifications, first %v", version, n, first.Load())
		}
		// A cancelled call interrupts the code; the variables are kept.
		must(t, cs, "execute_code", args{"session_id": "p" + version, "code": "kept = 1"})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err = cs.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: args{"session_id": "p" + version, "code": "time.sleep(60)"}})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q: cancelled call: %v", version, err)
		}
		begin := time.Now()
		m, _ := must(t, cs, "execute_code", args{"session_id": "p" + version, "code": "print(kept)"})
		if m["stdout"] != "1\n" || time.Since(begin) > 10*time.Second {
			t.Errorf("%q: after the cancel: %v after %v", version, m, time.Since(begin))
		}
	}
}

// TestStopContext_WaitsForCode: stopping a context waits for its running code.
func TestStopContext_WaitsForCode(t *testing.T) {
	_, url := serve(t, withBoxes(t, nil))
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "", nil)
	m, _ := must(t, cs, "create_context", args{"name": "busy"})
	ctx := m["context_id"].(string)
	must(t, cs, "run_code", args{"context_id": ctx, "code": "import time"})
	mark := filepath.Join(t.TempDir(), "mark")
	ran := make(chan *mcp.CallToolResult, 1)
	go func() {
		res, _ := try(t, cs, "run_code", args{"context_id": ctx, "code": fmt.Sprintf("open(%q, 'w').close()\ntime.sleep(1)\nprint('ended')", mark)})
		ran <- res
	}()
	eventually(t, "the code runs", func() bool { _, err := os.Stat(mark); return err == nil })
	m, _ = must(t, cs, "stop_context", args{"context_id": ctx})
	if m["status"] != "stopped" {
		t.Errorf("stop_context: %v", m)
	}
	if res := <-ran; res == nil || !strings.Contains(text(t, res), "ended") {
		t.Errorf("the code that ran: %+v", res)
	}
}

// TestServer_HTTPAndStdio: one server serves HTTP and stdio at the same time.
func TestServer_HTTPAndStdio(t *testing.T) {
	s, url := serve(t, withBoxes(t, nil))
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	go func() { _ = s.ServeStdio(t.Context(), inR, outW); outW.Close() }()
	std := connect(t, &mcp.IOTransport{Reader: outR, Writer: inW}, "", nil)
	web := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", nil)
	must(t, std, "execute_code", args{"code": "y = 5", "session_id": "shared"})
	if m, _ := must(t, web, "execute_code", args{"code": "print(y)", "session_id": "shared"}); m["stdout"] != "5\n" {
		t.Errorf("got %v", m)
	}
}

func BenchmarkRunCode(b *testing.B) {
	_, url := serve(b, withBoxes(b, nil))
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		b.Run(version, func(b *testing.B) {
			cs := connect(b, &mcp.StreamableClientTransport{Endpoint: url}, version, nil)
			for b.Loop() {
				if _, err := try(b, cs, "run_code", args{"code": "print(1)"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
