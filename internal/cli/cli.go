// Package cli is the command line of Glovebox, and the place where engine, boxes and server
// come together. Each command has a file of its own; engine.go selects the engine by the
// settings, package engines chooses without them, and host.go opens it and the boxes. Main runs the program, also from tests.
//
// Data goes to standard output, everything else to standard error. The exit codes are
// part of the interface: see ExitOK.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/cli/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/gctune"
	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// Exit codes. The run command also returns the exit code of the program in the box.
const (
	ExitOK          = 0
	ExitFailure     = 1   // failure; of run, also failure of the code in the box
	ExitUsage       = 2   // invalid flag, argument or setting
	ExitTimeout     = 124 // run: the time-out was reached
	ExitOwnFault    = 125 // run: Glovebox failed; the result of the code is unknown
	ExitInterrupted = 130 // SIGINT; 143 for SIGTERM
)

// Streams are the standard streams of the process.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is the state that commands share.
type app struct {
	Streams
	lookup func(string) (string, bool) // the environment

	began bool // a command is running: later errors are not usage errors

	level     *slog.LevelVar // of the log; set by openLog
	reopenLog func() error   // reopens the log file; set by openLog
}

// Main runs the command line args, without the program's name, and returns the exit
// code. When it returns, everything that it started has stopped.
func Main(ctx context.Context, args []string, s Streams) int {
	gctune.Start()
	// Libraries log here: net/http quotes what a host has sent, perhaps with a secret.
	log.SetOutput(io.Discard)
	owned.SetOnlyUser(isOnlyUser)
	out := &output{Writer: s.Out}
	s.Out = out
	a := &app{Streams: s, lookup: os.LookupEnv}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.began {
		err = a.wrongUsage(cmd, err)
	}
	if err != nil {
		a.report(err)
	}
	if lost := out.lost(err); lost != nil {
		a.report(lost)
		if err == nil && cmd.Name() == "run" {
			return ExitOwnFault
		}
		err = cmp.Or(err, lost)
	}
	return exitCode(err)
}

// root returns the root command.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glovebox",
		Short: "An isolated computer for an AI agent, reached through MCP",
		Long: `Glovebox gives an AI agent an isolated computer of its own: Python, JavaScript
and a shell, through MCP tools.

Exit codes: 0 success; 1 failure; 2 invalid flag, argument or setting; 130 and
143 interrupted by SIGINT and SIGTERM. The run command returns the program's exit
code, 124 after a time-out, and 125 if Glovebox itself failed. The mcp commands
have more exit codes: see "glovebox mcp --help".`,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	printVersion := root.Flags().Bool("version", false, "print the versions, as the command version does")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *printVersion {
			return a.printVersion(false)
		}
		return cmd.Help()
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: nearFlag(cmd, err), cmd: cmd.CommandPath()}
	})
	help.Install(root)
	root.SetHelpCommand(helpCommand())
	root.AddCommand(a.serveCommand(), a.stdioCommand(), a.runCommand(), a.templateCommand(), a.imageCommand(), a.networkCommand(), a.tokenCommand(), a.doctorCommand(), a.attackCommand(), a.versionCommand(), a.mcpCommand(), a.searchCommand(), settingsTopic())
	root.InitDefaultCompletionCmd() // otherwise cobra adds it after watch
	a.watch(root)
	return root
}

