package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/perplexity"
	"github.com/glovebox-dev/glovebox/internal/server"
	"github.com/glovebox-dev/glovebox/internal/server/metrics"
	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
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
	if err := checkFiles(cfg); err != nil {
		return err
	}
	log, closeLog, err := a.openLog(cfg, notes)
	if err != nil {
		return err
	}
	defer closeLog()
	if cfg.Tools != "" && cfg.InsecureBind && overHTTP && !isLoopback(cfg.Host) {
		log.Warn("everyone who reaches the address can use the MCP servers of --tools, with your logins", logkey.Endpoint, cfg.Host)
	}
	if err := enter(cfg); err != nil { // does not return if the program restarts in a namespace
		return err
	}
	var hangups chan struct{}
	if overHTTP {
		hangups = make(chan struct{}, 1)
	}
	ctx, stop := untilSignal(ctx, func() { a.note("glovebox: stopping at once") }, hangups)
	defer stop()

	begun := time.Now()
	v, _ := buildVersion()
	log.Info("glovebox starts", logkey.Version, v, logkey.Transport, cfg.Mode, logkey.StateDir, cfg.StateDir)

	var sec security
	if overHTTP {
		if sec, err = openSecurity(cfg, log); err != nil {
			return err
		}
		defer sec.close()
	}

	search, unusable := openSearch(cfg, v, log)
	switch {
	case unusable != nil && cfg.Search.Explicit:
		return unusable
	case unusable != nil: // the variables may be meant for another program
		log.Warn("web search is not available; correct the variable or unset it", logkey.Error, unusable)
	}
	if search != nil {
		defer search.Close()
	}
	calls := log // of code
	if sec.audit != nil {
		calls = sec.audit
	}
	code, err := a.openCodeMode(cfg, search, log, calls)
	if err != nil {
		return err
	}
	defer code.close()

	// Listen first: a port in use is the most likely error. No request is read before
	// the engine has started.
	var ln net.Listener
	if overHTTP {
		if ln, err = listen(ctx, cfg); err != nil {
			return err
		}
		defer ln.Close()
		ln = sec.listener(ln)
	}
	h := &host{log: log}
	defer func() { err = errors.Join(err, h.close()) }()
	if h.networks, err = openNetworks(cfg, log, sec.audit); err != nil {
		return err
	}
	owned.Settle() // the files of the settings were read twice: in checkFiles and after enter
	traces, err := h.openTraces(ctx, cfg, v)
	if err != nil {
		return err
	}
	defer func() {
		if err := traces.Close(); err != nil {
			log.Warn("traces not sent", logkey.Error, err) // does not fail the stop
		}
	}()
	var srv *server.Server // set before metrics are read
	sources := metrics.Options{
		Egress: h.networks.gate.Stats,
		Server: func() server.Stats { return srv.Stats() },
		Ready:  func() bool { return srv.Ready() },
	}
	if code != nil {
		sources.Code = code.memory.Use
	}
	measured := h.metrics(cfg, sources)

	again := &reloader{
		log: log, level: a.level, load: load,
		apply: func(cfg *config.Config) error {
			if err := code.checkRules(cfg); err != nil {
				return err
			}
			if err := h.networks.reload(cfg); err != nil {
				return err
			}
			return h.manager.Reconfigure(boxConfig(cfg))
		},
		files: sec.files,
	}
	if code != nil {
		again.tools = code.reload
	}
	if cfg.LogFile != "" { // first: the new file gets all messages
		again.files = slices.Insert(again.files, 0, reloadFile{"log file", a.reopenLog})
	}
	again.now.Store(cfg)
	options := frontOptions(cfg, &sec)
	options.Version, options.Log = v, log
	opened := newOpening()
	options.Tools, options.Toolsets = tools.Deps{Await: opened.await, Log: log}, cfg.Toolsets
	options.NoSnapshots = engines.NoSnapshots()
	options.NoHibernation, options.Image = !cfg.Hibernate, cfg.Image != ""
	var commandsOnly atomic.Bool
	if options.Image {
		// A client over standard input lists the tools before the engine is ready.
		commandsOnly.Store(engines.BoxesElsewhere() == nil && runsCommandsOnly(cfg))
		options.CommandsOnly = commandsOnly.Load
	}
	options.Volumes, options.Network = len(cfg.Volumes) > 0, h.networks.described
	if !engines.NoSnapshots() { // open: clients list the tools before the engine is ready
		if err := h.openCatalog(cfg); err != nil {
			return err
		}
		options.Templates = h.describedTemplates
	}
	if code != nil {
		options.Tools.Code, options.Tools.Approvals = code.broker, code.approvals
	}
	options.Tools.ProtocolErrors = cfg.ToolErrors == "protocol"
	if search != nil {
		options.Extend.Tools = searchTools(search, cfg)
		options.Extend.Instructions = "\n" + perplexity.Instructions
	}
	options.Status = h.status
	options.Page = func(_ context.Context, p *statuspage.Page) { h.page(again.now.Load(), p) }
	options.Ready = h.unready
	options.Ending = opened.flush
	options.Others = func() *server.Others { return opened.others(h) }
	options.Metrics, options.Observe, options.Refused = measured.Handler(), measured.Request, measured.Refusal
	options.Trace = traces.Tracer()
	srv = server.New(options)
	ended := make(chan error, 2)
	running := 0
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Answer before the engine is ready: some clients wait a second for the server that
	// they start, and inspecting a new machine takes longer.
	if overStdio {
		running++
		go func() { ended <- srv.ServeStdio(serving, a.In, a.Out) }()
	}
	if err := h.prepare(ctx, cfg, a.progress(cfg), measured.Box); err != nil {
		opened.finish(nil, err)
		cancel(err)
		if overStdio {
			err = errors.Join(err, <-ended)
		}
		return err
	}
	commandsOnly.Store(len(h.maker.Interpreters) == 0)
	opened.finish(h.manager, nil)
	where := ""
	if overHTTP {
		where = a.announce(cfg, ln.Addr(), v, log)
	}
	health := make(chan error, 1)
	go func() {
		err := h.ready(serving)
		switch {
		case err != nil:
			cancel(err)
		case srv.Ready():
			a.noteReady(cfg, where, v, log, time.Since(begun))
		}
		health <- err
	}()
	watched := h.networks.watch(serving, again.now.Load)
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		again.run(serving, hangups)
	}()
	defer func() {
		cancel(nil)
		<-reloaded
		watched()
		err = errors.Join(err, <-health)
	}()
	if overHTTP {
		running++
		go func() { ended <- srv.Serve(serving, ln) }()
	}
	context.AfterFunc(ctx, func() {
		log.Info("stopping: no new calls, running ones may finish", logkey.Reason, context.Cause(ctx), logkey.Timeout, cfg.DrainTimeout)
	})
	for ; running > 0; running-- {
		end := <-ended
		err = errors.Join(err, end)
		// In dual mode, the end of the input does not stop HTTP; an error does.
		if end != nil || cfg.Mode != "dual" {
			cancel(end)
		}
	}
	if cfg.Mode == "stdio" && cfg.FinishTemplates && h.manager.Building() {
		if err := finishTemplatesInBackground(); err != nil {
			log.Warn("templates not finished", logkey.Error, err)
		}
	}
	return err
}

