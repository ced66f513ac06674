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

// startScenario measures from the start of the process until it logs its endpoint: on an
// empty state directory, and again on the same one.
func startScenario(ctx context.Context, b *bench) error {
	beside := alternately(ctx, b.peers.nodeStart)
	var first, again []float64
	for i := range b.n(5, 2) {
		for _, samples := range []*[]float64{&first, &again} {
			s, err := b.serve(ctx, fmt.Sprintf("start-%d", i), "GLOVEBOX_POOL_SIZE=0")
			if err != nil {
				return err
			}
			*samples = append(*samples, s.start)
			if _, err := s.stop(); err != nil {
				return err
			}
			beside.take(ctx)
		}
	}
	full, err := b.startsWithPool(ctx)
	if err != nil {
		return err
	}
	info, err := os.Stat(b.binary)
	if err != nil {
		return err
	}
	node := beside.of(b.peers.nodeStart)
	b.add(
		report.Measured("start.first", "start of the server, empty state directory", "ms", first...).Against(node),
		report.Measured("start.again", "start of the server", "ms", again...).Against(node),
		full,
		report.Measured("start.size", "size of the binary", "MB", float64(info.Size())/1e6),
	)
	return nil
}

// startsWithPool measures from the start of the process until the pool is full, with
// existing templates.
func (b *bench) startsWithPool(ctx context.Context) (report.Figure, error) {
	const id, name = "start.pool", "start of the server until the pool is full"
	if !b.offersTemplates(ctx) {
		return report.Absent(id, name, notOffered), nil
	}
	if err := b.buildTemplates(ctx, shared, preloaded); err != nil {
		return report.Figure{}, err
	}
	const size = 3
	var took []float64
	for range b.n(3, 1) {
		begun := time.Now()
		s, err := b.serve(ctx, shared, fmt.Sprintf("GLOVEBOX_POOL_SIZE=%d", size))
		if err != nil {
			return report.Figure{}, err
		}
		err = s.poolFull(ctx, size)
		took = append(took, ms(time.Since(begun)))
		if _, stopErr := s.stop(); err == nil {
			err = stopErr
		}
		if err != nil {
			return report.Figure{}, err
		}
	}
	return report.Measured(id, name, "ms", took...).Noting("%d boxes of Python and of Node, each proved by a run", size), nil
}

// buildScenario builds the program with an empty cache.
func buildScenario(ctx context.Context, b *bench) error {
	begun := time.Now()
	cmd := prepare(ctx, "go", "build", "-o", filepath.Join(b.dir, "built"), "./cmd/glovebox")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOCACHE="+filepath.Join(b.dir, "cache"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build with an empty cache: %w: %s", err, text)
	}
	b.add(report.Measured("build.cold", "build with an empty cache", "s", time.Since(begun).Seconds()))
	return nil
}
