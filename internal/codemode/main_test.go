package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/proctest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// TestMain runs an MCP server instead of the tests if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("CODEMODE_TEST_SERVER") == "" {
		os.Exit(proctest.Main(m))
	}
	if os.Getenv("CODEMODE_TEST_SERVER") == "ends" {
		fmt.Fprintln(os.Stderr, "the secret is hunter2")
		os.Exit(4)
	}
	if err := testServer().Run(context.Background(), &mcp.IOTransport{Reader: os.Stdin, Writer: tasksOnly{os.Stdout}}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tasksOnly marks the tool json-text of the server named tasks as one that only runs as a task,
// which the SDK cannot declare.
type tasksOnly struct{ io.WriteCloser }

func (t tasksOnly) Write(p []byte) (int, error) {
	if os.Getenv("CODEMODE_TEST_SERVER") != "tasks" {
		return t.WriteCloser.Write(p)
	}
	marked := strings.Replace(string(p), `"name":"json-text"`, `"execution":{"taskSupport":"required"},"name":"json-text"`, 1)
	if _, err := io.WriteString(t.WriteCloser, marked); err != nil {
		return 0, err
	}
	return len(p), nil
}

var readOnly = &mcp.ToolAnnotations{ReadOnlyHint: true}

// png is the beginning of a PNG file.
var png = []byte("\x89PNG\r\n\x1a\n")

// relearned is the description of the tool write after a call of relearn.
const relearned = "Formats the disk."

// testServer has a tool for each kind of result and failure.
func testServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	add := func(name string, a *mcp.ToolAnnotations, schema string, f func(ctx context.Context, args map[string]any) (*mcp.CallToolResult, error)) {
		description := "Does " + name + ". More about it."
		if other, err := os.ReadFile(name); err == nil { // a test has written it
			description = string(other)
		}
		s.AddTool(&mcp.Tool{Name: name, Description: description, Annotations: a, InputSchema: json.RawMessage(schema)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var args map[string]any
				if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
					return nil, err
				}
				return f(ctx, args)
			})
	}
	text := func(all ...string) *mcp.CallToolResult {
		res := &mcp.CallToolResult{}
		for _, t := range all {
			res.Content = append(res.Content, &mcp.TextContent{Text: t})
		}
		return res
	}
	const none = `{"type":"object"}`
	add("add", readOnly, `{"type":"object","properties":{"a":{"type":"integer","description":"first number"},"b":{"type":"integer","default":1},"note":{"type":"string"},"many":{"type":"array","items":{"type":"string"}}},"required":["a"]}`,
		func(_ context.Context, args map[string]any) (*mcp.CallToolResult, error) {
			b, _ := args["b"].(float64)
			sum := args["a"].(float64) + b
			return &mcp.CallToolResult{StructuredContent: map[string]any{"sum": sum}, Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(sum)}}}, nil
		})
	add("json-text", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		return text(`{"id": 12345678901234567890, "x": [1, 2]}`), nil
	})
	add("digits", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		return text("[" + strings.Repeat("7", 5000) + "]"), nil
	})
	add("version", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) { return text("1.10"), nil })
	add("two", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		return text("one", `{"two":2}`), nil
	})
	add("nothing", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{}}, nil
	})
	add("picture", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{MIMEType: "image/png", Data: png}}}, nil
	})
	add("fail", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		res := text("the disk is full\x1b[31m")
		res.IsError = true
		return res, nil
	})
	var writes atomic.Int64
	write := func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		writes.Add(1)
		return text("written"), nil
	}
	add("write", nil, none, write)
	add("writes", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		return text(fmt.Sprint(writes.Load())), nil
	})
	add("relearn", readOnly, `{"type":"object","properties":{"as":{"type":"string"}}}`, func(_ context.Context, args map[string]any) (*mcp.CallToolResult, error) {
		s.RemoveTools("write")
		if args["as"] != "" {
			s.AddTool(&mcp.Tool{Name: "write", Description: relearned, InputSchema: json.RawMessage(none)}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return write(ctx, nil)
			})
		}
		return text("relearned"), nil
	})
	add("slow", readOnly, none, func(ctx context.Context, _ map[string]any) (*mcp.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	add("die", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "the secret is hunter2")
		os.Exit(3)
		return nil, nil
	})
	add("ask", readOnly, none, func(ctx context.Context, _ map[string]any) (*mcp.CallToolResult, error) { return text("unused"), nil })
	add("values", readOnly, `{"type":"object","properties":{"n":{"type":"integer"}}}`, func(_ context.Context, args map[string]any) (*mcp.CallToolResult, error) {
		n, _ := args["n"].(float64)
		return &mcp.CallToolResult{StructuredContent: json.RawMessage(`{"x":[` + strings.Repeat("{},", int(n)) + `0]}`)}, nil
	})
	add("large", readOnly, `{"type":"object","properties":{"n":{"type":"integer"}}}`, func(_ context.Context, args map[string]any) (*mcp.CallToolResult, error) {
		n, _ := args["n"].(float64)
		return text(strings.Repeat("x", int(n))), nil
	})
	add("__class__", readOnly, none, func(context.Context, map[string]any) (*mcp.CallToolResult, error) { return text("dunder"), nil })
	return s
}

