// Package mcpcli implements the commands of "glovebox mcp", which use the MCP servers
// of a configuration. It reads arguments, asks for approval and shows results; mcpkit
// does the rest.
//
// Data goes to standard output, everything else to standard error. The exit codes are
// the constants of this package.
package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/cassette"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
)

// Env is the environment of the commands.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Lookup   func(string) (string, bool) // the environment
	Environ  func() []string
	// Until returns a context that a signal cancels, with the signal as its cause. The
	// function restores the default handling of signals.
	Until func(context.Context) (context.Context, func())
	// StateDir returns the directory of approvals, logins and caches.
	StateDir func() (string, error)
	Version  string
	// Prefix begins the commands in advice, such as the variable of the state directory;
	// it ends with a space unless it is empty.
	Prefix string
	// HintFor returns advice about an error for which this package has none, such as a
	// full disk; "" if there is none. It may be nil.
	HintFor func(error) string
	// BindServe adds the flags of Serve to the command that calls it. It may be nil.
	BindServe func(*cobra.Command)
	// Serve serves a gateway: over standard input and output if listen is "", otherwise
	// over HTTP at that address.
	Serve func(ctx context.Context, g *gateway.Gateway, listen string, log *slog.Logger) error
}

// app is the state that commands share.
type app struct {
	Env
	flags flags
	// recording is the one of --replay, or nil.
	recording *cassette.Recording
	hashes    *consent.Cache // of the files that definitions run
	// terminal reports whether there is a terminal to ask the user.
	terminal func() bool
}

// person returns the writer for questions to the user, even if the error stream is a
// file; nil if there is no terminal.
func (a *app) person() io.Writer {
	if isTerminal(a.Err) {
		return a.Err
	}
	if tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		return tty // closed at exit
	}
	return nil
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// flags are the flags of all commands.
type flags struct {
	config, root   string
	owner          string
	configOutside  bool
	logOutside     bool
	trust          bool
	allowHTTP      bool
	allowLocalhost bool
	allowPrivate   bool
	allowHosts     []string
	dnsTimeout     duration
	timeout        duration
	connectTimeout duration
	era            string
	inputs         []string
	output         string
	verbose        bool
	logDir         string
	record, replay string // of commands for one server
}

// duration is a flag: a number of seconds, or a time with a unit; 0 is the default.
type duration time.Duration

// String returns the text of the default in the help.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type is the placeholder of the value in the help.
func (d *duration) Type() string { return "time" }

// Set reads the flag's value.
func (d *duration) Set(text string) error {
	if text == "0" || text == "0s" {
		*d = 0
		return nil
	}
	value, err := config.Seconds("value", text)
	*d = duration(value)
	return err
}

