package mcpcli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
)

func (a *app) serveCommand() *cobra.Command {
	var listen string
	var untrusted bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve all servers as one MCP server",
		Long: `Serve combines all servers of the configuration into one MCP server: tools and prompts
as server__name, resources under their own URIs. A resource that several servers have
is left out, since each could answer for another. A server starts when it is first
used, or once to list what it has. Serve uses standard input and output or, with --listen, HTTP. Without tokens
(--tokens-file, --oidc-issuer), HTTP is limited to this machine.

Requests for input (elicitation, sampling, roots), progress and log messages of a
server go to the client whose call is in progress, and to no other. Untrusted servers
may use elicitation only.

A tool whose definition has changed since it was first used is left out, until you
review it with glovebox mcp trust --tools SERVER, or serve with --trust. For a server
that changes its tools each time, glovebox mcp trust --no-pin SERVER accepts all changes.

Serve does not ask for approval or logins. Approve a server with

  glovebox mcp trust SERVER

and log in to one with

  glovebox mcp login SERVER`,
		Example: `  {"mcpServers": {"all": {"command": "glovebox", "args": ["mcp", "serve", "--config", "/home/me/mcp.json"]}}}`,
		Args:    exactly(0),
		RunE:    a.run(func(ctx context.Context, _ []string) error { return a.serve(ctx, listen, untrusted) }),
	}
	cmd.Flags().StringVar(&listen, "listen", "", "serve over HTTP at this `address`, such as 127.0.0.1:8776, at /mcp")
	cmd.Flags().BoolVar(&untrusted, "untrusted-may-ask", false, "let untrusted servers use sampling and roots of the client")
	if a.BindServe != nil {
		a.BindServe(cmd)
	}
	return cmd
}

func (a *app) serve(ctx context.Context, listen string, untrusted bool) (err error) {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	a.terminal = func() bool { return false } // the streams carry the protocol
	level := slog.LevelInfo
	switch {
	case a.flags.verbose:
		level = slog.LevelDebug
	case listen == "": // many clients show the log to their user
		level = slog.LevelWarn
	}
	log := slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level}))
	servers, err := a.options(cfg)
	if err != nil {
		return err
	}
	logins, err := a.logins()
	if err != nil {
		return err
	}
	servers.OAuth = a.advised(login.New(login.Options{Store: logins, ClientName: clientName, Log: log}))
	servers.Log = log
	servers.Limits.Request = callTimeout
	listings, err := a.listings()
	if err != nil {
		return err
	}
	servers.Hooks.Untrusted = untrusted
	pins, err := a.pins()
	if err != nil {
		return err
	}
	g := gateway.New(gateway.Options{Servers: servers, Listings: listings, Pins: pins, ReviewCommand: a.reviewCommand, UnpinCommand: a.unpinCommand, SingleClient: listen == "", TrustCommand: func(server string) string { return a.lineFor("trust", server) }, Log: log})
	defer func() { err = errors.Join(err, g.Close()) }()
	return a.Serve(ctx, g, listen, log)
}
