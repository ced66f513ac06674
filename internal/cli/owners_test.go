package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/mcpserver"
)

// ownerHeader names the owner in requests to the server of ownersMain.
const ownerHeader = "X-Test-Owner"

// ownersMain is a program: a server with real boxes that believes its clients who
// they are, since serve does not ask them yet.
func ownersMain() int {
	if err := serveOwners(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveOwners() (err error) {
	flags := pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError)
	config.Bind(flags, "server", "tools", "boxes", "volumes", "host", "log")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	cfg, notes, err := config.Load(flags, os.LookupEnv)
	if err != nil {
		return err
	}
	a := &app{lookup: os.LookupEnv, Streams: Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}}
	log, closeLog, err := a.openLog(cfg, notes)
	if err != nil {
		return err
	}
	defer closeLog()
	if err := enter(cfg); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	h, err := openHost(ctx, cfg, log, nil)
	if err != nil {
		return err
	}
	defer func() {
		if e := h.close(); err == nil {
			err = e
		}
	}()
	parts, err := h.openDisk(cfg)
	if err != nil {
		return err
	}
	if err := h.manage(ctx, sandboxConfig(cfg), parts); err != nil {
		return err
	}
	server := mcpserver.New(mcpserver.Options{
		Tools: h.deps(log), Path: cfg.Endpoint, Log: log,
		Extend: mcpserver.Extension{Middleware: []mcp.Middleware{func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if extra := req.GetExtra(); extra != nil && extra.Header != nil {
					extra.TokenInfo = &auth.TokenInfo{UserID: extra.Header.Get(ownerHeader)}
				}
				return next(ctx, method, req)
			}
		}}},
	})
	ln, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	a.announce(cfg, ln.Addr(), "test", log)
	return server.Serve(ctx, ln)
}
