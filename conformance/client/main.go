// Command client is the MCP client under test in the conformance suite. It performs
// the calls that each scenario expects; the client kit does the rest.
//
// The suite runs it with the URL of a server and the scenario in its environment. It
// prints "done" if the scenario succeeded.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

const (
	clientName = "glovebox-conformance"
	// limit bounds a client that hangs. It is generous: only failed runs reach it.
	limit = 30 * time.Second
)

func main() {
	if err := run(os.Args[1:], os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "client: error:", err)
		os.Exit(1)
	}
	fmt.Println("done")
}

// facts is the context that the suite passes to a client beside the server's URL.
type facts struct {
	ToolCalls []*mcp.CallToolParams `json:"toolCalls"`

	// The client, if it is registered already.
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	PrivateKey   string `json:"private_key_pem"`
	Issuer       string `json:"issuer"`
}

// run runs a scenario. Clients that share the directory GLOVEBOX_CONFORMANCE_TURNS take
// turns.
func run(args []string, getenv func(string) string) (err error) {
	if len(args) != 1 {
		return fmt.Errorf("want the URL of a server, got %q", args)
	}
	name := getenv("MCP_CONFORMANCE_SCENARIO")
	play := scripts[name]
	if play == nil {
		return fmt.Errorf("play the scenario %q: it is not known", name)
	}
	var told facts
	if text := getenv("MCP_CONFORMANCE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			return fmt.Errorf("read MCP_CONFORMANCE_CONTEXT: %w", err)
		}
	}
	end, err := turn(getenv("GLOVEBOX_CONFORMANCE_TURNS"), name)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	m := mcpkit.New(mcpkit.Options{
		Config: &mcpjson.Config{Servers: []*mcpjson.Server{{
			Name: "suite", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(args[0]),
		}}},
		Client: &mcp.Implementation{Name: clientName, Version: "1"},
		Trust:  func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
		OAuth:  logins(name, &told),
		Hooks:  mcpkit.Hooks{Elicit: accept, Sampling: answer},
		Roots:  []*mcp.Root{{URI: "file:///conformance"}},
		Limits: mcpkit.Limits{Connect: limit},
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	defer func() { err = errors.Join(err, m.Close()) }()
	s, err := m.Session("suite")
	if err != nil {
		return err
	}
	return play(ctx, s, &told)
}

// answer answers for the client's model.
func answer(context.Context, string, *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error) {
	return &mcp.CreateMessageResult{Role: "assistant", Model: "none", Content: &mcp.TextContent{Text: "Yes."}}, nil
}

// accept accepts every form with its default values.
func accept(_ context.Context, _ string, asked *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	schema, _ := asked.RequestedSchema.(map[string]any)
	fields, _ := schema["properties"].(map[string]any)
	yes := make(map[string]any)
	for name, f := range fields {
		field, _ := f.(map[string]any)
		if _, filled := field["default"]; field["type"] == "boolean" && !filled {
			yes[name] = true
		}
	}
	return &mcp.ElicitResult{Action: "accept", Content: yes}, nil
}
