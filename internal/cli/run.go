package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// kernelName is the name of the only kernel that run uses.
const kernelName = "run"

// runOptions are the flags of run.
type runOptions struct {
	lang    string
	copies  []string
	outs    []string
	figures string
	timeout string
	flavor  string
	from    string // a template
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] FILE|-|-- COMMAND [ARG]...",
		Short: "Run a program or a command in a new box and remove the box",
		Long: `Run starts a box, runs one program or command in it and removes the box.

FILE is a Python or JavaScript program. Run copies it into the box and waits for its
threads, timers and promises. It saves figures that the program shows as
figure-1.png and so on, and never overwrites a file. With -, run reads the program
from standard input and prints the value of its last expression, as a notebook does.
A COMMAND after -- gets standard input.

--template starts from a template of your own, with its libraries, files and flavor.

The program has no network. --network npm,example.org lets it reach these hosts.

--copy copies a file or directory to a path below /home/user, or to an absolute path
below /home/user or /tmp. A DEST that ends with / is a directory. --out copies
results to this machine when the program has ended. A DEST that ends with .tar
becomes an archive.

Output is streamed. The exit code is the program's, 124 after a timeout, or 125 if
Glovebox itself failed.`,
		Example: `  glovebox run analysis.py --copy data.csv --out result.csv
  echo '6 * 7' | glovebox run --lang python -
  glovebox run --copy src -- sh -c 'wc -l src/*'
  glovebox run --template data report.py
  glovebox run --network npm --copy package.json -- npm install`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			if err := noQuotas(cfg.Volumes); err != nil {
				return err
			}
			job, err := a.newJob(&o, cfg.Volumes, args, cmd.ArgsLenAtDash())
			if err != nil {
				var bad *config.Error
				if errors.As(err, &bad) {
					return err
				}
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			return ownFault(a.run(cmd.Context(), cfg, job))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.lang, "lang", "", "`python|javascript` language of FILE [from its name]")
	f.StringArrayVar(&o.copies, "copy", nil, "`PATH[:DEST]` copy a file or directory in; repeatable")
	f.StringArrayVar(&o.outs, "out", nil, "`PATH[:DEST]` copy a result out; repeatable")
	f.StringVar(&o.figures, "figures", ".", "`directory` for figures; \"\" drops them")
	f.StringVar(&o.timeout, "timeout", "", "`time` stop the program after 90 or 5m [never]")
	f.StringVar(&o.flavor, "flavor", "", "`small|medium|large` size of the box [small, or that of --template]")
	f.StringVar(&o.from, "template", "", "`name` of a template of your own to start from [none]")
	help.Group(f, "Program", "lang", "copy", "out", "figures", "timeout", "flavor", "template")
	cmd.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions([]string{image.Python, image.JavaScript}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("flavor", cobra.FixedCompletions([]string{"small", "medium", "large"}, cobra.ShellCompDirectiveNoFileComp))
	bind(cmd, "network", "volumes", "host", "engine", "log")
	return cmd
}

// ownFault sets the exit code of errors that are neither the program's nor the user's.
func ownFault(err error) error {
	var (
		status *exitStatus
		usage  *usageError
		bad    *config.Error
		sig    *signalled
	)
	if err == nil || errors.As(err, &status) || errors.As(err, &usage) || errors.As(err, &bad) {
		return err
	}
	if errors.As(err, &sig) {
		return &exitStatus{sig.code(), err}
	}
	return &exitStatus{ExitOwnFault, err}
}

// job is a program or command to run.
type job struct {
	file     string // program; - for standard input
	language string
	anyLang  bool     // the user has not said the language, and it is not in the name of file
	argv     []string // command, instead of a program
	template string   // of the user's own, to start from; "" for none

	copies, outs []transfer
	figures      string
	timeout      time.Duration
	flavor       box.Flavor
	limits       snapshot.NetLimits // of the network, by the template
}

// name returns the name of the program's file in the box; "" if it has none.
func (j *job) name() string {
	if j.file == "" || j.file == "-" {
		return ""
	}
	return filepath.Base(j.file)
}

