//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/bench/report"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// clientScenario calls the Go SDK's plain server repeatedly over one connection of mcpkit
// and one of the SDK's client below it, alternately.
func clientScenario(ctx context.Context, b *bench) error {
	program, err := b.buildEcho(ctx)
	if err != nil {
		return err
	}
	over, err := startEcho(ctx, program)
	if err != nil {
		return err
	}
	defer over.close()
	argv := []string{program, "stdio"}
	for _, way := range []struct {
		id, name string
		def      mcpjson.Server
		plain    func() (*mcp.ClientSession, error)
	}{
		{
			"stdio", "over stdio",
			mcpjson.Server{Transport: mcpjson.TransportStdio, Command: mcpjson.Literal(argv[0]), Args: []mcpjson.Text{mcpjson.Literal(argv[1])}, Dir: b.dir},
			func() (*mcp.ClientSession, error) {
				session, _, err := overStdio(ctx, nil, argv)
				return session, err
			},
		}, {
			"http", "over HTTP",
			mcpjson.Server{Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(over.url + "/session")},
			func() (*mcp.ClientSession, error) {
				return connectPlainly(ctx, &mcp.StreamableClientTransport{Endpoint: over.url + "/session"})
			},
		},
	} {
		way.def.Name = "echo"
		kit, plain, err := b.callBoth(ctx, &way.def, way.plain)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		beside := report.Measured("peer.gosdk.client."+way.id, "Go SDK's client, a call "+way.name, "ms", plain...).As(report.Peer)
		b.add(report.Measured("client."+way.id, "mcpkit, a call "+way.name, "ms", kit...).Against(beside).AtMost(report.Ratio, 1.1), beside)
	}
	return nil
}

// callBoth connects both clients to a server and returns the durations of their alternate
// calls.
func (b *bench) callBoth(ctx context.Context, def *mcpjson.Server, connect func() (*mcp.ClientSession, error)) (kit, plain []float64, err error) {
	manager := mcpkit.New(mcpkit.Options{
		Config: &mcpjson.Config{Servers: []*mcpjson.Server{def}},
		Trust:  func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil },
		Era:    mcpkit.Legacy,
	})
	defer manager.Close()
	ours, err := manager.Session(def.Name)
	if err != nil {
		return nil, nil, err
	}
	hello, err := ours.Initialize(ctx)
	if err != nil {
		return nil, nil, err
	}
	theirs, err := connect()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	if got, want := hello.ProtocolVersion, theirs.InitializeResult().ProtocolVersion; got != want {
		return nil, nil, fmt.Errorf("mcpkit speaks %s and the SDK's client %s", got, want)
	}
	const warmUp = 100 // calls until both ends have what they need
	n := b.n(1000, 200) + warmUp
	sides := []struct {
		call toolCaller
		took *[]float64
	}{{ours.CallTool, &kit}, {theirs.CallTool, &plain}}
	for i := range n {
		slices.Reverse(sides) // the second finds caches filled
		for _, side := range sides {
			begun := time.Now()
			if err := says(ctx, side.call, "echo", map[string]any{"text": "hello"}, "hello"); err != nil {
				return nil, nil, err
			}
			if i >= warmUp {
				*side.took = append(*side.took, ms(time.Since(begun)))
			}
		}
	}
	return kit, plain, nil
}

// toolCaller is the common part of both clients.
type toolCaller func(context.Context, *mcp.CallToolParams) (*mcp.CallToolResult, error)

// says calls a tool and returns an error unless the result is text.
func says(ctx context.Context, call toolCaller, tool string, args map[string]any, want string) error {
	r, err := call(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return fmt.Errorf("call %s: %w", tool, err)
	}
	if len(r.Content) == 1 {
		if got, ok := r.Content[0].(*mcp.TextContent); ok && got.Text == want {
			return nil
		}
	}
	return fmt.Errorf("call %s: got %+v, want %q", tool, r.Content, want)
}

// connectPlainly connects the SDK's client with default options.
func connectPlainly(ctx context.Context, t mcp.Transport) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-bench", Version: "1"}, nil)
	return client.Connect(ctx, t, &mcp.ClientSessionOptions{ProtocolVersion: legacy})
}
