package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// readyLimit bounds the start of a server, which builds a template first.
	readyLimit = time.Minute
	// stopLimit exceeds the drain time of an idle server.
	stopLimit = 20 * time.Second
)

// judgeShipped runs the scenarios that need no fixtures against the program.
func (s *suite) judgeShipped(ctx context.Context, all *results, binary string) error {
	url, stop, err := s.serve(ctx, binary)
	if err != nil {
		return err
	}
	defer stop()
	of := serverSubject(shipped, url)
	all.notes = append(all.notes, "The shipped program is not judged by scenarios that cannot fail without the fixtures: "+strings.Join(needFixtures, ", ")+".")
	of.leaves = func(scenario string) bool { return !slices.Contains(fixtureFree, scenario) }
	for _, revision := range revisions {
		if err := s.judgeRequirements(ctx, all, of, revision); err != nil {
			return err
		}
	}
	return judgeHost(ctx, all, shipped, url)
}

// serve starts the program on a free port of loopback, with its own state directory,
// and returns once it answers.
func (s *suite) serve(ctx context.Context, binary string) (url string, stop func(), err error) {
	state, err := os.MkdirTemp(s.out, "state-")
	if err != nil {
		return "", nil, err
	}
	said, err := os.CreateTemp(s.out, "serve-*.log")
	if err != nil {
		return "", nil, err
	}
	defer said.Close()
	cmd := exec.CommandContext(ctx, binary, "serve", "--port", "0", "--log-format", "json", "--state-dir", state, "--pool-size", "0")
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start %s: %w", binary, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
		case <-time.After(stopLimit):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	deadline := time.Now().Add(readyLimit)
	for {
		base, err := announced(said.Name())
		if err == nil {
			err = answers(ctx, base+"/ready")
		}
		if err == nil {
			return base + "/mcp", stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("wait for %s: %w: %s", binary, err, tail(said.Name()))
		}
		select {
		case err := <-ended:
			return "", nil, errors.Join(fmt.Errorf("start %s: it ended: %s", binary, tail(said.Name())), err)
		case <-ctx.Done():
			stop()
			return "", nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// announced returns the address in the log of a server.
func announced(log string) (base string, err error) {
	data, err := os.ReadFile(log)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		var note struct{ Endpoint string }
		if json.Unmarshal([]byte(line), &note) == nil && note.Endpoint != "" {
			return strings.TrimSuffix(note.Endpoint, "/mcp"), nil
		}
	}
	return "", errors.New("it has not said its address")
}

// answers reports an error if a server is not ready.
func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// tail returns the end of a program's output.
func tail(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}
