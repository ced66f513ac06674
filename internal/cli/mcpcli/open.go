package mcpcli

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

const (
	connectTimeout = 30 * time.Second
	// installTimeout is for servers that npx and its like may download first. Ended in
	// the middle, npx leaves a cache with which it never works again.
	installTimeout = 5 * time.Minute
	requestTimeout = 30 * time.Second
	callTimeout    = 60 * time.Second
	// idleAtEnd is the time for a server's process to react to the end of its input
	// before it gets SIGTERM: many never do. A process that does react may finish.
	idleAtEnd = 100 * time.Millisecond
)

// load reads the configuration.
func (a *app) load() (*mcpjson.Config, error) {
	if a.flags.replay != "" {
		return a.replayed()
	}
	var cfg *mcpjson.Config
	var err error
	o := mcpjson.Options{
		Root: a.flags.root, Path: a.flags.config, Required: a.flags.config != "", Import: true,
		AllowOutside: a.flags.configOutside, AllowLogOutside: a.flags.logOutside,
	}
	if o.Path != "" && o.Root == "" {
		cfg, err = mcpjson.LoadFile(o.Path, o)
	} else {
		cfg, err = mcpjson.Load(o)
	}
	if err != nil {
		return nil, err
	}
	for _, w := range cfg.Warnings {
		a.note("glovebox: warning: %v", w)
	}
	if cfg.Path == "" && len(cfg.Servers) == 0 {
		return nil, usage("create an mcp.json, or choose a file with --config", "no .mcp.json or mcp.json in %s", a.here())
	}
	return cfg, nil
}

func (a *app) here() string {
	dir, err := filepath.Abs(a.flags.root)
	if err != nil {
		return "this directory"
	}
	return dir
}

// state returns the path of a state file.
func (a *app) state(name string) (string, error) {
	dir, err := a.StateDir()
	if err != nil {
		return "", err
	}
	if a.flags.owner != "" {
		sum := sha256.Sum256([]byte(a.flags.owner)) // the name may have any characters
		dir = filepath.Join(dir, "mcp", "owners", hex.EncodeToString(sum[:]))
		return filepath.Join(dir, name), nil
	}
	return filepath.Join(dir, "mcp", name), nil
}

func (a *app) consents() (*consent.Store, error) {
	path, err := a.state("consents.json")
	if err != nil {
		return nil, err
	}
	return consent.Open(path), nil
}

// open returns a manager of the configuration for one command. The caller closes it.
func (a *app) open(cfg *mcpjson.Config, change func(*mcpkit.Options) error) (*mcpkit.Manager, error) {
	o, err := a.options(cfg)
	o.Limits.IdleGrace = idleAtEnd
	if err == nil && change != nil {
		err = change(&o)
	}
	if err != nil {
		return nil, err
	}
	return mcpkit.New(o), nil
}

// options returns the options of a manager of the configuration.
func (a *app) options(cfg *mcpjson.Config) (mcpkit.Options, error) {
	eras, err := a.state("eras.json")
	if err != nil {
		return mcpkit.Options{}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	logins, err := a.logins()
	if err != nil {
		return mcpkit.Options{}, err
	}
	o := mcpkit.Options{
		Config:   cfg,
		Client:   &mcp.Implementation{Name: "glovebox", Title: "Glovebox", Version: a.Version},
		Trust:    a.trustOf,
		Outbound: a.outbound(),
		Resolver: mcpjson.Resolver{Env: a.Lookup, Inputs: cfg.Inputs, Input: a.ask, Home: home},
		Eras:     mcpkit.OpenEras(eras),
		Era:      a.era(),
		OAuth:    login.New(login.Options{Store: logins, ClientName: clientName}).OAuth, // without a prompt
		Environ:  a.Environ,
		LogDir:   a.flags.logDir,
		Log:      slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: untimed})),
		Limits:   mcpkit.Limits{Connect: connectTimeout, Install: installTimeout, Request: requestTimeout},
		Timeouts: mcpjson.Timeouts{Connect: time.Duration(a.flags.connectTimeout), Request: time.Duration(a.flags.timeout)},
	}
	if nested, ok := a.Lookup(config.NestedEnv); ok {
		o.Env = []string{config.NestedEnv + "=" + nested}
	}
	if a.flags.verbose {
		o.Stderr = func(server string) io.WriteCloser { return &prefixed{a: a, prefix: server + ": "} }
		o.Hooks.Log = func(_ context.Context, server string, p *mcp.LoggingMessageParams) {
			a.note("%s: %s: %v", server, p.Level, p.Data)
		}
	}
	if a.showsProgress() {
		o.Hooks.Progress = func(_ context.Context, server string, p *mcp.ProgressNotificationParams) { a.progress(server, p) }
	}
	return o, nil
}