// Command returns the command "mcp".
func Command(env Env) *cobra.Command {
	a := &app{Env: env, hashes: &consent.Cache{}}
	a.terminal = func() bool { return isTerminal(env.In) && a.person() != nil }
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Use the MCP servers of an mcp.json",
		Long: `Mcp lists, inspects and calls the servers of a configuration: .mcp.json or mcp.json in
the current directory, or the file --config, in the format of any common client.

A server's definition can run a program or receive secrets, so you approve each
definition once, and again when it or a local file that it runs changes. Servers over
https that need neither are used without approval.

Exit codes: 0 success; 1 the server returned an error; 2 invalid argument or
configuration; 3 not approved or not logged in; 4 unreachable or timed out; 5 the tool
reported a failure.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.SortFlags = false // the help shows them in this order
	f.StringVar(&a.flags.config, "config", "", "configuration `file`, in any client's format")
	f.StringVar(&a.flags.root, "root", "", "project `directory` of the configuration (default: the current one)")
	f.StringVar(&a.flags.owner, "owner", "", "use the approvals and logins of this `owner` of a server with --tools-owners")
	f.BoolVar(&a.flags.configOutside, "allow-config-outside-root", false, "allow a --config file outside of --root")
	f.BoolVar(&a.flags.logOutside, "allow-stdout-log-outside-root", false, "allow servers' output logs outside of --root")
	f.BoolVar(&a.flags.trust, "trust", false, "trust the server for this command only, without asking")
	f.BoolVar(&a.flags.allowHTTP, "allow-http", false, "allow untrusted servers without TLS")
	f.BoolVar(&a.flags.allowLocalhost, "allow-localhost", false, "allow untrusted servers on this machine")
	f.BoolVar(&a.flags.allowPrivate, "allow-private-ip", false, "allow untrusted servers at private addresses")
	f.StringArrayVar(&a.flags.allowHosts, "allow-host", nil, "allow untrusted servers only at this `host` and its subdomains; repeatable")
	a.flags.dnsTimeout = duration(2 * time.Second)
	f.Var(&a.flags.dnsTimeout, "dns-timeout", "timeout of a DNS lookup")
	f.Var(&a.flags.timeout, "timeout", "timeout of a request, such as 90 or 5m (default: the server's setting, or 30s; 60s for a call)")
	f.Var(&a.flags.connectTimeout, "connect-timeout", "timeout of start and handshake (default: the server's setting, or 30s; 5m for npx and its like)")
	f.StringVar(&a.flags.era, "era", "auto", "`auto|legacy|modern` generation of the protocol")
	f.StringArrayVar(&a.flags.inputs, "input", nil, "`id=value` of an input of the configuration; repeatable")
	f.StringVarP(&a.flags.output, "output", "o", "text", "`text|json` output format; with json, errors are a line of JSON on standard error")
	f.BoolVarP(&a.flags.verbose, "verbose", "v", false, "show servers' logs, error streams and progress, which terminals always show")
	f.StringVar(&a.flags.logDir, "log-dir", "", "write servers' error streams and messages, without secrets, to rotated files in this `directory`")
	_ = cmd.MarkPersistentFlagDirname("log-dir") // the flag exists
	for name, choices := range map[string][]string{"era": {"auto", "legacy", "modern"}, "output": {"text", "json"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	cmd.AddCommand(
		a.lsCommand(), a.statusCommand(), a.trustCommand(), a.approvalsCommand(), a.loginCommand(), a.logoutCommand(), a.configCommand(), a.serveCommand(),
	)
	for _, about := range []*cobra.Command{
		a.toolsCommand(), a.callCommand(), a.resourcesCommand(), a.readCommand(), a.promptsCommand(), a.promptCommand(),
		a.requestCommand(), a.notifyCommand(),
	} {
		cmd.AddCommand(a.recorded(about))
	}
	return cmd
}

// run adapts f to cobra: it handles signals, classifies errors and formats them.
func (a *app) run(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := a.Until(cmd.Context())
		defer stop()
		err := a.checkFlags()
		if err == nil {
			err = f(ctx, args)
		}
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = cause // the signal
		}
		if ctx.Err() != nil {
			return err
		}
		e := a.classify(err)
		if a.flags.output == "json" && !e.Silent {
			fmt.Fprintln(a.Err, envelope(e))
			e.Silent = true
		}
		return e
	}
}

func (a *app) checkFlags() error {
	switch a.flags.output {
	case "text", "json":
	default:
		a.flags.output = "text"
		return usage("", "--output must be text or json")
	}
	switch a.flags.era {
	case "auto", "legacy", "modern":
	default:
		return usage("", "--era must be auto, legacy or modern, got %q", a.flags.era)
	}
	if a.flags.record != "" && a.flags.replay != "" {
		return usage("", "--record and --replay exclude each other")
	}
	for _, input := range a.flags.inputs {
		if !strings.Contains(input, "=") { // do not print it: it may be a secret
			return usage("write --input id=value", "an --input has no \"=\"")
		}
	}
	if a.flags.dnsTimeout == 0 {
		return usage("", "--dns-timeout must be positive")
	}
	return nil
}

func (a *app) era() mcpkit.Era {
	if a.flags.era == "auto" {
		return mcpkit.Auto
	}
	return mcpkit.Era(a.flags.era)
}

// note writes a line to standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.Err, visible.Text(fmt.Sprintf(format, args...)))
}
