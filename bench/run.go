//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// scenario measures related figures with its own servers.
type scenario struct {
	name  string
	about string
	limit time.Duration // several times what it takes on two processors
	named bool          // runs only if -only names it
	run   func(context.Context, *bench) error
}

var scenarios = []scenario{
	{name: "start", about: "start of the server, size of the binary", limit: 3 * time.Minute, run: startScenario},
	{name: "warm", about: "calls into a warm context, beside a Jupyter kernel and Pyodide", limit: 3 * time.Minute, run: warmScenario},
	{name: "boot", about: "contexts that boot, without template and pool", limit: 4 * time.Minute, run: bootScenario},
	{name: "cold", about: "contexts from the template, pandas loaded, the pool empty", limit: 6 * time.Minute, run: coldScenario},
	{name: "pool", about: "contexts from the warm pool", limit: 6 * time.Minute, run: poolScenario},
	{name: "fork", about: "live copies of a context with pandas", limit: 4 * time.Minute, run: forkScenario},
	{name: "hibernate", about: "contexts to disk and back", limit: 6 * time.Minute, run: hibernateScenario},
	{name: "crowd", about: "1, 8 and 32 contexts at once", limit: 5 * time.Minute, run: crowdScenario},
	{name: "list", about: "calls that need no box, beside plain servers of the SDKs", limit: 5 * time.Minute, run: listScenario},
	{name: "call", about: "a tool called from a shell, beside mcporter", limit: 3 * time.Minute, run: callScenario},
	{name: "client", about: "calls over one connection of mcpkit, beside the SDK's client", limit: 2 * time.Minute, run: clientScenario},
	{name: "servers", about: "memory of many servers offered as one, beside mcporter", limit: 4 * time.Minute, run: serversScenario},
	{name: "codemode", about: "tokens of twelve tasks by direct calls and by code, beside UTCP", limit: 15 * time.Minute, run: codemodeScenario},
	{name: "sessions", about: "memory of idle MCP sessions, streams and connections", limit: 5 * time.Minute, run: sessionsScenario},
	{name: "load", about: "well-behaved clients beside bad ones, and what is left of all", limit: 5 * time.Minute, run: loadScenario},
	{name: "memory", about: "memory of idle boxes", limit: 5 * time.Minute, run: memoryScenario},
	{name: "egress", about: "requests, bytes and pip install through the egress, beside the host and podman", limit: 6 * time.Minute, run: egressScenario},
	{name: "images", about: "first box and memory of a 300 MB image, beside podman", limit: 8 * time.Minute, run: imagesScenario},
	{name: "idle", about: "processor time of 50 idle contexts", limit: 6 * time.Minute, run: idleScenario},
	{name: "live", about: "how many live contexts", limit: 5 * time.Minute, run: liveScenario},
	{name: "asleep", about: "how many hibernated contexts", limit: 20 * time.Minute, run: hibernatedScenario},
	{name: "peers", about: "every peer by itself", limit: 4 * time.Minute, run: peersScenario},
	{name: "build", about: "a build with an empty cache; only if named", limit: 15 * time.Minute, named: true, run: buildScenario},
}

// bench is one run. It is not safe for concurrent use.
type bench struct {
	options
	dir     string // of this run, removed at its end
	short   string // the same with a short path, for sockets; set by the scenarios that need it
	log     io.Writer
	current string // scenario
	result  report.Result
	peers   peers
	built   map[string]float64 // seconds that the templates of a state directory took
}

// run runs the selected scenarios. The result includes failed scenarios; an error means
// that there is no result. When ctx ends, run returns the result so far.
func run(ctx context.Context, o options, log io.Writer) (report.Result, error) {
	binary, err := filepath.Abs(o.binary)
	if err != nil {
		return report.Result{}, err
	}
	if _, err := os.Stat(binary); err != nil {
		return report.Result{}, fmt.Errorf("find the binary: %w", err)
	}
	o.binary = binary
	if o.here, err = filepath.Abs(o.here); err != nil {
		return report.Result{}, err
	}
	if o.python == "" {
		if o.python, err = findPython(ctx); err != nil {
			return report.Result{}, err
		}
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return report.Result{}, err
	}
	dir, err := os.MkdirTemp(o.dir, "run-")
	if err != nil {
		return report.Result{}, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return report.Result{}, err
	}
	b := &bench{options: o, dir: dir, log: log, built: make(map[string]float64)}
	b.peers = newPeers(b)
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			b.logf("clean up: %v", err)
		}
	}()
	begun := time.Now()
	b.result = report.Result{Schema: report.Schema, At: begun.UTC().Truncate(time.Second), Quick: o.quick, Machine: machine()}
	if o.only != nil {
		b.result.Only = o.only.String()
	}
	b.result.Versions = b.versions(ctx)
	for _, s := range scenarios {
		if o.only == nil && s.named || o.only != nil && !o.only.MatchString(s.name) {
			continue
		}
		b.scenario(ctx, s)
		if ctx.Err() != nil {
			break
		}
	}
	b.current = "peers"
	b.add(b.peers.figures()...)
	b.result.Seconds = time.Since(begun).Seconds()
	return b.result, nil
}

func (b *bench) scenario(ctx context.Context, s scenario) {
	b.logf("%s: %s", s.name, s.about)
	b.current = s.name
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("it took more than %v", s.limit))
	defer cancel()
	err := s.run(ctx, b)
	b.peers.close()
	done := report.Scenario{Name: s.name, Seconds: time.Since(begun).Seconds()}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		done.Error = err.Error()
		b.logf("%s: failed: %v", s.name, err)
	}
	b.result.Scenarios = append(b.result.Scenarios, done)
}

// add appends rows to the current scenario.
func (b *bench) add(figures ...report.Figure) {
	for _, f := range figures {
		f.Scenario = b.current
		b.result.Figures = append(b.result.Figures, f)
	}
}

// n returns a number of samples: full, or few in a quick run.
func (b *bench) n(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}

// pause returns a duration: full, or short in a quick run.
func (b *bench) pause(full, quick time.Duration) time.Duration {
	if b.quick {
		return quick
	}
	return full
}

func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(b.log, "bench: "+format+"\n", args...)
}

// notOffered is the reason of rows for features that the binary lacks.
const notOffered = "not offered by this binary"

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
