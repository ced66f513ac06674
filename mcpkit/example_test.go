package mcpkit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// greeter starts a server with two tools: add, and greet, which asks the user for a name.
func greeter() *httptest.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "add", Description: "Add two numbers."},
		func(_ context.Context, _ *mcp.CallToolRequest, in struct{ A, B int }) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(in.A + in.B)}}}, nil, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "greet", Description: "Greet the user."},
		func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			answer, ok := r.Params.InputResponses["name"].(*mcp.ElicitResult)
			if !ok {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": &mcp.ElicitParams{Message: "What is your name?"}}}, nil, nil
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint("Hello, ", answer.Content["name"])}}}, nil, nil
		})
	return httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true}))
}

// A project has a server in its mcp.json. A program lists the server's tools and calls
// one.
func Example() {
	server := greeter()
	defer server.Close()
	project, err := os.MkdirTemp("", "project-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(project)
	file := fmt.Sprintf(`{"mcpServers": {"greeter": {"type": "http", "url": %q}}}`, server.URL)
	if err := os.WriteFile(filepath.Join(project, ".mcp.json"), []byte(file), 0o600); err != nil {
		log.Fatal(err)
	}

	cfg, err := mcpjson.Load(mcpjson.Options{Root: project})
	if err != nil {
		log.Fatal(err)
	}
	m := mcpkit.New(mcpkit.Options{
		Config: cfg,
		// Ask the user here: a definition may start programs and send secrets.
		Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
	})
	defer m.Close()
	s, err := m.Session("greeter")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	tools, err := s.Tools(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range tools {
		fmt.Println(t.Name+":", t.Description)
	}
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "add", Arguments: map[string]int{"A": 2, "B": 3}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Content[0].(*mcp.TextContent).Text)
	// Output:
	// add: Add two numbers.
	// greet: Greet the user.
	// 5
}

// A hook answers the questions that a server asks during a call.
func ExampleHooks() {
	server := greeter()
	defer server.Close()
	m := mcpkit.New(mcpkit.Options{
		Config: &mcpjson.Config{Servers: []*mcpjson.Server{
			{Name: "greeter", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(server.URL)},
		}},
		Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
		Hooks: mcpkit.Hooks{Elicit: func(_ context.Context, server string, q *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			fmt.Println(server, "asks:", q.Message)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ann"}}, nil
		}},
	})
	defer m.Close()
	s, err := m.Session("greeter")
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "greet"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Content[0].(*mcp.TextContent).Text)
	// Output:
	// greeter asks: What is your name?
	// Hello, Ann
}

// An untrusted definition starts no program.
func ExampleTrust() {
	m := mcpkit.New(mcpkit.Options{Config: &mcpjson.Config{Servers: []*mcpjson.Server{
		{Name: "files", Transport: mcpjson.TransportStdio, Command: mcpjson.Literal("npx")},
	}}})
	defer m.Close()
	s, err := m.Session("files")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Tools(context.Background())
	fmt.Println(err)
	fmt.Println(errors.Is(err, mcpkit.ErrUntrusted))
	// Output:
	// refusing to spawn mcp server "files" in untrusted mode: it runs "npx"; trust the server if you know it
	// true
}

// RequestTyped sends requests for which Session has no method.
func ExampleRequestTyped() {
	server := greeter()
	defer server.Close()
	m := mcpkit.New(mcpkit.Options{
		Config: &mcpjson.Config{Servers: []*mcpjson.Server{
			{Name: "greeter", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(server.URL)},
		}},
		Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
	})
	defer m.Close()
	s, err := m.Session("greeter")
	if err != nil {
		fmt.Println(err)
		return
	}
	list, err := mcpkit.RequestTyped[struct {
		Tools []struct{ Name string }
	}](context.Background(), s, "tools/list", nil)
	fmt.Println(list.Tools, err)
	// Output: [{add} {greet}] <nil>
}
