package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/mcpserver"
)

// mcpCommand is all that is done with other servers.
func (a *app) mcpCommand() *cobra.Command {
	v, _ := buildVersion()
	return mcpcli.Command(mcpcli.Env{
		In: a.In, Out: a.Out, Err: a.Err,
		Lookup:   a.lookup,
		Environ:  os.Environ,
		StateDir: func() (string, error) { return config.StateDir(a.lookup) },
		Until: func(ctx context.Context) (context.Context, func()) {
			return untilSignal(ctx, func() {}, nil)
		},
		Version: v,
		Serve: func(ctx context.Context, g *gateway.Gateway, address string, log *slog.Logger) error {
			return a.serveGateway(ctx, g, address, v, log)
		},
	})
}

// serveGateway offers a gateway's servers behind the same front as our own.
func (a *app) serveGateway(ctx context.Context, g *gateway.Gateway, address, version string, log *slog.Logger) error {
	server := mcpserver.New(mcpserver.Options{
		Version:      version,
		Instructions: "The tools of several MCP servers; the part of a tool's name before the two underscores is the server's.",
		Extend: mcpserver.Extension{Alone: true, Server: g.Register, Offers: g.Offers, Capabilities: gateway.Capabilities(),
			Middleware: []mcp.Middleware{g.Middleware}},
		Log: log,
	})
	if address == "" {
		return server.ServeStdio(ctx, a.In, a.Out)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || !isLoopback(host) {
		return withHint(&config.Error{Text: fmt.Sprintf("refuse to listen on %q: whoever reaches it uses your servers with your secrets", address)},
			"give an address of this machine, such as 127.0.0.1:8776")
	}
	number, err := strconv.Atoi(port)
	if err != nil || number < 0 || number > 65535 {
		return &config.Error{Text: fmt.Sprintf("listen on %q: %q is no port", address, port)}
	}
	ln, err := listen(ctx, &config.Config{Host: host, Port: number})
	if err != nil {
		return err
	}
	a.note("glovebox mcp serve is ready: http://%s/mcp", ln.Addr())
	return server.Serve(ctx, ln)
}
