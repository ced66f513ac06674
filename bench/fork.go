//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

const (
	// frame creates a table of which sumOfFrame prints the sum, 499500.
	frame      = "import pandas as pd; df = pd.DataFrame({'a': range(1000)})"
	sumOfFrame = "print(int(df.a.sum()))"
	frameSum   = "499500"

	// watch starts a thread that reads two clocks each millisecond and keeps the largest
	// gap between two reads, which grows while the box is paused.
	watch = `
import threading, time
gap, watching = 0.0, True
def _watch():
    global gap
    last = time.time(), time.monotonic()
    while watching:
        time.sleep(0.001)
        now = time.time(), time.monotonic()
        gap = max(gap, now[0] - last[0], now[1] - last[1])
        last = now
_thread = threading.Thread(target=_watch, daemon=True)
_thread.start()
`
	readGap  = "print(gap * 1000)"
	resetGap = "gap = 0.0"
	unwatch  = "watching = False; _thread.join()"
)

// forkScenario measures copies of a live context with pandas, and how long the original is
// paused.
func forkScenario(ctx context.Context, b *bench) error {
	s, err := b.servePlain(ctx, plain)
	if err != nil {
		return err
	}
	defer s.stop()
	if !s.tools["fork_context"] {
		b.add(
			report.Absent("fork.result", "fork_context, pandas loaded, and first result in the copy", notOffered).AtMost(report.Ratio, 1),
			report.Absent("fork.still", "fork_context: the original stands still", notOffered).AtMost(report.Median, 100),
		)
		return nil
	}
	_, parent, _, err := s.create(ctx, "parent")
	if err != nil {
		return err
	}
	if _, err := s.run(ctx, parent, frame, ""); err != nil {
		return err
	}
	fork := func(i int) (forked, first float64, err error) {
		forked, content, err := s.call(ctx, "fork_context", map[string]any{"context_id": parent, "name": fmt.Sprintf("copy-%d", i)})
		if err != nil {
			return 0, 0, err
		}
		child, _ := content["context_id"].(string)
		if first, err = s.run(ctx, child, sumOfFrame, frameSum); err != nil {
			return 0, 0, err
		}
		return forked, first, s.end(ctx, child)
	}
	if _, _, err := fork(0); err != nil { // fills caches
		return err
	}
	beside := alternately(ctx, b.peers.pandas)
	var forks, firsts, both, again []float64
	for i := range b.n(15, 3) {
		forked, first, err := fork(i + 1)
		if err != nil {
			return err
		}
		after, err := s.run(ctx, parent, sumOfFrame, frameSum)
		if err != nil {
			return fmt.Errorf("the original after a fork: %w", err)
		}
		forks, firsts, both, again = append(forks, forked), append(firsts, first), append(both, forked+first), append(again, after)
		beside.take(ctx)
	}
	still, quiet, err := standstill(ctx, b, s, parent, func(i int) error { _, _, err := fork(100 + i); return err })
	if err != nil {
		return err
	}
	b.add(
		report.Measured("fork.result", "fork_context, pandas loaded, and first result in the copy", "ms", both...).
			Against(beside.of(b.peers.pandas)).AtMost(report.Ratio, 1),
		report.Measured("fork.call", "of which fork_context", "ms", forks...).As(report.Part),
		report.Measured("fork.first", "of which the first call in the copy", "ms", firsts...).As(report.Part),
		report.Measured("fork.after", "the next call in the original", "ms", again...),
		report.Measured("fork.still", "fork_context: the original stands still", "ms", still...).AtMost(report.Median, 100),
		report.Measured("fork.quiet", "of which the same without a fork", "ms", quiet...).As(report.Part),
	)
	return s.end(ctx, parent)
}

// standstill measures the largest gap that a thread of the original sees during each fork,
// and over the same time without a fork.
func standstill(ctx context.Context, b *bench, s *server, parent string, fork func(int) error) (still, quiet []float64, err error) {
	if _, err := s.eval(ctx, parent, watch); err != nil {
		return nil, nil, err
	}
	gapOf := func(what func() error) (float64, error) {
		if _, err := s.eval(ctx, parent, resetGap); err != nil {
			return 0, err
		}
		if err := what(); err != nil {
			return 0, err
		}
		text, err := s.eval(ctx, parent, readGap)
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(text, 64)
	}
	for i := range b.n(10, 2) {
		begun := time.Now()
		gap, err := gapOf(func() error { return fork(i) })
		if err != nil {
			return nil, nil, err
		}
		still = append(still, gap)
		took := time.Since(begun)
		if gap, err = gapOf(func() error { return sleep(ctx, took) }); err != nil {
			return nil, nil, err
		}
		quiet = append(quiet, gap)
	}
	_, err = s.eval(ctx, parent, unwatch)
	return still, quiet, err
}
