package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

const (
	// suiteLimit ends a run of the suite that hangs; a whole one takes seconds.
	suiteLimit = 2 * time.Minute
	// maxChecks bounds a file of results.
	maxChecks = 16 << 20
)

// A suite is the official one, as npm laid it out.
type suite struct {
	dir      string // with node_modules
	node     string
	script   string
	baseline *baseline
	out      string // where it writes results
	runs     int
}

func openSuite(dir string) (*suite, error) {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	s := &suite{
		dir:    dir,
		node:   filepath.Join(dir, "node_modules", "node-linux-"+arch, "bin", "node"),
		script: filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"),
	}
	for _, file := range []string{s.node, s.script} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("find the suite: %w (scripts/conformance installs it)", err)
		}
	}
	var err error
	if s.baseline, err = readBaseline(filepath.Join(dir, "baseline.txt")); err != nil {
		return nil, err
	}
	if s.out, err = os.MkdirTemp("", "glovebox-conformance-"); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *suite) close() { _ = os.RemoveAll(s.out) }

// A check is one finding of the suite.
type check struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"errorMessage"`
}

// A scenario is what a run of one came to.
type scenario struct {
	name   string
	checks []check
}

// run runs the suite with arguments against a server and returns the scenarios in
// the order in which they ran. The suite's own verdict is in clean.
func (s *suite) run(ctx context.Context, url string, args ...string) (list []scenario, clean bool, err error) {
	s.runs++
	out := filepath.Join(s.out, fmt.Sprint(s.runs))
	ctx, cancel := context.WithTimeout(ctx, suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.node, append([]string{s.script, "server", "--url", url, "-o", out}, args...)...)
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return nil, false, fmt.Errorf("run the suite with %q: %w", args, context.Cause(ctx))
	case errors.As(err, &exit) && exit.ExitCode() == 1:
	case err != nil:
		return nil, false, fmt.Errorf("run the suite with %q: %w: %.2000s", args, err, said.String())
	default:
		clean = true
	}
	for _, m := range ran.FindAllStringSubmatch(said.String(), -1) {
		sc, err := readScenario(out, m[1])
		if err != nil {
			return nil, false, err
		}
		list = append(list, sc)
	}
	if len(list) == 0 {
		return nil, false, fmt.Errorf("run the suite with %q: no scenario ran: %.2000s", args, said.String())
	}
	return list, clean, nil
}

// show runs one scenario and passes on all that the suite says.
func (s *suite) show(ctx context.Context, url, name, version string) error {
	args := []string{s.script, "server", "--url", url, "--scenario", name, "--verbose"}
	if version != "" {
		args = append(args, "--spec-version", version)
	}
	cmd := exec.CommandContext(ctx, s.node, args...)
	cmd.WaitDelay = time.Second
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run scenario %s: %w", name, err)
	}
	return nil
}

var ran = regexp.MustCompile(`(?m)^=== Running scenario: (\S+) ===$`)

// readScenario reads the checks of the one run of a scenario. One that could not
// run at all has left none.
func readScenario(out, name string) (scenario, error) {
	sc := scenario{name: name}
	dirs, err := filepath.Glob(filepath.Join(out, "server-"+name+"-2*"))
	if err != nil || len(dirs) == 0 {
		sc.checks = []check{{ID: name, Status: failure, Error: "the scenario could not be run"}}
		return sc, err
	}
	file := filepath.Join(dirs[0], "checks.json")
	if info, err := os.Stat(file); err != nil || info.Size() > maxChecks {
		return sc, fmt.Errorf("read results of %s: missing or larger than %d bytes: %w", name, maxChecks, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return sc, err
	}
	if err := json.Unmarshal(data, &sc.checks); err != nil {
		return sc, fmt.Errorf("read results %s: %w", file, err)
	}
	return sc, nil
}

const (
	success = "SUCCESS"
	failure = "FAILURE"
)

// required are the scenarios that a revision demands; what else the suite runs
// with it, it does not score.
func (s *suite) required(revision string) (map[string]bool, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, "node_modules", "@modelcontextprotocol", "conformance", "requirements", revision+".yaml"))
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	in := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, " \r\n")
		if name, ok := strings.CutPrefix(line, "  - "); ok {
			if in {
				names[name] = true
			}
		} else if line != "" && line[0] != ' ' && line[0] != '#' {
			in = line == "server:"
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("read the requirements of %s: there are none", revision)
	}
	return names, nil
}
