// Command gotest runs go test and retries the tests that may have failed because the
// machine was busy. Tests boot real boxes, which a busy machine makes late.
//
// It retries a failed test once, by itself, and only if
//
//   - GLOVEBOX_TEST_RETRIED names the file that lists the retried tests of the whole
//     run; scripts/testlists sets it,
//   - that list stays short enough (retrylist.Max), and
//   - nothing in its package's failure has another explanation: a data race, a panic, a
//     leak, a crash or a failed build. Neither are tests retried that ran with -race or in
//     random order (-shuffle): a bug that shows once there would be hidden.
//
// gotest fails unless every test has passed, the retried ones the second time. Then it
// adds the failures to the list that GLOVEBOX_TEST_FAILED names. It adds the outcome of
// every test to the list that GLOVEBOX_TEST_OUTCOMES names.
//
// Usage:
//
//	gotest [-label TEXT] [GO TEST FLAG…] -- PACKAGE…
//
// -label is appended to the names of retried tests.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/internal/retrylist"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], retrylist.FromEnv(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gotest: error:", err)
		os.Exit(1)
	}
}

// run executes the command line args. Without a list of retries nothing is retried.
func run(ctx context.Context, args []string, retries *retrylist.List, out io.Writer) error {
	label := ""
	if len(args) > 1 && args[0] == "-label" {
		label, args = " "+args[1], args[2:]
	}
	split := slices.Index(args, "--")
	if split < 0 || split == len(args)-1 {
		return errors.New("no packages: usage: gotest [-label TEXT] [GO TEST FLAG…] -- PACKAGE…")
	}
	flags, packages := args[:split], args[split+1:]

	first, err := goTest(ctx, flags, packages, out)
	if err == nil || first == nil || ctx.Err() != nil {
		return err
	}
	if retries == nil {
		return errors.Join(err, first.listFailures(label))
	}
	failures := first.failures()
	if len(failures) == 0 { // go test itself failed
		return errors.Join(err, first.listFailures(label))
	}
	if reason := refuse(flags, failures, retries); reason != "" {
		return errors.Join(fmt.Errorf("%w; no retry: %s", err, reason), first.listFailures(label))
	}
	return retry(ctx, flags, failures, retries, label, out)
}

// refuse returns why the failures must not be retried, or "".
func refuse(flags []string, failures []failure, retries *retrylist.List) string {
	for flag, why := range map[string]string{
		"race":    "tests with the race detector are not retried",
		"shuffle": "tests in random order are not retried",
	} {
		if set(flags, flag) {
			return why
		}
	}
	for _, f := range failures {
		if f.final != "" {
			return fmt.Sprintf("%s: %s", f, f.final)
		}
	}
	if err := retries.Admit(len(failures)); err != nil {
		return err.Error()
	}
	return ""
}

// retry runs the failed tests once more, package by package, and lists them with the
// outcome.
func retry(ctx context.Context, flags []string, failures []failure, retries *retrylist.List, label string, out io.Writer) error {
	var packages []string
	tests := make(map[string][]string)
	for _, f := range failures {
		if tests[f.pkg] == nil {
			packages = append(packages, f.pkg)
		}
		tests[f.pkg] = append(tests[f.pkg], f.test)
	}
	var failed error
	for _, pkg := range packages {
		fmt.Fprintf(out, "\n== retry: %s %s\n", pkg, strings.Join(tests[pkg], " "))
		only := "-run=^(" + strings.Join(tests[pkg], "|") + ")$"
		second, err := goTest(ctx, append(slices.Clone(flags), "-count=1", "-p=1", only), []string{pkg}, out)
		failed = errors.Join(failed, err)
		if err != nil && second != nil {
			failed = errors.Join(failed, second.listFailures(label))
		}
		for _, test := range tests[pkg] {
			outcome := "passed when retried"
			switch {
			case second == nil || !second.passed[failure{pkg: pkg, test: test}]:
				outcome = "did not pass when retried"
				if err == nil { // it was skipped, or did not run
					failed = errors.Join(failed, fmt.Errorf("%s %s %s", pkg, test, outcome))
				}
			case err != nil:
				outcome = "passed when retried, its package failed"
			}
			failed = errors.Join(failed, retries.Add(pkg+" "+test+label, outcome))
		}
	}
	return failed
}

// goTest runs go test and prints its output as go test would without -json. The error is
// nil if go test succeeded. The report is nil if it could not be run.
func goTest(ctx context.Context, flags, packages []string, out io.Writer) (*report, error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json"}, flags, packages)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second // go test waits for the test programs
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := newReport(out, set(flags, "v"))
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		r.line(lines.Bytes())
	}
	r.end()
	if err := lines.Err(); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("read the output of go test: %w", err)
	}
	err = cmd.Wait()
	if err != nil {
		err = fmt.Errorf("go test: %w", err)
	}
	return r, errors.Join(err, r.listOutcomes())
}

// maxLine bounds an event of go test -json, which splits the lines of tests long before.
const maxLine = 1 << 20

var flagPattern = regexp.MustCompile(`^--?(?:test\.)?([a-z]+)(?:=(.*))?$`)

// set reports whether a flag is set, here or in GOFLAGS, and not to false or off.
func set(flags []string, name string) bool {
	on := false
	for _, flag := range append(strings.Fields(os.Getenv("GOFLAGS")), flags...) {
		if m := flagPattern.FindStringSubmatch(flag); m != nil && m[1] == name {
			on = m[2] != "false" && m[2] != "off" && m[2] != "0"
		}
	}
	return on
}