// newJob parses and checks the command line before anything boots.
func (a *app) newJob(o *runOptions, volumes []config.Volume, args []string, dash int) (*job, error) {
	j := &job{figures: o.figures, template: o.from}
	var err error
	if o.timeout != "" {
		if j.timeout, err = config.Seconds("--timeout", o.timeout); err != nil {
			return nil, err
		}
	}
	switch o.flavor {
	case "", "small", "medium", "large":
		j.flavor = box.Flavor(o.flavor)
	default:
		return nil, fmt.Errorf("--flavor must be one of: small, medium, large, got %q", o.flavor)
	}
	if t, err := box.ParseInterpreter(o.from); err == nil && t != "" {
		return nil, fmt.Errorf("--template %s: the template is built in: leave out --template, and name the language of a program with --lang", o.from)
	}
	if j.copies, err = parseCopies(o.copies, volumes); err != nil {
		return nil, err
	}
	if j.outs, err = parseOuts(o.outs); err != nil {
		return nil, err
	}
	switch {
	case dash == 0 && len(args) > 0:
		j.argv = args
		return j, nil
	case len(args) == 0:
		return nil, errors.New("nothing to run: name a file, - for standard input, or a command after --")
	case len(args) > 1:
		interpreter := "python3"
		if lang, _ := language(o.lang, args[0]); lang == image.JavaScript {
			interpreter = "node"
		}
		return nil, fmt.Errorf("unexpected argument %q; to give a program arguments, copy it in: glovebox run --copy %s -- %s %s ...", args[1], args[0], interpreter, filepath.Base(args[0]))
	}
	if j.language, err = language(o.lang, args[0]); err != nil {
		return nil, err
	}
	j.anyLang = o.lang == "" && args[0] == "-"
	if j.file = args[0]; j.file != "-" {
		_, err = os.Stat(j.file)
	}
	return j, err
}

// language returns the language of a program.
func language(flag, file string) (string, error) {
	if flag != "" {
		t, err := box.ParseInterpreter(flag)
		if err != nil {
			return "", fmt.Errorf("--lang must be python or javascript, got %q", flag)
		}
		return t.Language(), nil
	}
	switch ext := strings.ToLower(filepath.Ext(file)); {
	case file == "-":
		return image.Python, nil
	case ext == ".py":
		return image.Python, nil
	case ext == ".js", ext == ".mjs", ext == ".cjs":
		return image.JavaScript, nil
	}
	return "", fmt.Errorf("%q is neither .py nor .js: name the language with --lang, or run a command: glovebox run -- COMMAND", file)
}

// readProgram reads the program, up to the agent's limit.
func (a *app) readProgram(file string) ([]byte, error) {
	in := a.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	code, err := io.ReadAll(io.LimitReader(in, protocol.MaxCode+1))
	if err != nil {
		return nil, fmt.Errorf("read the program: %w", err)
	}
	if len(code) > protocol.MaxCode {
		return nil, fmt.Errorf("the program %q is longer than %d bytes", file, protocol.MaxCode)
	}
	return code, nil
}

// run boots a box, runs the job and removes the box.
func (a *app) run(ctx context.Context, cfg *config.Config, j *job) (err error) {
	if cfg.LogLevel == config.LevelAuto {
		cfg.LogLevel = "warn" // standard error belongs to the program
	}
	log, closeLog, err := a.openLog(cfg, nil)
	if err != nil {
		return err
	}
	defer closeLog()
	// Before reading standard input: enter may restart the program.
	if _, err := readNetwork(cfg); err != nil {
		return err
	}
	if err := enter(cfg); err != nil {
		return err
	}
	var code []byte
	if j.argv == nil {
		if code, err = a.readProgram(j.file); err != nil {
			return &usageError{err: err, cmd: "glovebox run"}
		}
	}
	ctx, stop := untilSignal(ctx, func() {}, nil)
	defer stop()

	h, err := openHost(ctx, cfg, log, a.progress(cfg))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	m, err := h.start(ctx, cfg, j)
	if err != nil {
		return err
	}
	guest, l := m.Guest, m.Agent
	defer l.Close()
	network, err := h.connect(ctx, l, cfg, j)
	if err != nil {
		return err
	}
	defer func() {
		for _, r := range network.Take() {
			a.note("glovebox: %s", printable(r.Text))
		}
		err = errors.Join(err, network.Close())
	}()
	if name := j.name(); name != "" {
		if _, err := l.Write(ctx, protocol.Write{Path: name, Mode: 0o644}, bytes.NewReader(code)); err != nil {
			return fmt.Errorf("copy %q into the box: %w", j.file, err)
		}
	}
	if err := copyIn(ctx, l, j.copies); err != nil {
		return err
	}
	status, err := a.execute(ctx, l, j, code)
	if err != nil {
		return ended(ctx, guest, j.flavor, err)
	}
	if err := a.copyOut(ctx, l, j.outs); err != nil {
		if status != nil {
			a.note("glovebox: warning: %s", printable(err.Error()))
			return status
		}
		var missing *protocol.Error
		if errors.As(err, &missing) && missing.Code == protocol.CodeNotFound {
			return withHint(&exitStatus{code: ExitFailure, err: err}, "the program did not write that file; paths of --out are relative to its home directory")
		}
		return err
	}
	if status != nil {
		return status
	}
	return nil
}

