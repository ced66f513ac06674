package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/perplexity"
	"github.com/glovebox-dev/glovebox/internal/server"
	"github.com/glovebox-dev/glovebox/internal/server/metrics"
	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
	"github.com/glovebox-dev/glovebox/internal/tracing/otlp"
)

// A service is an MCP server with what it needs: access control, the tools of other servers,
// the network of boxes, and the host, which starts while clients are served already. The
// caller closes it, also after an error.
type service struct {
	app                 *app
	cfg                 *config.Config
	log                 *slog.Logger
	begun               time.Time
	overHTTP, overStdio bool

	version  string
	security security
	search   *perplexity.Client // nil: no web search
	code     *codeMode          // nil: code calls no tools
	listener net.Listener       // nil unless overHTTP
	host     *host
	opening  *opening
	traces   *otlp.Exporter // nil: not sent
	measured *metrics.Metrics
	reloader *reloader
	server   *server.Server
	// commandsOnly: the image of boxes has no interpreter. A client over standard input lists
	// the tools before the engine is ready, so it is a guess at first.
	commandsOnly atomic.Bool

	abandoned <-chan struct{} // closed a while after the client has killed the process that it started; nil: it cannot
	closers   []func() error  // of what is open; close calls the last one first
}

// close closes what open has opened.
func (s *service) close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// closeLater has close call f.
func (s *service) closeLater(f func()) {
	s.closers = append(s.closers, func() error { f(); return nil })
}

// open opens all but the engine. load reads the settings again.
func (s *service) open(ctx context.Context, load func() (*config.Config, error)) (err error) {
	s.version, _ = buildVersion()
	s.log.Info("glovebox starts", logkey.Version, s.version, logkey.Transport, s.cfg.Mode, logkey.StateDir, s.cfg.StateDir)
	if s.overHTTP {
		if s.security, err = openSecurity(s.cfg, s.log); err != nil {
			return err
		}
		s.closeLater(s.security.close)
	}
	if err := s.openTools(); err != nil {
		return err
	}
	// Listen first: a port in use is the most likely error. No request is read before
	// the engine has started.
	if s.overHTTP {
		ln, err := listen(ctx, s.cfg)
		if err != nil {
			return err
		}
		s.closeLater(func() { ln.Close() })
		s.listener = s.security.listener(ln)
	}
	s.host = &host{log: s.log}
	s.closers = append(s.closers, s.host.close)
	if s.host.networks, err = openNetworks(s.cfg, s.log, s.security.audit); err != nil {
		return err
	}
	owned.Settle() // the files of the settings were read twice: in checkFiles and after enter
	if s.traces, err = s.host.openTraces(ctx, s.cfg, s.version); err != nil {
		return err
	}
	s.closeLater(func() {
		if err := s.traces.Close(); err != nil {
			s.log.Warn("traces not sent", logkey.Error, err) // does not fail the stop
		}
	})
	s.openMetrics()
	s.openReloader(load)
	options, err := s.options()
	if err != nil {
		return err
	}
	s.server = server.New(options)
	return nil
}

// openTools opens the web search and the servers whose tools code can call.
func (s *service) openTools() (err error) {
	search, unusable := openSearch(s.cfg, s.version, s.log)
	switch {
	case unusable != nil && s.cfg.Search.Explicit:
		return unusable
	case unusable != nil: // the variables may be meant for another program
		s.log.Warn("web search is not available; correct the variable or unset it", logkey.Error, unusable)
	}
	if s.search = search; search != nil {
		s.closeLater(func() { search.Close() })
	}
	calls := s.log // of code
	if s.security.audit != nil {
		calls = s.security.audit
	}
	if s.code, err = s.app.openCodeMode(s.cfg, search, s.log, calls); err != nil {
		return err
	}
	s.closeLater(s.code.close)
	return nil
}

// openMetrics opens the metrics. They are read when the server runs.
func (s *service) openMetrics() {
	sources := metrics.Options{
		Egress: s.host.networks.gate.Stats,
		Server: func() server.Stats { return s.server.Stats() },
		Ready:  func() bool { return s.server.Ready() },
	}
	if s.code != nil {
		sources.Code = s.code.memory.Use
	}
	s.measured = s.host.metrics(s.cfg, sources)
}

// openReloader sets what a reload of the settings changes.
func (s *service) openReloader(load func() (*config.Config, error)) {
	r := &reloader{
		log: s.log, level: s.app.level, load: load,
		apply: func(cfg *config.Config) error {
			if err := s.code.checkRules(cfg); err != nil {
				return err
			}
			if err := s.host.networks.reload(cfg); err != nil {
				return err
			}
			return s.host.manager.Reconfigure(boxConfig(cfg))
		},
		files: s.security.files,
	}
	if s.code != nil {
		r.tools = s.code.reload
	}
	if s.cfg.LogFile != "" { // first: the new file gets all messages
		r.files = slices.Insert(r.files, 0, reloadFile{"log file", s.app.reopenLog})
	}
	r.now.Store(s.cfg)
	s.reloader = r
}

