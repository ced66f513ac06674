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
		Short: "Offer all servers as one MCP server",
		Long: `Serve is one MCP server that offers what all servers of the configuration offer:
tools as server__tool, prompts alike, resources under their own addresses. Each
server is started when it is first used. It speaks over standard input and output,
or over HTTP with --listen: without tokens (--tokens-file, --oidc-issuer) to this
machine only.

What a server asks during a call (for words of the user or of the client's model, for
roots) is put to the client that made the call, if that can answer, and to no other;
progress and log messages go there too. Servers that you do not trust may ask the
user only.

Nobody is asked for trust here: a server that wants it is offered after

  glovebox mcp trust SERVER

and one that wants you to log in after

  glovebox mcp login SERVER`,
		Example: `  {"mcpServers": {"all": {"command": "glovebox", "args": ["mcp", "serve", "--config", "/home/me/mcp.json"]}}}`,
		Args:    exactly(0),
		RunE:    a.run(func(ctx context.Context, _ []string) error { return a.serve(ctx, listen, untrusted) }),
	}
	cmd.Flags().StringVar(&listen, "listen", "", "serve over HTTP at this `address`, such as 127.0.0.1:8776, at /mcp")
	cmd.Flags().BoolVar(&untrusted, "untrusted-may-ask", false, "let servers that are not trusted use the client's model and see its roots")
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
	a.terminal = func() bool { return false } // the streams are the protocol's
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
	g := gateway.New(gateway.Options{Servers: servers, Listings: listings, SingleClient: listen == "", TrustCommand: func(server string) string { return a.lineFor("trust", server) }, Log: log})
	defer func() { err = errors.Join(err, g.Close()) }()
	return a.Serve(ctx, g, listen, log)
}
