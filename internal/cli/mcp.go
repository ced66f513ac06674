package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/cli/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/server"
)

// frontFlags are the settings of HTTP servers that apply to glovebox mcp serve.
var frontFlags = []string{
	"tokens-file", "oidc-issuer", "oidc-audience", "oidc-subject-claim", "oidc-scope-claim", "oidc-require-scopes", "public-url",
	"tls-cert", "tls-key", "behind-proxy", "insecure-bind", "enable-cors", "allowed-origins", "allowed-hosts",
	"rate-limit", "rate-burst", "audit-log",
}

// mcpCommand returns the commands for MCP servers.
func (a *app) mcpCommand() *cobra.Command {
	// A flag set of their own: --config of settings is another file.
	all, front := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Bind(all, "server", "security")
	groupSettings(all)
	for _, name := range frontFlags {
		front.AddFlag(all.Lookup(name))
	}
	env := a.mcpEnv()
	env.BindServe = func(cmd *cobra.Command) { cmd.Flags().AddFlagSet(front) }
	env.Serve = func(ctx context.Context, g *gateway.Gateway, address string, log *slog.Logger) error {
		options := server.Options{
			Version:      env.Version,
			Instructions: "The tools of several MCP servers. The server's name is the part of a tool's name before the two underscores.",
			Extend: server.Extension{Alone: true, Server: g.Register, Offers: g.HasTool, Schema: g.InputSchema, Names: g.ToolNames, Capabilities: gateway.Capabilities(),
				Configure: g.Configure, Middleware: []mcp.Middleware{g.Middleware}},
			Log: log,
		}
		if address == "" {
			return server.New(options).ServeStdio(ctx, a.In, a.Out)
		}
		return asUsage(a.serveGateway(ctx, front, address, options))
	}
	cmd := mcpcli.Command(env)
	f := cmd.PersistentFlags()
	help.Group(f, "Configuration", "config", "root", "allow-config-outside-root", "allow-stdout-log-outside-root", "input", "owner")
	help.Group(f, "Trust", "trust", "allow-http", "allow-localhost", "allow-private-ip", "allow-host", "dns-timeout")
	help.Group(f, "Connection", "timeout", "connect-timeout", "era")
	help.Group(f, "Output", "output", "verbose", "log-dir")
	if serve, _, err := cmd.Find([]string{"serve"}); err == nil {
		help.Group(serve.Flags(), "Gateway", "listen", "untrusted-may-ask")
	}
	return cmd
}

// mcpEnv returns the environment of commands for MCP servers.
func (a *app) mcpEnv() mcpcli.Env {
	v, _ := buildVersion()
	return mcpcli.Env{
		In: a.In, Out: a.Out, Err: a.Err,
		Lookup:   a.lookup,
		Environ:  os.Environ,
		StateDir: func() (string, error) { return config.StateDir(a.lookup) },
		Until: func(ctx context.Context) (context.Context, func()) {
			return untilSignal(ctx, func() {}, nil)
		},
		Version: v,
		HintFor: mcpHint,
	}
}

// mcpHint returns the remedy of a full disk, for commands without settings of boxes.
func mcpHint(err error) string {
	var output *outputError
	if errors.As(err, &output) || !hostdisk.IsFull(err) {
		return ""
	}
	return fullDiskIn(err) + " with GLOVEBOX_STATE_DIR"
}

// asUsage gives errors of settings the exit code and hint that they have in other
// commands.
func asUsage(err error) error {
	if bad := (*config.Error)(nil); errors.As(err, &bad) {
		return &mcpcli.Error{Code: mcpcli.ExitUsage, Err: err, HintTo: strings.Join(hints(err), "; ")}
	}
	return err
}

// serveGateway serves a gateway over HTTP, with the same access control as a server of
// boxes.
func (a *app) serveGateway(ctx context.Context, flags *pflag.FlagSet, address string, options server.Options) error {
	cfg, notes, err := config.Load(flags, a.lookup)
	if err != nil {
		return err
	}
	for _, note := range notes {
		options.Log.Info(note)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return withHint(&config.Error{Text: fmt.Sprintf("listen on %q: %v", address, err)}, "use an address and a port, such as 127.0.0.1:8776")
	}
	number, err := strconv.Atoi(port)
	if err != nil || number < 0 || number > 65535 {
		return &config.Error{Text: fmt.Sprintf("listen on %q: invalid port %q", address, port)}
	}
	cfg.Host, cfg.Port = host, number
	if err := checkBind(cfg, "use your servers, with your secrets,"); err != nil {
		return err
	}
	if err := checkTokens(cfg); err != nil {
		return err
	}
	sec, err := openSecurity(cfg, options.Log)
	if err != nil {
		return err
	}
	defer sec.close()
	ln, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	served := frontOptions(cfg, &sec)
	served.Version, served.Instructions, served.Extend, served.Log = options.Version, options.Instructions, options.Extend, options.Log
	scheme := "http"
	if cfg.TLS() {
		scheme = "https"
	}
	a.note("glovebox mcp serve is ready: %s://%s%s", scheme, ln.Addr(), cfg.Endpoint)
	return server.New(served).Serve(ctx, sec.listener(ln))
}
