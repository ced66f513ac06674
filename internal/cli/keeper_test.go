package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// keeper is a program that serves MCP, for the code of tests: get returns its name, put
// changes it. Its start leaves the file KEEPER_STARTED. With KEEPER_HANGS it answers
// nothing.
func keeper() {
	if path := os.Getenv("KEEPER_STARTED"); path != "" {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv("KEEPER_HANGS") != "" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	name := os.Getenv("KEEPER_NAME")
	s := mcp.NewServer(&mcp.Implementation{Name: "keeper", Version: "1"}, nil)
	type kept struct {
		Name string `json:"name" jsonschema:"what is kept"`
		UID  int    `json:"uid"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "get", Description: "Returns the name.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, kept, error) {
			return nil, kept{name, os.Getuid()}, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "put", Description: "Changes the name."},
		func(_ context.Context, _ *mcp.CallToolRequest, in struct {
			Name string `json:"name"`
		}) (*mcp.CallToolResult, kept, error) {
			name = in.Name
			return nil, kept{name, os.Getuid()}, nil
		})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
