// Package cli is the command line of Glovebox: one file a command, the program
// as a value. Main can be called from a test as from main.
//
// Data goes to standard output, everything else to standard error. Exit codes
// are part of the interface, see docs of ExitOK and the following.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/cli/mcpcli"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// Exit codes. Run passes on the code of what ran in the box besides.
const (
	ExitOK          = 0
	ExitFailure     = 1   // it did not work; or, of run, the code in the box failed
	ExitUsage       = 2   // a flag, an argument or a setting is wrong
	ExitTimeout     = 124 // run: the time-out ended it
	ExitOwnFault    = 125 // run: Glovebox itself failed, nothing is known about the code
	ExitInterrupted = 130 // SIGINT; 143 for SIGTERM
)

// Streams are the standard streams of the process.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is what commands share.
type app struct {
	Streams
	lookup func(string) (string, bool) // the environment

	began bool // a command has begun: what goes wrong now is no wrong command line

	level     *slog.LevelVar // of the log; set by openLog
	reopenLog func() error   // opens the log file anew; set by openLog
}

// Main runs the command line args, without the program's name, and returns the
// exit code. It returns when everything it started has ended.
func Main(ctx context.Context, args []string, s Streams) int {
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

// root is the command without a name.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glovebox",
		Short: "An isolated computer for an AI agent, reached through MCP",
		Long: `Glovebox gives an AI agent an isolated computer of its own: Python, JavaScript
and a shell, reached through MCP tools. What it handles stays inside.

Exit codes: 0 done, 1 failed, 2 wrong flag, argument or setting; run passes on
the code of what it ran, 124 after a time-out, 125 if Glovebox itself failed;
mcp has codes of its own, see its help; 130 and 143 after an interrupt.`,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: err, cmd: cmd.CommandPath()}
	})
	help.Install(root)
	root.SetHelpCommand(helpCommand())
	root.AddCommand(a.serveCommand(), a.stdioCommand(), a.runCommand(), a.templateCommand(), a.tokenCommand(), a.doctorCommand(), a.versionCommand(), a.mcpCommand(), settingsTopic())
	root.InitDefaultCompletionCmd() // cobra would add it later, without what follows
	a.watch(root)
	return root
}

// watch makes every command note that it has begun, and one that only has commands
// below it refuse other words.
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

// warnOfVariables says which environment variables look like settings and are none,
// before commands that have settings.
func (a *app) warnOfVariables(cmd *cobra.Command) {
	if cmd.Flags().Lookup("config") == nil {
		return
	}
	for _, w := range config.UnknownVariables(os.Environ()) {
		a.note("glovebox: warning: %s", printable(w))
	}
	// The program may start itself again, with variables of its own.
	_ = os.Setenv(config.CheckedEnv, "1") // the name is valid
}

// wrongUsage makes a usage error of what cobra says of a command line, and leaves
// errors that know their exit code.
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

// helpCommand explains other commands.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]...",
		Short: "Explain a command",
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

// usageError is a wrong flag or argument.
type usageError struct {
	err  error
	cmd  string // whose help helps
	hint string // in place of a pointer to the help
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return unknownCommand(cmd, args[0])
	}
	return &usageError{err: fmt.Errorf("unexpected argument %q", args[0]), cmd: cmd.CommandPath()}
}

// unknownCommand is the error for a word that is no command below cmd.
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

// hinted is an error with what to do about it.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// withHint says what to do about err; nil stays nil.
func withHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// exitStatus ends the program with a code and, without an error, in silence.
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

// report writes err to standard error, a line for each thing that is wrong.
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

// hints returns what is known to help against err.
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
		return []string{fmt.Sprintf("%q explains its flags and arguments", usage.cmd+" --help")}
	}
	var bad *config.Error
	if errors.As(err, &bad) {
		return []string{`"glovebox settings" explains the settings`}
	}
	var output *outputError
	if errors.As(err, &output) {
		return nil
	}
	if isFull(err) {
		return []string{fullDisk(err)}
	}
	return nil
}

// exitCode maps errors to exit codes.
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

// printable replaces control characters, which may come from a box or a file's
// name and must not move the terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}
