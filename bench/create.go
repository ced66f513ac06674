package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// useOfPandas is a first result of pandas; it prints 6.
const useOfPandas = "import pandas as pd; print(int(pd.DataFrame({'a': [1, 2, 3]}).a.sum()))"

// templateLimit bounds the building of templates: some seconds each.
const templateLimit = 3 * time.Minute

// bootScenario measures contexts that boot: no template, no pool. Each has an
// empty state directory where a binary would otherwise make a template of the
// first and restore the others.
func bootScenario(ctx context.Context, b *bench) error {
	beside := alternately(ctx, b.peers.podman, b.peers.srt, b.peers.jupyter)
	var created, called, both []float64
	templates := 0
	sample := func(i int) (err error) {
		s, err := b.serve(ctx, fmt.Sprintf("boot-%d", i), "GLOVEBOX_POOL_SIZE=0", "GLOVEBOX_PRELOAD=none")
		if err != nil {
			return err
		}
		defer s.stop()
		took, id, source, err := s.create(ctx, "boot")
		if err != nil {
			return err
		}
		if source != "" && source != "boot" {
			templates++
		}
		first, err := s.run(ctx, id, "print(1)", "1")
		if err != nil {
			return err
		}
		created, called, both = append(created, took), append(called, first), append(both, took+first)
		return s.end(ctx, id)
	}
	for i := range b.n(12, 2) {
		if err := sample(i); err != nil {
			return err
		}
		beside.take(ctx)
	}
	container := beside.of(b.peers.podman)
	total := report.Measured("boot.result", "create_context, boot, and print(1)", "ms", both...)
	if templates > 0 {
		total = total.Noting("%d of %d came from a template after all", templates, len(both))
	}
	b.add(
		report.Measured("boot.create", "create_context, boot", "ms", created...).Against(container),
		report.Measured("boot.call", "of it the first call", "ms", called...).As(report.Part),
		total.Against(container),
		report.Measured("boot.srt", "create_context, boot, and print(1), beside sandbox-runtime", "ms", both...).Against(beside.of(b.peers.srt)),
		report.Measured("boot.jupyter", "create_context, boot, and print(1), beside a Jupyter kernel", "ms", both...).Against(beside.of(b.peers.jupyter)),
	)
	return nil
}

// buildTemplates builds the templates that the server "shared" uses, once for all
// scenarios that need them, and says whether the binary has any.
func (b *bench) buildTemplates(ctx context.Context) (seconds float64, offered bool, err error) {
	if b.templates.known {
		return b.templates.seconds, b.templates.offered, nil
	}
	// Help of a command that is not there is help of another one.
	help, _ := prepare(ctx, b.binary, "template", "build", "--help").CombinedOutput()
	if !strings.Contains(string(help), "glovebox template build") {
		b.templates = templates{known: true}
		return 0, false, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, templateLimit)
	defer cancel()
	cmd := prepare(ctx, b.binary, "template", "build")
	cmd.Env = b.environment(shared)
	begun := time.Now()
	if text, err := cmd.CombinedOutput(); err != nil {
		return 0, true, fmt.Errorf("build the templates: %w: %s", err, lastLine(string(text)))
	}
	b.templates = templates{known: true, offered: true, seconds: time.Since(begun).Seconds()}
	return b.templates.seconds, true, nil
}

// templates is what is known of them.
type templates struct {
	known, offered bool
	seconds        float64
}

// shared names the state directory whose templates are built ahead.
const shared = "shared"

// coldScenario measures contexts that come from a template with pandas in it while
// the pool is empty.
func coldScenario(ctx context.Context, b *bench) error {
	absent := func(why string) error {
		b.add(
			report.Absent("cold.create", "create_context, cold", why),
			report.Absent("cold.result", "create_context, cold, pandas loaded, and print(1)", why).AtMost(report.Ratio, 0.5),
			report.Absent("cold.pandas", "create_context, cold, and first use of pandas", why),
		)
		return nil
	}
	seconds, offered, err := b.buildTemplates(ctx)
	if err != nil {
		return err
	}
	if !offered {
		return absent(notOffered)
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
		report.Measured("cold.templates", "glovebox template build: python and node", "s", seconds),
		report.Measured("cold.create", "create_context, cold", "ms", created...).Against(pandas),
		report.Measured("cold.call", "of it the first call", "ms", called...).As(report.Part),
		report.Measured("cold.result", "create_context, cold, pandas loaded, and print(1)", "ms", printed...).
			Against(pandas).AtMost(report.Ratio, 0.5),
		report.Measured("cold.pandas", "create_context, cold, and first use of pandas", "ms", used...).Against(pandas),
		report.Measured("cold.podman", "create_context, cold, and print(1), beside podman", "ms", printed...).Against(beside.of(b.peers.podman)),
		report.Measured("cold.srt", "create_context, cold, and print(1), beside sandbox-runtime", "ms", printed...).Against(beside.of(b.peers.srt)),
	)
	return nil
}

// poolScenario measures contexts that stand ready. Between two of them the pool is
// given time to fill, as it has between the requests of a model.
func poolScenario(ctx context.Context, b *bench) error {
	absent := func(why string) error {
		b.add(
			report.Absent("pool.create", "create_context, warm", why).AtMost(report.Median, 5),
			report.Absent("pool.result", "create_context, warm, and print(1)", why),
			report.Absent("pool.pandas", "create_context, warm, and first use of pandas", why),
		)
		return nil
	}
	_, offered, err := b.buildTemplates(ctx)
	if err != nil {
		return err
	}
	if !offered {
		return absent(notOffered)
	}
	s, err := b.serve(ctx, shared, "GLOVEBOX_POOL_SIZE=3")
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
		if err := sleep(ctx, 600*time.Millisecond); err != nil {
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
			// The first few, while the pool fills; later ones say that it cannot
			// keep up with a context each half second.
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
		report.Measured("pool.call", "of it the first call", "ms", called...).As(report.Part),
		report.Measured("pool.result", "create_context, warm, and print(1)", "ms", printed...).Against(python),
		report.Measured("pool.pandas", "create_context, warm, and first use of pandas", "ms", used...).Against(python),
		report.Measured("pool.podman", "create_context, warm, and print(1), beside podman", "ms", printed...).Against(beside.of(b.peers.podman)),
		report.Measured("pool.srt", "create_context, warm, and print(1), beside sandbox-runtime", "ms", printed...).Against(beside.of(b.peers.srt)),
	)
	return nil
}
