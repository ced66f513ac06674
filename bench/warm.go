//go:build linux

package main

import (
	"context"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// warmScenario compares print(1) in a warm context over HTTP with a bare Jupyter kernel,
// call by call, and breaks our time down.
func warmScenario(ctx context.Context, b *bench) error {
	s, err := b.servePlain(ctx, plain)
	if err != nil {
		return err
	}
	defer s.stop()
	_, id, _, err := s.create(ctx, "warm")
	if err != nil {
		return err
	}
	args := map[string]any{"context_id": id, "code": "print(1)"}
	bare, err := s.poster("run_code", args, `"stdout":"1\n"`)
	if err != nil {
		return err
	}
	defer bare.close()
	beside := alternately(ctx, b.peers.jupyterUp, b.peers.pyodideUp)
	const warmUp = 30 // calls until caches of both sides are filled
	var sdk, post, inside, list []float64
	for i := range b.n(500, 40) + warmUp {
		took, content, err := s.call(ctx, "run_code", args)
		if err != nil {
			return err
		}
		listed, _, err := s.call(ctx, "list_contexts", map[string]any{})
		if err != nil {
			return err
		}
		posted, err := bare.post(ctx)
		if err != nil {
			return err
		}
		if i < warmUp {
			continue
		}
		beside.take(ctx)
		sdk, list, post = append(sdk, took), append(list, listed), append(post, posted)
		if seconds, ok := content["execution_time"].(float64); ok {
			inside = append(inside, seconds*1e3)
		}
	}
	jupyter := beside.of(b.peers.jupyterUp)
	whole := report.Measured("warm.sdk", "run_code print(1), SDK client", "ms", sdk...).
		Against(jupyter).AtMost(report.Ratio, 0.2).AtMost(report.Tail, 5)
	http := report.Measured("warm.list", "list_contexts, SDK client", "ms", list...).Against(jupyter)
	python := report.Measured("warm.inside", "of which the interpreter and the agent", "ms", inside...).As(report.Part)
	rest := report.Measured("warm.rest", "of which link and gVisor: the rest", "ms", whole.P50-http.P50-python.P50).As(report.Part)
	protocol := report.Measured("warm.protocol", "of which HTTP and MCP: list_contexts", "ms", http.P50).As(report.Part)
	b.add(whole, protocol, python, rest,
		report.Measured("warm.post", "run_code print(1), bare POST", "ms", post...).
			Against(jupyter).AtMost(report.Ratio, 0.2).AtMost(report.Tail, 5),
		report.Measured("warm.post.pyodide", "run_code print(1), bare POST, beside Pyodide", "ms", post...).
			Against(beside.of(b.peers.pyodideUp)),
		http)
	return s.end(ctx, id)
}
