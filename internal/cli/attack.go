//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/attack"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// attackOptions are the flags of attack.
type attackOptions struct {
	only   []string
	answer time.Duration
	list   bool
	json   bool
}

func (a *app) attackCommand() *cobra.Command {
	var o attackOptions
	cmd := &cobra.Command{
		Use:   "attack",
		Short: "Attack this machine's boxes and check that they hold",
		Long: `Attack runs a corpus of attacks against this machine, engine and privilege mode: as
hostile code in fresh boxes, as a client of servers that it starts on loopback, and as
another user of the machine. From outside it checks the outcome, that the host and a
neighbouring box answer within a second, that the next command works or the box is
reported dead, and that nothing is left behind. It takes a few minutes and up to 3 GB
of memory. Do not run it beside work that must not be delayed.

Exit code 0: every attack was held; 1: one was not, or could not be carried out.`,
		Example: `  glovebox attack
  glovebox attack --only escape --only 'userns/*' --json
  glovebox attack --list`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			selected, err := attack.Select(attack.All(), o.only)
			if err == nil && cfg.Engine != config.EngineAuto && !slices.Contains(engines.Local(), cfg.Engine) {
				err = fmt.Errorf("attack boxes of the engine %s: nothing judges the outcome outside them; the engines are: %s", cfg.Engine, strings.Join(engines.Local(), ", "))
			}
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath(), hint: `"glovebox attack --list" lists the attacks`}
			}
			if o.list {
				if o.json {
					return a.encode(selected)
				}
				return attack.List(a.Out, selected)
			}
			if o.answer <= 0 || o.answer > attack.MaxAnswer {
				return &usageError{err: fmt.Errorf("invalid --answer %v: want more than 0 and at most %v", o.answer, attack.MaxAnswer), cmd: cmd.CommandPath()}
			}
			return a.attack(cmd.Context(), cfg, selected, o)
		},
	}
	f := cmd.Flags()
	// This is the setting. Its group has flags of engines that cannot be attacked.
	f.String("engine", config.EngineAuto, "`name` engine to attack [the one that serve uses]")
	f.StringArrayVar(&o.only, "only", nil, "`pattern` run only these classes or attacks; repeatable")
	f.DurationVar(&o.answer, "answer", time.Second, "`time` within which the host and a neighbour must answer; more where other programs keep the machine busy")
	f.BoolVar(&o.list, "list", false, "list the attacks and run none")
	f.BoolVar(&o.json, "json", false, "print JSON")
	cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions(engines.Local(), cobra.ShellCompDirectiveNoFileComp))
	bind(cmd, "host")
	return cmd
}

// attack runs the attacks and prints the report.
func (a *app) attack(ctx context.Context, cfg *config.Config, selected []attack.Attack, o attackOptions) (err error) {
	cfg.LogLevel = "warn"
	log, closeLog, err := a.openLog(cfg, nil)
	if err != nil {
		return err
	}
	defer closeLog()
	if err := enter(cfg); err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx, func() {}, nil)
	defer stop()
	dir, lock, err := attackDir()
	if err != nil {
		return fmt.Errorf("make a directory for the attacks: %w", err)
	}
	defer lock.Close()
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	h, err := openHost(ctx, cfg, log, a.progress(cfg))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	a.note("glovebox: running %s", plural.N(len(selected), "attack"))
	report, err := attack.Run(ctx, attack.Config{
		Maker: h.maker, Program: "/proc/self/exe", StateDir: cfg.StateDir, Dir: dir, Answer: o.answer,
		Progress: a.attackProgress(len(selected)),
	}, selected)
	if o.json {
		err = errors.Join(err, a.encode(report))
	} else {
		err = errors.Join(err, report.Table(a.Out))
	}
	if err == nil && !report.OK {
		return &exitStatus{code: ExitFailure}
	}
	return err
}

// progressLines is the most lines that say how far a run is: one every few seconds, for minutes.
const progressLines = 20

// attackProgress returns a function that notes how far a run of so many attacks is, and each attack
// that was not held at once.
func (a *app) attackProgress(total int) func(attack.Result) {
	done, step := 0, (total+progressLines-1)/progressLines
	return func(r attack.Result) {
		if r.Outcome == attack.Broken || r.Outcome == attack.Failed {
			a.note("glovebox: %s: %s", r.Outcome, r.ID)
		}
		if done++; done%step == 0 && done < total {
			a.note("glovebox: %d of %s done, the last was %s", done, plural.N(total, "attack"), r.ID)
		}
	}
}

// encode writes indented JSON to standard output.
func (a *app) encode(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// attackDir makes a directory for the run, which is in use until lock is closed, and removes those
// of runs that were killed. A Unix socket in it must have a path that Linux accepts, so it is not
// below a long TMPDIR.
func attackDir() (dir string, lock *os.File, err error) {
	const longest = 64
	parent := os.TempDir()
	if len(parent) > longest {
		parent = "/tmp"
	}
	sweepUnlocked(parent, "glovebox-attack-*")
	if dir, err = os.MkdirTemp(parent, "glovebox-attack-"); err != nil {
		return "", nil, err
	}
	if lock, err = lockScratch(dir); err == nil {
		_, err = os.Lstat(dir) // another run may have swept it before it was locked
	}
	return dir, lock, err
}