// outbound returns the policy for untrusted servers.
func (a *app) outbound() outbound.Policy {
	return outbound.Policy{
		AllowHTTP: a.flags.allowHTTP, AllowLocalhost: a.flags.allowLocalhost, AllowPrivate: a.flags.allowPrivate,
		AllowedHosts: a.flags.allowHosts, LookupTimeout: time.Duration(a.flags.dnsTimeout),
	}
}

// untimed removes the time from log lines.
func untimed(_ []string, attr slog.Attr) slog.Attr {
	if attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}

// showsProgress reports whether to show progress.
func (a *app) showsProgress() bool { return a.flags.verbose || isTerminal(a.Err) }

// progress shows a progress notification.
func (a *app) progress(server string, p *mcp.ProgressNotificationParams) {
	text := fmt.Sprintf("%g", p.Progress)
	if p.Total > 0 {
		text = fmt.Sprintf("%g of %g", p.Progress, p.Total)
	}
	if p.Message != "" {
		text += ": " + p.Message
	}
	a.note("%s: %s", server, text)
}

// with calls f with the session of a server. Errors of connecting have a class of their
// own.
func (a *app) with(ctx context.Context, server string, change func(*mcpkit.Options), f func(*mcpkit.Session) error) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	return a.withConfig(ctx, cfg, server, change, f)
}

func (a *app) withConfig(ctx context.Context, cfg *mcpjson.Config, server string, change func(*mcpkit.Options), f func(*mcpkit.Session) error) (err error) {
	end := func() error { return nil }
	m, err := a.open(cfg, func(o *mcpkit.Options) (err error) {
		if change != nil {
			change(o)
		}
		end, err = a.taped(o)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(), end()) }()
	s, err := m.Session(server)
	if err != nil {
		return err
	}
	if _, err := s.Initialize(ctx); err != nil {
		return a.unreached(err)
	}
	return f(s)
}

// unreached marks an error as one of connecting, unless it has another class.
func (a *app) unreached(err error) error {
	if a.classify(err).Code != ExitFailure {
		return err
	}
	return &notReached{err}
}

type notReached struct{ error }

func (e *notReached) Unwrap() []error { return []error{e.error, errConnect} }

// ask returns the value of an input of the configuration.
func (a *app) ask(_ context.Context, in mcpjson.Input) (string, error) {
	for _, input := range slices.Backward(a.flags.inputs) { // the last one counts
		if id, answer, _ := strings.Cut(input, "="); id == in.ID {
			return answer, nil
		}
	}
	if !a.terminal() {
		return "", usage("set it with --input "+in.ID+"=…", "the configuration needs the input %q, and there is no terminal to ask", in.ID)
	}
	what := in.Description
	if what == "" {
		what = in.ID
	}
	if len(in.Options) > 0 {
		what += " (" + strings.Join(in.Options, ", ") + ")"
	}
	switch { // Enter selects the default
	case in.Default == "":
	case in.Password:
		what += " [as configured]"
	default:
		what += " [" + in.Default + "]"
	}
	fmt.Fprintf(a.person(), "%s: ", oneLine(what))
	line, err := a.line(in.Password)
	if err != nil {
		return "", fmt.Errorf("read the input %q: %w", in.ID, err)
	}
	if line == "" {
		return in.Default, nil
	}
	return line, nil
}

// maxAnswer bounds an answer of the user.
const maxAnswer = 64 << 10

func (a *app) line(hidden bool) (string, error) {
	if hidden {
		return readHidden(a.In, a.person())
	}
	line, err := bufio.NewReaderSize(io.LimitReader(a.In, maxAnswer), 1).ReadString('\n')
	if err != nil && line == "" {
		return "", err
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// prefixed writes complete lines with the server's name as prefix.
type prefixed struct {
	a      *app
	prefix string
	line   []byte
}

// maxLine bounds a line.
const maxLine = 8 << 10

func (p *prefixed) Write(b []byte) (int, error) {
	for _, c := range b {
		if c == '\n' || len(p.line) == maxLine {
			p.flush()
		}
		if c != '\n' {
			p.line = append(p.line, c)
		}
	}
	return len(b), nil
}

func (p *prefixed) flush() {
	p.a.note("%s%s", p.prefix, p.line)
	p.line = p.line[:0]
}

// Close writes the last, incomplete line.
func (p *prefixed) Close() error {
	if len(p.line) > 0 {
		p.flush()
	}
	return nil
}
