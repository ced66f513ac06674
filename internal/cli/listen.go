package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// listen opens the server's port.
func listen(ctx context.Context, cfg *config.Config) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(strings.Trim(cfg.Host, "[]"), strconv.Itoa(cfg.Port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		other := cfg.Port + 1
		if other > 65535 {
			other = 8775
		}
		return nil, withHint(fmt.Errorf("listen on %s port %d: the port is in use", cfg.Host, cfg.Port),
			"another glovebox may be running; choose another port with --port %d or MCP_SERVER_PORT=%d, or a free one with --port 0", other, other)
	case errors.Is(err, syscall.EACCES):
		return nil, withHint(fmt.Errorf("listen on %s port %d: %w", cfg.Host, cfg.Port, err), "ordinary users may use ports from 1024; choose one with --port")
	case err != nil:
		return nil, withHint(fmt.Errorf("listen on %s port %d: %w", cfg.Host, cfg.Port, err), "choose the address with --host and the port with --port")
	}
	return ln, nil
}

// announce prints the endpoint and the configuration of clients. It returns the
// endpoint.
func (a *app) announce(cfg *config.Config, addr net.Addr, v string, log *slog.Logger) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip, perr := netip.ParseAddr(host); err == nil && perr == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if cfg.TLS() {
		scheme = "https"
	}
	endpoint := scheme + "://" + net.JoinHostPort(host, port) + cfg.Endpoint
	entry := clientEntry{Type: "http", URL: endpoint}
	if cfg.PublicURL != "" {
		entry.URL = cfg.PublicURL
	}
	if cfg.TokensFile != "" {
		entry.Headers = map[string]string{"Authorization": "Bearer TOKEN"}
	}
	log.Info("server listens; it is ready when the health check has passed", logkey.Endpoint, endpoint)
	if cfg.LogFormat == "json" {
		return endpoint
	}
	a.note("glovebox %s listens at %s", v, endpoint)
	a.note("")
	a.note("For the mcp.json of a client:")
	a.note("  %s", clientConfig(entry))
	if exe, err := os.Executable(); err == nil {
		a.note("or, so that the client starts it itself:")
		a.note("  %s", clientConfig(clientEntry{Command: exe, Args: stdioArgs(cfg)}))
	}
	a.note("")
	return endpoint
}

// noteReady logs and prints that the server is ready, at the endpoint or, if it is "",
// over standard input and output.
func (a *app) noteReady(cfg *config.Config, endpoint, v string, log *slog.Logger, took time.Duration) {
	log.Info("server is ready, waiting for requests", logkey.Endpoint, endpoint, logkey.Version, v, logkey.Took, took.Round(time.Millisecond))
	if endpoint != "" && cfg.LogFormat != "json" {
		a.note("glovebox %s is ready: %s", v, endpoint)
	}
}

// progress returns a function that tells the user of slow steps of the first start, or
// nil if the log is JSON.
func (a *app) progress(cfg *config.Config) func(string) {
	if cfg.LogFormat == "json" {
		return nil
	}
	return func(step string) { a.note("glovebox: %s", printable(step)) }
}