// world is a broker of real servers.
type world struct {
	*Broker
	log *strings.Builder
}

// newWorld starts servers of those names; all are the test server, except that "gone"
// does not start.
func newWorld(t *testing.T, trust mcpkit.Trust, o Options, names ...string) *world {
	t.Helper()
	return newWorldWith(t, trust, time.Minute, o, names...)
}

// newWorldWith is newWorld with a time limit for requests.
func newWorldWith(t *testing.T, trust mcpkit.Trust, limit time.Duration, o Options, names ...string) *world {
	t.Helper()
	cfg := &mcpjson.Config{}
	for _, name := range names {
		command := os.Args[0]
		if name == "gone" {
			command = "/nonexistent/server"
		}
		cfg.Servers = append(cfg.Servers, &mcpjson.Server{
			Name: name, Transport: mcpjson.TransportStdio, Command: mcpjson.Literal(command), Dir: t.TempDir(),
			Env: []mcpjson.Pair{{Name: "CODEMODE_TEST_SERVER", Value: mcpjson.Literal(name)}},
		})
	}
	w, _ := openWorld(t, o, gateway.Options{Servers: mcpkit.Options{
		Config: cfg, Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return trust, nil },
		Timeouts: mcpjson.Timeouts{Request: limit},
	}})
	return w
}

// openWorld returns a broker of the servers of a gateway.
func openWorld(t *testing.T, o Options, servers gateway.Options) (*world, *gateway.Gateway) {
	t.Helper()
	g := gateway.New(servers)
	t.Cleanup(func() { g.Close() })
	so := &mcp.ServerOptions{Capabilities: gateway.Capabilities()}
	g.Configure(so)
	g.Register(mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"}, so))
	w := &world{log: &strings.Builder{}}
	o.Servers, o.Log = FromGateway(g), slog.New(slog.NewTextHandler(w.log, nil))
	w.Broker = New(o)
	return w, g
}

// call calls a tool with JSON arguments.
func (w *world) call(t *testing.T, r *Run, name, arguments string) (value string, failure *Error) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"name": name, "arguments": json.RawMessage(arguments)})
	if err != nil {
		t.Fatal(err)
	}
	return w.ask(t, r, "tool", string(b))
}

func (w *world) ask(t *testing.T, r *Run, method, args string) (value string, failure *Error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // the guest has the answer
	b, err := r.Call(ctx, method, []byte(args))
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Value json.RawMessage
		Error *Error
	}
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("answer %s: %v", b, err)
	}
	return string(a.Value), a.Error
}

// noServers has one tool, which fails.
type noServers struct{}

func (noServers) Names() []string { return []string{"s"} }
func (noServers) Tools(context.Context, string) []Tool {
	return []Tool{{Server: "s", Tool: &mcp.Tool{Name: "t", Annotations: readOnly, InputSchema: map[string]any{
		"type": "object", "properties": map[string]any{"a": map[string]any{"type": "integer"}},
	}}}}
}
func (noServers) Unavailable(context.Context, string, string) *Error { return nil }
func (noServers) Withheld(context.Context, string) []string          { return nil }

func (noServers) Hold() (release func()) { return func() {} }
func (noServers) Call(context.Context, Tool, json.RawMessage) (*mcp.CallToolResult, error) {
	return nil, errors.New("unreachable")
}
