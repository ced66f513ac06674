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
	"slices"
	"strings"
	"time"
)

const (
	// suiteLimit bounds a run of the suite, which usually takes seconds.
	suiteLimit = 2 * time.Minute
	// maxResult bounds a file of results.
	maxResult = 16 << 20
)

// A suite is the official suite as npm installed it.
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

// A check is one result of the suite.
type check struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"errorMessage"`
	// Details has no fixed form.
	Details json.RawMessage `json:"details"`
}

// vacuous reports whether the check passed only because the server lacks a tool of
// the fixtures.
func (c *check) vacuous() bool { return bytes.Contains(c.Details, []byte("not found: tool:test_")) }

// A scenario has the checks of one run.
type scenario struct {
	name   string
	checks []check
}

// A subject is a program under test.
type subject struct {
	target string                     // as the results call it
	side   string                     // of the protocol, as the suite calls it
	reach  []string                   // what tells the suite where it is
	leaves func(scenario string) bool // what it need not pass; nil for nothing
}

func (s *subject) mustPass(scenario string) bool { return s.leaves == nil || !s.leaves(scenario) }

// The sides of the protocol.
const (
	serverSide = "server"
	clientSide = "client"
)

func serverSubject(target, url string) *subject {
	return &subject{target: target, side: serverSide, reach: []string{"--url", url}}
}

// run runs the suite with arguments against a subject and returns the scenarios in
// the order of its summary. The suite's own verdict is in clean, unless it is about
// what the subject need not pass.
func (s *suite) run(ctx context.Context, of *subject, args ...string) (list []scenario, clean bool, err error) {
	s.runs++
	out := filepath.Join(s.out, fmt.Sprint(s.runs))
	ctx, cancel := context.WithTimeout(ctx, suiteLimit)
	defer cancel()
	cmd := s.command(ctx, of, append([]string{"-o", out}, args...)...)
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
	summary := ran.FindAllStringSubmatch(said.String(), -1)
	for _, m := range summary {
		mark, name := m[1], m[2]
		if !of.mustPass(name) {
			clean = clean || mark == "✗"
			continue
		}
		sc, err := readScenario(out, of.side, name)
		if err != nil {
			return nil, false, err
		}
		list = append(list, sc)
	}
	if len(summary) == 0 {
		return nil, false, fmt.Errorf("run the suite with %q: no scenario ran: %.2000s", args, said.String())
	}
	return list, clean, nil
}

func (s *suite) command(ctx context.Context, of *subject, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.node, slices.Concat([]string{s.script, of.side}, args, of.reach)...)
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "GLOVEBOX_CONFORMANCE_TURNS="+s.out) // for clients
	return cmd
}

// show runs one scenario and prints the output of the suite.
func (s *suite) show(ctx context.Context, of *subject, name, version string) error {
	args := []string{"--scenario", name, "--verbose"}
	if version != "" {
		args = append(args, "--spec-version", version)
	}
	cmd := s.command(ctx, of, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run scenario %s: %w", name, err)
	}
	return nil
}

// isForClients reports whether a scenario tests clients.
func (s *suite) isForClients(ctx context.Context, scenario string) (bool, error) {
	list, err := exec.CommandContext(ctx, s.node, s.script, "list", "--client").Output()
	if err != nil {
		return false, fmt.Errorf("list the scenarios for clients: %w", err)
	}
	return strings.Contains(string(list), "- "+scenario+" ["), nil
}

// ran matches the scenarios in the suite's summary.
var ran = regexp.MustCompile(`(?m)^(✓|✗) (\S+): \d+ passed, `)

// readScenario reads the checks of the only run of a scenario. A scenario that could
// not run has none.
func readScenario(out, side, name string) (scenario, error) {
	sc := scenario{name: name}
	prefix := ""
	if side == serverSide {
		prefix = "server-"
	}
	dirs, err := filepath.Glob(filepath.Join(out, prefix+name+"-2*"))
	if err != nil || len(dirs) == 0 {
		sc.checks = []check{{ID: name, Status: failure, Error: "the scenario could not be run"}}
		return sc, err
	}
	data, err := readBounded(filepath.Join(dirs[0], "checks.json"))
	if err != nil {
		return sc, fmt.Errorf("read results of %s: %w", name, err)
	}
	if err := json.Unmarshal(data, &sc.checks); err != nil {
		return sc, fmt.Errorf("read results of %s: %w", name, err)
	}
	if side == clientSide {
		err = sc.finished(dirs[0])
	}
	return sc, err
}

// readBounded reads a file that the suite wrote.
func readBounded(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxResult {
		return nil, fmt.Errorf("%s has more than %d bytes", file, maxResult)
	}
	return os.ReadFile(file)
}

const (
	success = "SUCCESS"
	failure = "FAILURE"
)

// required are the scenarios that a revision demands of a side; what else the
// suite runs with it, it does not score.
func (s *suite) required(side, revision string) (map[string]bool, error) {
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
			in = line == side+":"
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("read the requirements of %s: there are none for the %s", revision, side)
	}
	return names, nil
}
