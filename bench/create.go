//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// useOfPandas computes a first result with pandas and prints 6.
const useOfPandas = "import pandas as pd; print(int(pd.DataFrame({'a': [1, 2, 3]}).a.sum()))"

// bootScenario measures boxes that boot: by glovebox run, the whole command like its
// peers; and by create_context in a server on an empty state directory, which builds
// templates meanwhile.
func bootScenario(ctx context.Context, b *bench) error {
	script := filepath.Join(b.dir, "print.py")
	if err := os.WriteFile(script, []byte("print(1)\n"), 0o644); err != nil {
		return err
	}
	run := func() (float64, error) {
		return timed(ctx, "1", b.environment("run"), b.binary, "run", script)
	}
	if _, err := run(); err != nil { // prepares files that later runs use
		return fmt.Errorf("glovebox run: %w", err)
	}
	beside := alternately(ctx, b.peers.podman, b.peers.srt, b.peers.jupyter)
	var whole, created, called, both []float64
	var meanwhile int
	create := func(i int) (err error) {
		s, err := b.serve(ctx, fmt.Sprintf("boot-%d", i), "GLOVEBOX_POOL_SIZE=0", "GLOVEBOX_PRELOAD=none")
		if err != nil {
			return err
		}
		defer s.stop()
		took, id, source, err := s.create(ctx, "boot")
		if err != nil {
			return err
		}
		switch source {
		case "":
		case "boot":
			meanwhile++
		default:
			return fmt.Errorf("create_context on an empty state directory: source is %q, want boot", source)
		}
		first, err := s.run(ctx, id, "print(1)", "1")
		if err != nil {
			return err
		}
		created, called, both = append(created, took), append(called, first), append(both, took+first)
		return s.end(ctx, id)
	}
	for i := range b.n(12, 2) {
		took, err := run()
		if err != nil {
			return fmt.Errorf("glovebox run: %w", err)
		}
		whole = append(whole, took)
		beside.take(ctx)
		if err := create(i); err != nil {
			return err
		}
	}
	container := beside.of(b.peers.podman)
	total := report.Measured("boot.result", "create_context, boot, and print(1)", "ms", both...)
	if meanwhile > 0 {
		total = total.Noting("the server makes its templates meanwhile")
	}
	b.add(
		report.Measured("boot.run", "glovebox run, print(1), start to end", "ms", whole...).Against(container),
		report.Measured("boot.run.srt", "glovebox run, print(1), beside sandbox-runtime", "ms", whole...).Against(beside.of(b.peers.srt)),
		total.Against(container),
		report.Measured("boot.create", "of which create_context", "ms", created...).As(report.Part),
		report.Measured("boot.call", "of which the first call", "ms", called...).As(report.Part),
		report.Measured("boot.jupyter", "create_context, boot, and print(1), beside a Jupyter kernel", "ms", both...).Against(beside.of(b.peers.jupyter)),
	)
	return nil
}

// coldScenario measures contexts restored from a template with pandas, without a pool.
func coldScenario(ctx context.Context, b *bench) error {
	absent := func(why string) error {
		b.add(
			report.Absent("cold.create", "create_context, cold", why),
			report.Absent("cold.result", "create_context, cold, pandas loaded, and print(1)", why).AtMost(report.Ratio, 0.5),
			report.Absent("cold.pandas", "create_context, cold, and first use of pandas", why),
		)
		return nil
	}
	if !b.offersTemplates(ctx) {
		return absent(notOffered)
	}
	if err := b.buildTemplates(ctx, shared, preloaded); err != nil {
		return err
	}
	s, err := b.serve(ctx, shared, "GLOVEBOX_POOL_SIZE=0")
	if err != nil {
		return err
	}
	defer s.stop()
	beside := alternately(ctx, b.peers.pandas, b.peers.podman, b.peers.srt)
	var created, called, printed, used []float64
	for i := range b.n(15, 3) {
		for _, use := range []struct {
			code, want string
			total      *[]float64
		}{{"print(1)", "1", &printed}, {useOfPandas, "6", &used}} {
			took, id, source, err := s.create(ctx, fmt.Sprintf("cold-%d", i))
			if err != nil {
				return err
			}
			if source != "cold" {
				return fmt.Errorf("create_context with a template and an empty pool: source is %q, want cold", source)
			}
			first, err := s.run(ctx, id, use.code, use.want)
			if err != nil {
				return err
			}
			if err := s.end(ctx, id); err != nil {
				return err
			}
			created, *use.total = append(created, took), append(*use.total, took+first)
			if use.code == "print(1)" {
				called = append(called, first)
			}
		}
		beside.take(ctx)
	}
	pandas := beside.of(b.peers.pandas)
	b.add(
		report.Measured("cold.templates", "glovebox template build: python and node", "s", b.built[shared]),
		report.Measured("cold.create", "create_context, cold", "ms", created...).Against(pandas),
		report.Measured("cold.call", "of which the first call", "ms", called...).As(report.Part),
		report.Measured("cold.result", "create_context, cold, pandas loaded, and print(1)", "ms", printed...).
			Against(pandas).AtMost(report.Ratio, 0.5),
		report.Measured("cold.pandas", "create_context, cold, and first use of pandas", "ms", used...).Against(pandas),
		report.Measured("cold.podman", "create_context, cold, and print(1), beside podman", "ms", printed...).Against(beside.of(b.peers.podman)),
		report.Measured("cold.srt", "create_context, cold, and print(1), beside sandbox-runtime", "ms", printed...).Against(beside.of(b.peers.srt)),
	)
	return nil
}

