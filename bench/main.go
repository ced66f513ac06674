// Command bench measures Glovebox and its peers side by side in one run: each
// sample of ours stands beside a sample of the peer's, so that the ratios hold
// on a noisy machine. It prints a table and writes JSON. Run it with make bench,
// which installs the peers.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"
)

func main() {
	binary := flag.String("binary", "bin/glovebox", "the binary to measure")
	out := flag.String("out", ".bench/result.json", "where the figures go, as JSON")
	calls := flag.Int("calls", 500, "calls into a warm context")
	creates := flag.Int("creates", 15, "contexts and containers to create")
	boxes := flag.Int("boxes", 8, "idle boxes whose memory is weighed")
	coldBuild := flag.Bool("cold-build", true, "time a build with an empty cache")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	figures, err := measure(ctx, *binary, *calls, *creates, *boxes, *coldBuild)
	fmt.Print(table(figures))
	if err == nil {
		err = write(*out, figures)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

func write(path string, figures []figure) error {
	data, err := json.MarshalIndent(map[string]any{
		"at": time.Now().UTC(), "cpus": runtime.NumCPU(), "go": runtime.Version(), "figures": figures,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// measure returns what it has measured even when it fails halfway.
func measure(ctx context.Context, binary string, calls, creates, boxes int, coldBuild bool) (figures []figure, err error) {
	dir, err := os.MkdirTemp("", "glovebox-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := startServer(ctx, binary, filepath.Join(dir, "state"), "MSB_MAX_SESSIONS=100", "GLOVEBOX_PYTHON=/usr/bin/python3")
	if err != nil {
		return nil, err
	}
	defer s.stop()
	figures = append(figures, summarize("start of the server", "ms", []float64{s.start}))

	warm, err := warmCalls(ctx, s, calls)
	figures = append(figures, warm...)
	if err != nil {
		return figures, err
	}
	cold, err := coldCreates(ctx, s, dir, creates)
	figures = append(figures, cold...)
	if err != nil {
		return figures, err
	}
	memory, err := idleMemory(ctx, s, boxes)
	figures = append(figures, memory...)
	if err != nil {
		return figures, err
	}
	info, err := os.Stat(binary)
	if err != nil {
		return figures, err
	}
	figures = append(figures, summarize("size of the binary", "MB", []float64{float64(info.Size()) / 1e6}))
	if coldBuild {
		begun := time.Now()
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "glovebox"), "./cmd/glovebox")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOCACHE="+filepath.Join(dir, "cache"))
		if text, err := cmd.CombinedOutput(); err != nil {
			return figures, fmt.Errorf("build with an empty cache: %w: %s", err, text)
		}
		figures = append(figures, summarize("build with an empty cache", "s", []float64{time.Since(begun).Seconds()}))
	}
	return figures, nil
}

// warmCalls compares print(1) in a warm context over HTTP with the same in a
// bare Jupyter kernel, call by call, and shows where our time goes.
func warmCalls(ctx context.Context, s *server, calls int) ([]figure, error) {
	j, err := startJupyter(ctx)
	if err != nil {
		return nil, err
	}
	defer j.close()
	_, created, err := s.call(ctx, "create_context", map[string]any{"name": "bench"})
	if err != nil {
		return nil, err
	}
	run := map[string]any{"context_id": created["context_id"], "code": "print(1)"}
	var ours, bare, theirs, inside, protocol []float64
	for i := range calls + 30 {
		a, content, err := s.call(ctx, "run_code", run)
		if err != nil {
			return nil, err
		}
		b, err := j.ask("run")
		if err != nil {
			return nil, err
		}
		c, _, err := s.call(ctx, "list_contexts", map[string]any{})
		if err != nil {
			return nil, err
		}
		d, err := s.post(ctx, "run_code", run, `"stdout":"1\n"`)
		if err != nil {
			return nil, err
		}
		if i < 30 {
			continue // both warm up
		}
		ours, bare, theirs, protocol = append(ours, a), append(bare, d), append(theirs, b), append(protocol, c)
		if t, ok := content["execution_time"].(float64); ok {
			inside = append(inside, t*1e3)
		}
	}
	peer := summarize("Jupyter kernel: execute print(1)", "ms", theirs)
	whole := summarize("run_code print(1), warm, HTTP, SDK client", "ms", ours).against(peer, 1.0/3)
	plain := summarize("run_code print(1), warm, HTTP, bare POST", "ms", bare).against(peer, 1.0/3)
	http := summarize("  of it HTTP and the protocol (list_contexts)", "ms", protocol)
	python := summarize("  of it the interpreter", "ms", inside)
	rest := figure{Name: "  the rest: our link, agent and gVisor", Unit: "ms", N: 1, P50: whole.P50 - http.P50 - python.P50}
	return []figure{whole, http, python, rest, plain, peer}, nil
}

// coldCreates compares a context without a warm pool with a container.
func coldCreates(ctx context.Context, s *server, dir string, n int) ([]figure, error) {
	p, err := newPodman(ctx, dir, "/usr/bin/python3")
	if err != nil {
		return nil, err
	}
	var created, first, container []float64
	for i := range n {
		a, content, err := s.call(ctx, "create_context", map[string]any{"name": fmt.Sprintf("cold-%d", i)})
		if err != nil {
			return nil, err
		}
		b, _, err := s.call(ctx, "run_code", map[string]any{"context_id": content["context_id"], "code": "print(1)"})
		if err != nil {
			return nil, err
		}
		if _, _, err := s.call(ctx, "stop_context", map[string]any{"context_id": content["context_id"]}); err != nil {
			return nil, err
		}
		c, err := p.run(ctx)
		if err != nil {
			return nil, err
		}
		created, first, container = append(created, a), append(first, a+b), append(container, c)
	}
	peer := summarize("podman run --rm python3 -c 'print(1)'", "ms", container)
	return []figure{
		summarize("create_context, no pool", "ms", created).against(peer, 2),
		summarize("create_context, no pool, and print(1)", "ms", first).against(peer, 2),
		peer,
	}, nil
}

// idleMemory weighs boxes with a started Python kernel that do nothing.
func idleMemory(ctx context.Context, s *server, n int) ([]figure, error) {
	before, err := pss(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	var ids []any
	for i := range n {
		_, content, err := s.call(ctx, "create_context", map[string]any{"name": fmt.Sprintf("idle-%d", i)})
		if err != nil {
			return nil, err
		}
		ids = append(ids, content["context_id"])
		if _, _, err := s.call(ctx, "run_code", map[string]any{"context_id": content["context_id"], "code": "print(1)"}); err != nil {
			return nil, err
		}
	}
	after, err := pss(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, _, err := s.call(ctx, "stop_context", map[string]any{"context_id": id}); err != nil {
			return nil, err
		}
	}
	return []figure{summarize("memory of an idle box with Python (PSS)", "MiB", []float64{(after - before) / float64(n)})}, nil
}