// watch makes every command record that it runs, and commands that only have
// subcommands reject other arguments.
func (a *app) watch(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.Name() == "completion" {
		cmd.Args, cmd.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if f := cmd.RunE; f != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.began = true
			a.warnOfVariables(cmd)
			return f(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.watch(sub)
	}
}

// warnOfVariables warns about environment variables that look like settings but are
// not, for commands with settings.
func (a *app) warnOfVariables(cmd *cobra.Command) {
	if cmd.Flags().Lookup("config") == nil {
		return
	}
	for _, w := range config.UnknownVariables(os.Environ()) {
		a.note("glovebox: warning: %s", printable(w))
	}
	// For the processes of this program that it starts.
	_ = os.Setenv(config.CheckedEnv, "1") // the name is valid
}

// wrongUsage turns an error of cobra into a usage error. Errors with an exit code of
// their own stay.
func (a *app) wrongUsage(cmd *cobra.Command, err error) error {
	var (
		usage *usageError
		own   *mcpcli.Error
	)
	if errors.As(err, &usage) || errors.As(err, &own) {
		return err
	}
	return &usageError{err: err, cmd: cmd.CommandPath()}
}

// helpCommand returns the command that shows the help of others.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]...",
		Short: "Show the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if about, _, err := cmd.Root().Find(args); err == nil {
				for _, sub := range about.Commands() {
					names = append(names, sub.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if about == nil {
				about = cmd.Root()
			}
			if err != nil || len(rest) > 0 {
				return unknownCommand(about, args[len(args)-max(1, len(rest))])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// usageError is an invalid flag or argument.
type usageError struct {
	err  error
	cmd  string // the command whose help applies
	hint string // replaces the reference to the help
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// noArgs rejects arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return unknownCommand(cmd, args[0])
	}
	return &usageError{err: fmt.Errorf("unexpected argument %q", args[0]), cmd: cmd.CommandPath()}
}

// unknownCommand is the error for an unknown subcommand of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	e := &usageError{err: fmt.Errorf("unknown command %q for %s", word, cmd.CommandPath()), cmd: cmd.CommandPath()}
	if near := nearest.Of(word, names); near != "" {
		e.err = fmt.Errorf("%w; did you mean %s?", e.err, near)
	} else if len(names) > 0 {
		e.hint = fmt.Sprintf("the commands are: %s", strings.Join(names, ", "))
	}
	return e
}

// nearFlag adds to the error for an unknown flag the one of cmd that it probably stands for.
func nearFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := nearest.Of(unknown.GetSpecifiedName(), names); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

// hinted is an error with a remedy.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// withHint adds a remedy to err; nil stays nil.
func withHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// exitStatus sets the exit code. Without an error, nothing is printed.
type exitStatus struct {
	code int
	err  error
}

func (e *exitStatus) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitStatus) Unwrap() error { return e.err }

// report writes err to standard error, one line for each of its errors, and the
// remedies.
func (a *app) report(err error) {
	var status *exitStatus
	if errors.As(err, &status) && status.err == nil {
		return
	}
	if shown := (interface{ Shown() bool })(nil); errors.As(err, &shown) && shown.Shown() {
		return
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(a.Err, "glovebox: error: %s\n", printable(strings.TrimRight(line, "\n")))
	}
	for _, hint := range hints(err) {
		fmt.Fprintf(a.Err, "glovebox: hint: %s\n", hint)
	}
}

// hints returns the known remedies of err.
func hints(err error) []string {
	if own := (interface{ Hint() string })(nil); errors.As(err, &own) {
		if hint := own.Hint(); hint != "" {
			return []string{printable(hint)}
		}
		return nil
	}
	var h *hinted
	if errors.As(err, &h) {
		return []string{h.hint}
	}
	var usage *usageError
	if errors.As(err, &usage) {
		if usage.hint != "" {
			return []string{usage.hint}
		}
		return []string{fmt.Sprintf("%q shows its flags and arguments", usage.cmd+" --help")}
	}
	var bad *config.Error
	if errors.As(err, &bad) {
		return []string{`"glovebox settings" describes the settings`}
	}
	var output *outputError
	if errors.As(err, &output) {
		return nil
	}
	if hostdisk.IsFull(err) {
		return []string{fullDisk(err)}
	}
	return nil
}

// exitCode returns the exit code of err.
func exitCode(err error) int {
	var (
		status *exitStatus
		usage  *usageError
		bad    *config.Error
		sig    *signalled
		own    *mcpcli.Error
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &sig):
		return sig.code()
	case errors.As(err, &own):
		return own.Code
	case errors.As(err, &status):
		return status.code
	case errors.As(err, &usage), errors.As(err, &bad):
		return ExitUsage
	}
	return ExitFailure
}

// printable returns text on one line, with the characters escaped that could control the
// terminal or hide text. Text from boxes and servers and file names must do neither.
func printable(s string) string { return visible.Text(strings.ReplaceAll(s, "\n", `\n`)) }
