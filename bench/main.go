//go:build linux

// Command bench measures Glovebox and its peers side by side in one run: each
// sample of ours stands beside a sample of the peer's, so that the ratios hold
// on a noisy machine. It prints a table and writes JSON, stores a result as the
// baseline, and compares a result with it. Run it with make bench, which installs
// the peers; docs/benchmark.md says what the rows mean. It reads /proc, so it needs Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// runLimit bounds a whole run: twice its duration on two processors.
const runLimit = time.Hour

// defaultTolerance is how much worse a ratio may be before it is a regression.
// docs/benchmark.md says where it comes from.
const defaultTolerance = 0.25

type options struct {
	binary string
	dir    string // for servers' state and everything that is removed again
	here   string // the directory of this program's own files: peers, stored results
	python string
	only   *regexp.Regexp // nil for all
	quick  bool
	hibernated
}

// hibernated bounds the search for how many hibernated contexts there can be.
type hibernated struct {
	most   int
	within time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

// command runs the program and returns the error for its exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var o options
	flags.StringVar(&o.binary, "binary", "bin/glovebox", "the binary to measure")
	flags.StringVar(&o.dir, "dir", ".bench", "where servers keep their state during the run; needs several GB for the hibernated contexts")
	flags.StringVar(&o.here, "bench", "bench", "this program's directory, with the peers and the stored results")
	flags.StringVar(&o.python, "python", "", "the Python of the boxes and of the peers (default: the first with pandas)")
	flags.BoolVar(&o.quick, "quick", false, "few samples: for a look, in two or three minutes")
	flags.IntVar(&o.most, "hibernated", 1000, "stop at so many hibernated contexts")
	flags.DurationVar(&o.within, "hibernated-time", 15*time.Minute, "or after so long; a thousand take about six minutes")
	only := flags.String("only", "", "run only the scenarios whose names match this regular expression")
	out := flags.String("out", ".bench/result.json", "where the result goes, as JSON, or comes from")
	list := flags.Bool("list", false, "list the scenarios")
	store := flags.Bool("store", false, "run nothing; make the last result the baseline, in place of the one before")
	compare := flags.Bool("compare", false, "run nothing; compare the last result with the baseline, exit code 1 if a ratio got worse")
	tolerance := flags.Float64("tolerance", defaultTolerance, "how much worse a ratio may be: 0.25 is a quarter")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	baselines := filepath.Join(o.here, "results")
	switch {
	case *list:
		for _, s := range scenarios {
			fmt.Fprintf(stdout, "%-10s %s\n", s.name, s.about)
		}
		return nil
	case *store:
		return storeResult(*out, baselines, stdout)
	case *compare:
		return compareResults(*out, baselines, *tolerance, stdout)
	}
	if *only != "" {
		var err error
		if o.only, err = regexp.Compile(*only); err != nil {
			return fmt.Errorf("-only: %w", err)
		}
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return o.only.MatchString(s.name) }) {
			return fmt.Errorf("-only %q matches no scenario; -list lists them", *only)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	result, err := run(ctx, o, stderr)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, result.Table())
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w; nothing is written", context.Cause(ctx))
	}
	if err := result.Write(*out); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "bench: wrote %s\n", *out)
	for _, s := range result.Scenarios {
		if s.Error != "" {
			return fmt.Errorf("scenario %s: %s", s.Name, s.Error)
		}
	}
	return nil
}

// storeResult makes a result the baseline, in place of those stored before.
func storeResult(path, dir string, stdout io.Writer) error {
	r, err := report.Read(path)
	if err != nil {
		return err
	}
	if err := r.Storable(); err != nil {
		return fmt.Errorf("%s cannot be the baseline: %w", path, err)
	}
	before, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	to := filepath.Join(dir, r.At.UTC().Format("2006-01-02T150405Z")+".json")
	if err := r.Write(to); err != nil {
		return err
	}
	for _, old := range before {
		if old == to {
			continue
		}
		if err := os.Remove(old); err != nil {
			return fmt.Errorf("remove the baseline before: %w", err)
		}
	}
	fmt.Fprintln(stdout, to)
	return nil
}

// compareResults compares a result with the baseline.
func compareResults(path, dir string, tolerance float64, stdout io.Writer) error {
	if !(tolerance > 0 && tolerance < 10) {
		return fmt.Errorf("-tolerance %v: want a share such as 0.25", tolerance)
	}
	stored, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	if len(stored) == 0 {
		return fmt.Errorf("no baseline in %s: make bench-store stores the last result as one", dir)
	}
	old, err := report.Read(slices.Max(stored))
	if err != nil {
		return err
	}
	now, err := report.Read(path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no result in %s: make bench makes one", path)
	}
	if err != nil {
		return err
	}
	c := report.Compare(old, now, tolerance)
	fmt.Fprint(stdout, c.Table())
	if c.Compared() == 0 {
		return errors.New("the two results have no ratio in common")
	}
	if n := len(c.Regressions()); n > 0 {
		return fmt.Errorf("%d of our figures got worse than %s", n, filepath.Base(slices.Max(stored)))
	}
	return nil
}