// ended replaces the error of a lost connection by the exit of the guest, if that is
// the cause.
func ended(ctx context.Context, guest engine.Guest, flavor box.Flavor, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if !errors.Is(err, client.ErrLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // both are reported within milliseconds
	defer cancel()
	exit, werr := guest.Wait(ctx)
	if werr != nil {
		return err
	}
	switch exit.Reason {
	case engine.ExitOOM:
		return &exitStatus{137, outOfMemory(errors.New("the box exceeded its memory limit and was stopped"), flavor)}
	case engine.ExitDisk:
		return withHint(fmt.Errorf("the box was ended: %s", exit.Detail), "%s", fullDiskIn(hostdisk.ErrFull))
	case engine.ExitExited:
		return fmt.Errorf("the agent of the box ended with code %d: %w", exit.Code, err)
	}
	return fmt.Errorf("the box ended (%s: %s): %w", exit.Reason, exit.Detail, err)
}

// execute runs the job. status is the program's exit status, nil for exit code 0.
func (a *app) execute(ctx context.Context, l *client.Conn, j *job, code []byte) (status *exitStatus, err error) {
	sink := &terminal{app: a, figures: j.figures, values: j.file == "-"}
	ms := j.timeout.Milliseconds()
	if j.timeout > 0 && ms == 0 {
		ms = 1
	}
	if j.argv != nil {
		res, err := l.Exec(ctx, protocol.Exec{Argv: j.argv, TimeoutMS: ms}, a.In, sink)
		if err != nil {
			return nil, err
		}
		return stopped(ctx, res.Stopped, j, res.Code), nil
	}
	res, err := l.Run(ctx, protocol.Run{Kernel: kernelName, Language: j.language, TimeoutMS: ms, Program: true, File: j.name()}, code, sink)
	if err != nil {
		return nil, err
	}
	if text := traceback(res); text != "" {
		fmt.Fprintln(a.Err, text)
	}
	if res.Dropped > 0 {
		a.note("glovebox: warning: dropped %s: a run keeps at most %d figures and tables, of %d MB each", plural.N(res.Dropped, "display"), protocol.MaxDisplays, protocol.MaxDisplay>>20)
	}
	status = stopped(ctx, res.Stopped, j, runCode(res))
	if status != nil && status.err == nil {
		status.err = lost(res, j.flavor)
	}
	return status, nil
}

// traceback returns the text that an interpreter prints at the end of the program: the
// traceback of an error.
func traceback(res protocol.RunResult) string {
	if res.Error == nil || res.Stopped != "" || res.Error.Name == "SystemExit" {
		return ""
	}
	return strings.TrimRight(res.Error.Traceback, "\n")
}

var errMemory = errors.New("the program exceeded the memory of its box and was killed")

// outOfMemory adds the remedy to an error of a box without memory.
func outOfMemory(err error, flavor box.Flavor) error {
	larger, ok := flavor.Larger()
	if !ok {
		return withHint(err, "this is the largest box (%d MB): process less data at a time", flavor.Limits().MemoryMB)
	}
	return withHint(err, "use a larger box with --flavor %s", larger)
}

// lost returns why the program ended without an exit code; nil if it had one.
func lost(res protocol.RunResult, flavor box.Flavor) error {
	switch res.Lost {
	case "", "exited":
		return nil
	case "oom":
		return outOfMemory(errMemory, flavor)
	}
	if res.LostDetail == "" {
		return fmt.Errorf("the program was stopped: %s", res.Lost)
	}
	return fmt.Errorf("the program was stopped: %s (%s)", res.Lost, res.LostDetail)
}

// stopped returns the status of a program that exited with code or was stopped.
func stopped(ctx context.Context, how string, j *job, code int) *exitStatus {
	var sig *signalled
	switch {
	case how == "timeout":
		return &exitStatus{ExitTimeout, withHint(fmt.Errorf("stopped after the timeout of %v", j.timeout), "set a longer timeout with --timeout")}
	case errors.As(context.Cause(ctx), &sig):
		return &exitStatus{sig.code(), sig}
	case how == "oom":
		return &exitStatus{code & 0xff, outOfMemory(errMemory, j.flavor)}
	case code == 0:
		return nil
	}
	return &exitStatus{code: code & 0xff}
}

// runCode returns the exit code that the program would have on its own.
func runCode(res protocol.RunResult) int {
	var n int
	switch {
	case res.Lost == "exited":
		if _, err := fmt.Sscanf(res.LostDetail, "exit code %d", &n); err == nil {
			return n
		}
		return ExitFailure
	case res.Lost == "oom" || res.Lost == "killed":
		return 137
	case res.Lost != "":
		if _, err := fmt.Sscanf(res.LostDetail, "signal %d", &n); err == nil {
			return 128 + n
		}
		return ExitFailure
	case res.OK:
		return ExitOK
	case res.Error != nil && res.Error.Name == "SystemExit":
		if n, err := strconv.Atoi(res.Error.Value); err == nil {
			return n
		}
	case res.Error != nil && res.Error.Name == "KeyboardInterrupt":
		return 130
	}
	return ExitFailure
}
