package mcpkit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/cassette"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// tasksOnly marks the tool pid as running as a task only, which the SDK's servers
// cannot do.
var tasksOnly = strings.NewReplacer(
	`"name":"pid"`, `"name":"pid","execution":{"taskSupport":"required"}`,
	`"name":"wait"`, `"name":"wait","execution":{"taskSupport":"optional"}`,
	`"name":"env"`, `"name":"env","execution":{}`,
)

// rewriter replaces text in each write. The SDK makes one write for each message.
type rewriter struct{ io.WriteCloser }

func (r rewriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(r.WriteCloser, tasksOnly.Replace(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// rewriting is a rewriter of HTTP responses.
type rewriting struct{ http.ResponseWriter }

func (r rewriting) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r rewriting) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

func (r rewriting) Write(p []byte) (int, error) {
	if _, err := io.WriteString(r.ResponseWriter, tasksOnly.Replace(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// tasksProgram is the server over standard streams.
func tasksProgram() error {
	return newServer().Run(context.Background(), &mcp.IOTransport{Reader: os.Stdin, Writer: rewriter{os.Stdout}})
}

// A tool that runs as a task only is recognized over every transport and from a
// recording, and is not called.
func TestRequiresTask_EveryTransport(t *testing.T) {
	get := func(*http.Request) *mcp.Server { return newServer() }
	overHTTP := func(name string, h http.Handler) *mcpjson.Server {
		ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(rewriting{w}, r) }))
		t.Cleanup(ts.Close)
		return endpoint(name, ts.URL)
	}
	sse := overHTTP("sse", mcp.NewSSEHandler(get, nil))
	sse.Transport = mcpjson.TransportSSE
	for _, def := range []*mcpjson.Server{
		program("stdio", "tasks"), sse,
		overHTTP("stateful", mcp.NewStreamableHTTPHandler(get, nil)),
		overHTTP("stateless", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true})),
		overHTTP("json", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})),
	} {
		t.Run(def.Name, func(t *testing.T) {
			var trace closer
			m := manager(t, Options{Trace: func(string) io.WriteCloser { return &trace }}, def)
			wantTask(t, session(t, m, def.Name))
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			trace.mu.Lock()
			defer trace.mu.Unlock()
			r, err := cassette.Read(strings.NewReader(trace.b.String()))
			if err != nil {
				t.Fatal(err)
			}
			m = manager(t, Options{
				Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil },
				Dial:  func(context.Context, *mcpjson.Server) (mcp.Connection, error) { return cassette.NewPlayer(r), nil },
			}, &mcpjson.Server{Name: def.Name})
			wantTask(t, session(t, m, def.Name))
		})
	}
}

// wantTask checks that of the tools of a session only pid requires a task.
func wantTask(t *testing.T, s *Session) {
	t.Helper()
	tools, err := s.Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(tools)
	if err != nil {
		t.Fatal(err)
	}
	var decoded []*mcp.Tool
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	for i, tool := range tools {
		if want := tool.Name == "pid"; RequiresTask(tool) != want || RequiresTask(decoded[i]) != want {
			t.Errorf("%s requires a task: %v, and %v after JSON, want %v", tool.Name, RequiresTask(tool), RequiresTask(decoded[i]), want)
		}
	}
	if _, err := call(t, s, "pid", nil); !errors.Is(err, ErrTaskRequired) || !strings.Contains(err.Error(), `call tool "pid" of mcp server`) {
		t.Errorf("call pid: got %v, want %v", err, ErrTaskRequired)
	}
}

// The stored tools follow the last list, and are bounded.
func TestTaskTools_FollowTheList(t *testing.T) {
	var tools taskTools
	read := func(text string) { tools.read([]byte(text), 2) }
	const list = `{"tools":[{"name":"a","inputSchema":{},"execution":{"taskSupport":"required"}},{"name":"b","inputSchema":{},"execution":{"taskSupport":"required"}},` +
		`{"name":"c","inputSchema":{},"execution":{"taskSupport":"required"}}]}`
	read(list)
	if !tools.has("a") || !tools.has("b") || tools.has("c") {
		t.Errorf("got %v, want a and b", tools.required)
	}
	read(`{"tools":[{"name":"a","inputSchema":{}},{"name":"b","inputSchema":{},"execution":{"taskSupport":"optional"}}]}`)
	if len(tools.required) != 0 {
		t.Errorf("got %v, want none", tools.required)
	}
	for _, odd := range []string{``, `"inputSchema"`, `{"tools":{"inputSchema":1}}`, `{"tools":[null,{"name":1,"inputSchema":{}}]}`, `{"tools":[{"inputSchema":{},"execution":"required"}]}`} {
		read(odd)
	}
	if len(tools.required) != 0 {
		t.Errorf("got %v from invalid lists", tools.required)
	}
}