// poolRest is the pause between filling the pool and the next context, for the work that
// the last box caused.
const poolRest = 200 * time.Millisecond

// poolScenario measures contexts from the pool. The pool fills between two of them, as it
// does between the requests of a model.
func poolScenario(ctx context.Context, b *bench) error {
	absent := func(why string) error {
		b.add(
			report.Absent("pool.create", "create_context, warm", why).AtMost(report.Median, 5),
			report.Absent("pool.result", "create_context, warm, and print(1)", why),
			report.Absent("pool.pandas", "create_context, warm, and first use of pandas", why),
		)
		return nil
	}
	if !b.offersTemplates(ctx) {
		return absent(notOffered)
	}
	if err := b.buildTemplates(ctx, shared, preloaded); err != nil {
		return err
	}
	const size = 3
	s, err := b.serve(ctx, shared, fmt.Sprintf("GLOVEBOX_POOL_SIZE=%d", size))
	if err != nil {
		return err
	}
	defer s.stop()
	beside := alternately(ctx, b.peers.python, b.peers.podman, b.peers.srt)
	var created, called, printed, used []float64
	misses := 0
	n := b.n(40, 5)
	for len(printed) < n || len(used) < n {
		use, want, total := "print(1)", "1", &printed
		if len(printed) > len(used) {
			use, want, total = useOfPandas, "6", &used
		}
		if err := s.poolFull(ctx, size); err != nil {
			return err
		}
		if err := sleep(ctx, poolRest); err != nil {
			return err
		}
		took, id, source, err := s.create(ctx, fmt.Sprintf("warm-%d", len(created)))
		if err != nil {
			return err
		}
		first, err := s.run(ctx, id, use, want)
		if err != nil {
			return err
		}
		if err := s.end(ctx, id); err != nil {
			return err
		}
		if source != "warm" {
			if misses++; misses > n {
				return fmt.Errorf("create_context with a pool: %d of %d came from elsewhere, the last from %q", misses, misses+len(created), source)
			}
			continue
		}
		created, *total = append(created, took), append(*total, took+first)
		if want == "1" {
			called = append(called, first)
			beside.take(ctx)
		}
	}
	python := beside.of(b.peers.python)
	b.add(
		report.Measured("pool.create", "create_context, warm", "ms", created...).
			Against(python).AtMost(report.Median, 5).Noting("%d misses left out", misses),
		report.Measured("pool.call", "of which the first call", "ms", called...).As(report.Part),
		report.Measured("pool.result", "create_context, warm, and print(1)", "ms", printed...).Against(python),
		report.Measured("pool.pandas", "create_context, warm, and first use of pandas", "ms", used...).Against(python),
		report.Measured("pool.podman", "create_context, warm, and print(1), beside podman", "ms", printed...).Against(beside.of(b.peers.podman)),
		report.Measured("pool.srt", "create_context, warm, and print(1), beside sandbox-runtime", "ms", printed...).Against(beside.of(b.peers.srt)),
	)
	return nil
}