// options returns the options of the server: its limits, the tools that it lists, and what it
// reports about its boxes.
func (s *service) options() (server.Options, error) {
	o := frontOptions(s.cfg, &s.security)
	o.Version, o.Log, o.Toolsets = s.version, s.log, s.cfg.Toolsets
	o.Tools = tools.Deps{Await: s.opening.await, Log: s.log, ProtocolErrors: s.cfg.ToolErrors == "protocol"}
	if s.code != nil {
		o.Tools.Code, o.Tools.Approvals = s.code.broker, s.code.approvals
	}
	if s.search != nil {
		o.Extend.Tools = searchTools(s.search, s.cfg)
		o.Extend.Instructions = "\n" + perplexity.Instructions
	}
	o.NoSnapshots = engines.NoSnapshots()
	o.NoHibernation, o.Image = !s.cfg.Hibernate, s.cfg.Image != ""
	if o.Image {
		s.commandsOnly.Store(engines.BoxesElsewhere() == nil && runsCommandsOnly(s.cfg))
		o.CommandsOnly = s.commandsOnly.Load
	}
	o.Volumes, o.Network = len(s.cfg.Volumes) > 0, s.host.networks.described
	if !engines.NoSnapshots() { // open: clients list the tools before the engine is ready
		if err := s.host.openCatalog(s.cfg); err != nil {
			return server.Options{}, err
		}
		o.Templates = s.host.describedTemplates
	}
	o.Status = s.host.status
	o.Page = func(_ context.Context, p *statuspage.Page) { s.host.page(s.reloader.now.Load(), p) }
	// In dual mode, the end of the input does not stop HTTP.
	o.Ready, o.Ending = s.host.unready, func() { s.opening.ending(s.cfg.Mode == "stdio") }
	o.Peers = func() *server.Peers { return s.opening.others(s.host) }
	o.Metrics, o.Observe, o.Refused = s.measured.Handler(), s.measured.Request, s.measured.Refusal
	o.Trace = s.traces.Tracer()
	return o, nil
}

// run starts the engine and serves until ctx ends, the input ends or something fails. A
// message on hangups reloads the settings.
func (s *service) run(ctx context.Context, hangups <-chan struct{}) (err error) {
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 2)
	running := 0
	// Answer before the engine is ready: some clients wait a second for the server that
	// they start, and inspecting a new machine takes longer.
	if s.overStdio {
		running++
		go func() { ended <- s.server.ServeStdio(serving, s.app.In, s.app.Out) }()
	}
	if err := s.host.prepare(ctx, s.cfg, s.app.progress(s.cfg), s.measured.Box); err != nil {
		s.opening.finish(nil, err)
		cancel(err)
		if s.overStdio {
			err = errors.Join(err, <-ended)
		}
		return err
	}
	s.commandsOnly.Store(len(s.host.maker.Interpreters) == 0)
	s.opening.finish(s.host.manager, nil)
	wait := s.watch(serving, cancel, hangups)
	defer func() {
		cancel(nil)
		err = errors.Join(err, wait())
	}()
	if s.overHTTP {
		running++
		go func() { ended <- s.server.Serve(serving, s.listener) }()
	}
	context.AfterFunc(ctx, func() {
		s.log.Info("stopping: no new calls, running ones may finish", logkey.Reason, context.Cause(ctx), logkey.Timeout, s.cfg.DrainTimeout)
		s.host.manager.Leave()
	})
	for ; running > 0; running-- {
		var end error
		select {
		case end = <-ended:
		case <-s.abandoned: // a write to the client may block as long as the client lives
			return err
		}
		err = errors.Join(err, end)
		// In dual mode, the end of the input does not stop HTTP; an error does.
		if end != nil || s.cfg.Mode != "dual" {
			cancel(end)
		}
	}
	return err
}

// watch starts, until ctx ends, the health check of the first boxes, whose failure it passes
// to fail, and what follows changed files and settings. wait waits for all of it, and returns
// the error of the check.
func (s *service) watch(ctx context.Context, fail context.CancelCauseFunc, hangups <-chan struct{}) (wait func() error) {
	where := ""
	if s.overHTTP {
		where = s.app.announce(s.cfg, s.listener.Addr(), s.version, s.log)
	}
	health := make(chan error, 1)
	go func() {
		err := s.host.ready(ctx)
		switch {
		case err != nil:
			fail(err)
		case s.server.Ready():
			s.app.noteReady(s.cfg, where, s.version, s.log, time.Since(s.begun))
		}
		health <- err
	}()
	unwatch := s.host.networks.watch(ctx, s.reloader.now.Load)
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		s.reloader.run(ctx, hangups)
	}()
	return func() error {
		<-reloaded
		unwatch()
		return <-health
	}
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
		PeersTLS:    sec.peersTLS(),
		Auth:        sec.verifier,
		Audit:       sec.audit,
		PublicURL:   cfg.PublicURL,
		BehindProxy: cfg.BehindProxy,
	}
}
