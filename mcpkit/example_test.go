package mcpkit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// greeter is a server with one tool, which asks whoever calls it for a name.
func greeter() *httptest.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "greet", Description: "Greet somebody."},
		func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			answer, ok := r.Params.InputResponses["who"].(*mcp.ElicitResult)
			if !ok {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"who": &mcp.ElicitParams{Message: "Who are you?"}}}, nil, nil
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint("Hello, ", answer.Content["name"])}}}, nil, nil
		})
	return httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true}))
}

// A program calls a tool, and answers what its server asks meanwhile.
func Example() {
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
	// greeter asks: Who are you?
	// Hello, Ann
}

// Without an explicit yes a definition runs nothing.
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

// ExampleRequestTyped makes a request of a method that the library has no function
// for.
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
	// Output: [{greet}] <nil>
}
