// Package mcpcli is the commands below "glovebox mcp": every MCP server of a
// configuration from the shell. It is to mcpkit what a shell is to a library: it
// reads arguments, asks for consent, and shows answers.
//
// Data goes to standard output, everything else to standard error. The exit codes
// are those of this package's constants.
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
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/cassette"
)

// Env is what the commands get from outside.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Lookup   func(string) (string, bool) // the environment
	Environ  func() []string
	// Until returns a context that a signal ends, with an error that says so as its
	// cause; the function gives the signals back.
	Until func(context.Context) (context.Context, func())
	// StateDir is where consents and what is known of servers are kept.
	StateDir func() (string, error)
	Version  string
	// HintFor returns advice about an error for which this package has none, such as a
	// full disk; "" if there is none. It may be nil.
	HintFor func(error) string
	// BindServe adds the flags that Serve looks at to the command that calls it; may
	// be nil.
	BindServe func(*cobra.Command)
	// Serve offers a gateway's servers: over standard input and output if listen is
	// "", else over HTTP at that address.
	Serve func(ctx context.Context, g *gateway.Gateway, listen string, log *slog.Logger) error
}

// app is what the commands share.
type app struct {
	Env
	flags flags
	// recording is what --replay plays; else nil.
	recording *cassette.Recording
	// terminal reports whether there is a person to ask.
	terminal func() bool
}

// person is where to write what a person has to read before answering, also if the
// error stream goes to a file; nil if there is nobody.
func (a *app) person() io.Writer {
	if isTerminal(a.Err) {
		return a.Err
	}
	if tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		return tty // closed with the program, which asks once or twice
	}
	return nil
}

// isTerminal reports whether a stream is one.
func isTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// flags are those of all commands.
type flags struct {
	config, root   string
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
	record, replay string // of commands about one server
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
	a := &app{Env: env}
	a.terminal = func() bool { return isTerminal(env.In) && a.person() != nil }
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Use the MCP servers of an mcp.json",
		Long: `Mcp lists, calls and inspects the servers of a configuration: .mcp.json or mcp.json
of the current directory, or the file of --config, in the dialect of any of the
usual clients.

A server's definition can run a program or receive secrets, so you approve each
definition once, and again when it changes. Servers over https that need neither are
used without approval.

Exit codes: 0 done; 1 the server answered with an error; 2 a wrong argument or
configuration; 3 not trusted or not logged in; 4 not reached, or no answer in
time; 5 the tool says that it failed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.SortFlags = false // help has them in groups, in this order
	f.StringVar(&a.flags.config, "config", "", "the configuration `file`, of any dialect")
	f.StringVar(&a.flags.root, "root", "", "the `directory` that the configuration is for (default: the current one)")
	f.BoolVar(&a.flags.configOutside, "allow-config-outside-root", false, "let the file of --config lie outside of the directory of --root")
	f.BoolVar(&a.flags.logOutside, "allow-stdout-log-outside-root", false, "let the logs of what servers write lie outside of it, too")
	f.BoolVar(&a.flags.trust, "trust", false, "trust the server for this time, without asking or remembering")
	f.BoolVar(&a.flags.allowHTTP, "allow-http", false, "let untrusted servers be reached without encryption")
	f.BoolVar(&a.flags.allowLocalhost, "allow-localhost", false, "let untrusted servers be on this machine")
	f.BoolVar(&a.flags.allowPrivate, "allow-private-ip", false, "let untrusted servers be at private addresses")
	f.StringArrayVar(&a.flags.allowHosts, "allow-host", nil, "let untrusted servers be at this `host` and those below it only; may be repeated")
	a.flags.dnsTimeout = duration(2 * time.Second)
	f.Var(&a.flags.dnsTimeout, "dns-timeout", "timeout of a DNS lookup")
	f.Var(&a.flags.timeout, "timeout", "timeout of a request, such as 90 or 5m (default: the server's setting, or 30s; 60s for a call)")
	f.Var(&a.flags.connectTimeout, "connect-timeout", "timeout of start and handshake (default: the server's setting, or 30s)")
	f.StringVar(&a.flags.era, "era", "auto", "the protocol's generation to speak: auto, legacy or modern")
	f.StringArrayVar(&a.flags.inputs, "input", nil, "the answer to an input that the configuration asks for, as `id=value`; may be repeated")
	f.StringVarP(&a.flags.output, "output", "o", "text", "text, or json: the answer as it is, errors in one line of JSON on standard error")
	f.BoolVarP(&a.flags.verbose, "verbose", "v", false, "show what servers log and write to their error streams, and progress, which a terminal shows anyhow")
	f.StringVar(&a.flags.logDir, "log-dir", "", "keep what servers write to their error streams, and all that is said without secrets, in files of bounded size in this `directory`")
	_ = cmd.MarkPersistentFlagDirname("log-dir") // the flag exists
	for name, choices := range map[string][]string{"era": {"auto", "legacy", "modern"}, "output": {"text", "json"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	cmd.AddCommand(
		a.lsCommand(), a.statusCommand(), a.trustCommand(), a.loginCommand(), a.logoutCommand(), a.configCommand(), a.serveCommand(),
	)
	for _, about := range []*cobra.Command{
		a.toolsCommand(), a.callCommand(), a.resourcesCommand(), a.readCommand(), a.promptsCommand(), a.promptCommand(),
		a.requestCommand(), a.notifyCommand(),
	} {
		cmd.AddCommand(a.recorded(about))
	}
	return cmd
}

// run makes a command's function of one that returns errors of any kind.
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
			err = cause // a signal explains itself
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
		return usage("", "--output is text or json")
	}
	switch a.flags.era {
	case "auto", "legacy", "modern":
	default:
		return usage("", "--era is auto, legacy or modern, not %q", a.flags.era)
	}
	if a.flags.record != "" && a.flags.replay != "" {
		return usage("", "--record and --replay are not for the same command: a recording has nothing to record")
	}
	for _, input := range a.flags.inputs {
		if !strings.Contains(input, "=") { // whose text may be a secret
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

// note writes a line for a person.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.Err, printable(fmt.Sprintf(format, args...)))
}

// printable replaces control characters, which may come from a server and must not
// move the terminal's cursor. Line ends and tabs stay.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}
