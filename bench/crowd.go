//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// crowdScenario calls print(1) in 1, 8 and 32 contexts concurrently, each over its own
// connection, and in as many Jupyter kernels.
func crowdScenario(ctx context.Context, b *bench) error {
	s, err := b.servePlain(ctx, plain)
	if err != nil {
		return err
	}
	defer s.stop()
	sizes := []int{1, 8, 32}
	if b.quick {
		sizes = sizes[:2]
	}
	var ids []string
	var ours, theirs []caller
	var kernels []*dialogue
	defer func() { closeAll(kernels) }()
	missing := ""
	for _, n := range sizes {
		for len(ours) < n {
			_, id, _, err := s.create(ctx, fmt.Sprintf("crowd-%d", len(ours)))
			if err != nil {
				return err
			}
			ids = append(ids, id)
			p, err := s.poster("run_code", map[string]any{"context_id": id, "code": "print(1)"}, `"stdout":"1\n"`)
			if err != nil {
				return err
			}
			defer p.close()
			if _, err := p.post(ctx); err != nil {
				return err
			}
			ours = append(ours, p.post)
		}
		if missing == "" {
			more, err := b.kernels(ctx, n-len(kernels))
			kernels = append(kernels, more...)
			if err != nil {
				missing = "cannot run here: " + err.Error()
			}
			for _, d := range more {
				theirs = append(theirs, func(context.Context) (float64, error) { return d.ask("run print(1)") })
			}
		}
		many := "s at once"
		if n == 1 {
			many = ""
		}
		jupyter := report.Absent(fmt.Sprintf("peer.jupyter.%d", n), fmt.Sprintf("%d Jupyter kernel%s, print(1)", n, many), missing)
		var rate, peerRate, took []float64
		// Alternately, so that both run under the same load.
		for range b.n(3, 1) {
			calls, samples, err := storm(ctx, ours, b.pause(3*time.Second, time.Second))
			if err != nil {
				return err
			}
			rate, took = append(rate, calls), append(took, samples...)
			if missing == "" {
				if calls, _, err = storm(ctx, theirs, b.pause(2*time.Second, time.Second)); err != nil {
					missing = "cannot run here: " + err.Error()
					continue
				}
				peerRate = append(peerRate, calls)
			}
		}
		if missing == "" {
			jupyter = report.Measured(jupyter.ID, jupyter.Name, "calls/s", peerRate...)
		}
		jupyter = jupyter.MoreIsBetter().As(report.Peer)
		row := report.Measured(fmt.Sprintf("crowd.%d", n), fmt.Sprintf("%d context%s, print(1)", n, many), "calls/s", rate...).
			MoreIsBetter().Against(jupyter)
		if n == 32 {
			row = row.AtLeast(report.Median, 1500)
		}
		b.add(row,
			report.Measured(fmt.Sprintf("crowd.%d.call", n), "of which one call", "ms", took...).As(report.Part), jupyter)
	}
	return s.end(ctx, ids...)
}

// caller makes one call and returns its duration in milliseconds.
type caller func(context.Context) (float64, error)

// storm runs all callers concurrently for a while and returns the total calls per second
// and the duration of each call.
func storm(ctx context.Context, callers []caller, d time.Duration) (perSecond float64, took []float64, err error) {
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	begun := time.Now()
	until := begun.Add(d)
	for _, call := range callers {
		wg.Go(func() {
			var mine []float64
			var failed error
			for time.Now().Before(until) && failed == nil && ctx.Err() == nil {
				var x float64
				if x, failed = call(ctx); failed == nil {
					mine = append(mine, x)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if err == nil {
				err = failed
			}
		})
	}
	wg.Wait()
	return float64(len(took)) / time.Since(begun).Seconds(), took, err
}

// kernels starts n Jupyter kernels, each with its own client. After an error it still
// returns those that started.
func (b *bench) kernels(ctx context.Context, n int) ([]*dialogue, error) {
	var all []*dialogue
	for range n {
		d, err := converse(ctx, b.peers.kernel()...)
		if err != nil {
			return all, err
		}
		// Sequentially, because each start takes a second of processor time.
		if _, err := d.ask("run print(1)"); err != nil {
			return all, err
		}
		all = append(all, d)
	}
	return all, nil
}

func closeAll(kernels []*dialogue) {
	var wg sync.WaitGroup
	for _, d := range kernels {
		wg.Go(func() { d.close() })
	}
	wg.Wait()
}