// frontOptions returns the options for access control and limits of an HTTP server.
func frontOptions(cfg *config.Config, sec *security) server.Options {
	return server.Options{
		Path:           cfg.Endpoint,
		CORS:           cfg.CORS,
		AllowedOrigins: cfg.AllowedOrigins,
		AllowedHosts:   cfg.AllowedHosts,
		Limits: server.Limits{
			Grace: cfg.DrainTimeout, SessionIdle: cfg.MCPSessionTimeout, Body: int64(cfg.MaxBodyMB) << 20,
			Connections: cfg.MaxConnections, Streams: cfg.MaxStreams, Calls: cfg.MaxCalls, Sessions: cfg.MaxMCPSessions,
			Rate: sec.rate, Burst: sec.burst, OwnerCalls: cfg.OwnerCalls(), OwnerStreams: cfg.OwnerStreams(),
		},
		OthersTLS:   sec.othersTLS(),
		Auth:        sec.verifier,
		Audit:       sec.audit,
		PublicURL:   cfg.PublicURL,
		BehindProxy: cfg.BehindProxy,
	}
}

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

// boxConfig returns the configuration of the box manager.
func boxConfig(cfg *config.Config) box.Config {
	sc := box.DefaultConfig()
	sc.MaxSessions = cfg.MaxSessions
	sc.MaxContexts = cfg.MaxContexts
	sc.MaxTotalMemoryMB = cfg.MaxTotalMemoryMB
	sc.MaxPerOwner = cfg.OwnerMaxBoxes
	sc.MaxMemoryPerOwnerMB = cfg.OwnerMaxMemoryMB
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
