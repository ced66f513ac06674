package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// closeTimeout bounds hibernating the boxes after the last call: 100 of them, two at a
// time, take about 10 s.
const closeTimeout = 90 * time.Second

func (a *app) serveCommand() *cobra.Command {
	var only *bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the tools over HTTP",
		Long: `Serve offers the tools at http://127.0.0.1:8775/mcp until it gets SIGINT or
SIGTERM. Then it refuses new calls, waits for running ones and hibernates the boxes.
A second signal stops it at once. SIGHUP reloads settings and files. Standard output
is used only with --mode stdio or dual.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, notes, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			if *only {
				return a.finishTemplates(cmd.Context(), cfg)
			}
			return a.serve(cmd.Context(), cfg, notes, func() (*config.Config, error) {
				next, _, err := config.Load(cmd.Flags(), a.lookup)
				return next, err
			})
		},
	}
	only = bindFinish(cmd)
	bind(cmd, "server", "security", "tools", "code", "search", "network", "boxes", "volumes", "host", "engine", "log")
	return cmd
}

func (a *app) stdioCommand() *cobra.Command {
	var only *bool
	cmd := &cobra.Command{
		Use:   "stdio",
		Short: "Serve the tools over standard input and output",
		Long: `Stdio serves the MCP client that starts it over standard input and output. It stops
at the end of its input, after the last answer. The log goes to standard error.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, notes, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			cfg.Mode = "stdio"
			if *only {
				return a.finishTemplates(cmd.Context(), cfg)
			}
			return a.serve(cmd.Context(), cfg, notes, nil)
		},
	}
	only = bindFinish(cmd)
	bind(cmd, "tools", "code", "search", "network", "boxes", "volumes", "host", "engine", "log")
	return cmd
}

// bind adds the flags of setting groups to cmd, with their headings and completion.
func bind(cmd *cobra.Command, groups ...string) {
	config.Bind(cmd.Flags(), groups...)
	groupSettings(cmd.Flags())
	for _, k := range config.Keys() {
		if len(k.Choices) > 0 && cmd.Flags().Lookup(k.Name) != nil {
			cmd.RegisterFlagCompletionFunc(k.Name, cobra.FixedCompletions(k.Choices, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	help.Footer(cmd, `"glovebox settings" describes them in full, with environment variables and file keys.`)
}

// groupSettings puts the flags of settings under the headings of the documentation.
func groupSettings(flags *pflag.FlagSet) {
	titles, names := config.GroupTitles()
	for _, title := range titles {
		help.Group(flags, title, names[title]...)
	}
}

// serve runs the server over the transports of cfg.Mode until ctx ends, a signal
// arrives or, with standard input and output alone, the input ends. load reads the
// settings again on SIGHUP, which stops servers without HTTP.
func (a *app) serve(ctx context.Context, cfg *config.Config, notes []string, load func() (*config.Config, error)) (err error) {
	overHTTP, overStdio := cfg.Mode != "stdio", cfg.Mode != "http"
	if err := checkServe(cfg, overHTTP, overStdio); err != nil {
		return err
	}
	log, closeLog, err := a.openLog(cfg, notes)
	if err != nil {
		return err
	}
	defer closeLog()
	if cfg.Tools != "" && cfg.InsecureBind && overHTTP && !address.IsLoopback(cfg.Host) {
		log.Warn("everyone who reaches the address can use the MCP servers of --tools, with your logins", logkey.Endpoint, cfg.Host)
	}
	// A client over standard input kills a server that does not stop within seconds. A user at a
	// terminal does not: in a session of its own the server would read what the user types for
	// the shell.
	outlive := cfg.Mode == "stdio" && !onTerminal(a.In)
	if err := enterWith(cfg, outlive); err != nil { // does not return if the program restarts in a namespace
		return err
	}
	var abandoned <-chan struct{}
	if outlive {
		var stop func()
		abandoned, stop = detachWhenOrphaned(log)
		defer stop()
	}
	var hangups chan struct{}
	if overHTTP {
		hangups = make(chan struct{}, 1)
	}
	ctx, stop := untilSignal(ctx, func() { a.note("glovebox: stopping at once") }, hangups)
	defer stop()

	s := &service{app: a, cfg: cfg, log: log, begun: time.Now(), overHTTP: overHTTP, overStdio: overStdio, abandoned: abandoned, opening: newOpening()}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx, load); err != nil {
		return err
	}
	err = s.run(ctx, hangups)
	if m := s.host.manager; m != nil && cfg.Mode == "stdio" && cfg.FinishTemplates && m.Building() {
		if err := finishTemplatesInBackground(); err != nil {
			log.Warn("templates not finished", logkey.Error, err)
		}
	}
	return err
}

// checkServe checks the settings of a server before anything is opened.
func checkServe(cfg *config.Config, overHTTP, overStdio bool) error {
	if overHTTP {
		abuse := "run code"
		if cfg.Tools != "" {
			abuse += " and use your MCP servers, with your logins"
		}
		if err := checkBind(cfg, abuse); err != nil {
			return err
		}
		if err := checkTokens(cfg); err != nil {
			return err
		}
	}
	if err := checkTools(cfg, overHTTP, overStdio); err != nil {
		return err
	}
	return checkFiles(cfg)
}

// boxConfig returns the configuration of the box manager.
func boxConfig(cfg *config.Config) box.Config {
	sc := box.DefaultConfig()
	sc.MaxSessions = cfg.MaxSessions
	sc.MaxContexts = cfg.MaxContexts
	sc.MaxTotalMemoryMB = cfg.MaxTotalMemoryMB
	sc.MaxPerOwner = cfg.OwnerMaxBoxes
	sc.MaxMemoryPerOwnerMB = cfg.OwnerMaxMemoryMB
	sc.Halves = cfg.Auth()
	sc.IdleTimeout = cfg.SessionTimeout
	sc.CleanupInterval = cfg.CleanupInterval
	sc.StartTimeout = cfg.StartTimeout
	sc.ExecTimeout = cfg.ExecutionTimeout
	sc.ContextTimeout = cfg.ContextTimeout
	sc.MaxTimeout = max(sc.MaxTimeout, cfg.ExecutionTimeout, cfg.ContextTimeout)
	sc.Evict = cfg.LRUEviction
	sc.DefaultFlavor = box.Flavor(cfg.DefaultFlavor)
	sc.DefaultContext = cfg.DefaultContext
	sc.PauseAfter = cfg.PauseAfter
	sc.MaxSnapshots = cfg.MaxSnapshots
	sc.Preload = cfg.Preload
	sc.PoolMaxAge = cfg.PoolMaxAge
	if sc.PoolSize = cfg.PoolSize; sc.PoolSize < 0 {
		sc.PoolSize = 3
		if cfg.Mode == "stdio" { // each of a user's clients starts a server
			sc.PoolSize = 1
		}
	}
	return sc
}
