//go:build linux

package main

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// hibernateScenario hibernates contexts with pandas by stopping the server, and wakes them
// by calls to the next one.
func hibernateScenario(ctx context.Context, b *bench) error {
	const state = "hibernate"
	open := func() (*server, error) { return b.servePlain(ctx, state, "GLOVEBOX_PAUSE_AFTER=never") }
	absent := func() error {
		b.add(
			report.Absent("hibernate.stop", "hibernate, by stopping the server, each context", notOffered),
			report.Absent("hibernate.wake", "wake, first result of pandas", notOffered).AtMost(report.Ratio, 1),
		)
		return nil
	}
	beside := alternately(ctx, b.peers.pandas)
	var stopped, started, woken, again, disk []float64
	for range b.n(3, 1) {
		s, err := open()
		if err != nil {
			return err
		}
		// The duration of a stop without contexts.
		empty, err := s.stop()
		if err != nil {
			return err
		}
		if s, err = open(); err != nil {
			return err
		}
		ids, err := b.frames(ctx, s, b.n(5, 2))
		if err != nil {
			s.stop()
			return err
		}
		before := size(filepath.Join(b.dir, state))
		took, err := s.stop()
		if err != nil {
			return err
		}
		stopped = append(stopped, max(0, took-empty)/float64(len(ids)))
		disk = append(disk, (size(filepath.Join(b.dir, state))-before)/float64(len(ids)))
		if s, err = open(); err != nil {
			return err
		}
		started = append(started, s.start)
		there, err := s.statuses(ctx)
		if err != nil {
			s.stop()
			return err
		}
		if there[ids[0]] == "" {
			s.stop()
			return absent()
		}
		for _, id := range ids {
			wake, err := s.run(ctx, id, sumOfFrame, frameSum)
			if err == nil {
				woken = append(woken, wake)
				wake, err = s.run(ctx, id, sumOfFrame, frameSum)
			}
			if err != nil {
				s.stop()
				return fmt.Errorf("wake: %w", err)
			}
			again = append(again, wake)
			beside.take(ctx)
		}
		err = s.end(ctx, ids...)
		if _, stopErr := s.stop(); err == nil {
			err = stopErr
		}
		if err != nil {
			return err
		}
	}
	pandas := beside.of(b.peers.pandas)
	b.add(
		report.Measured("hibernate.stop", "hibernate, by stopping the server, each context", "ms", stopped...).Against(pandas),
		report.Measured("hibernate.disk", "disk of a hibernated context with pandas", "MB", disk...),
		report.Measured("hibernate.start", "start of the server with them", "ms", started...),
		report.Measured("hibernate.wake", "wake, first result of pandas", "ms", woken...).Against(pandas).AtMost(report.Ratio, 1),
		report.Measured("hibernate.again", "of which the same call again, awake", "ms", again...).As(report.Part),
	)
	return b.snapshots(ctx)
}

// snapshots measures snapshot_context and restore_context of a context with pandas.
func (b *bench) snapshots(ctx context.Context) error {
	s, err := b.servePlain(ctx, plain)
	if err != nil {
		return err
	}
	defer s.stop()
	if !s.tools["snapshot_context"] || !s.tools["restore_context"] {
		b.add(report.Absent("snapshot.take", "snapshot_context, pandas loaded", notOffered),
			report.Absent("snapshot.restore", "restore_context and first result of pandas", notOffered))
		return nil
	}
	ids, err := b.frames(ctx, s, 1)
	if err != nil {
		return err
	}
	beside := alternately(ctx, b.peers.pandas)
	var taken, restored []float64
	for i := range b.n(8, 2) {
		took, content, err := s.call(ctx, "snapshot_context", map[string]any{"context_id": ids[0], "name": fmt.Sprintf("snapshot-%d", i)})
		if err != nil {
			return err
		}
		taken = append(taken, took)
		took, made, err := s.call(ctx, "restore_context", map[string]any{"snapshot_id": content["snapshot_id"], "name": fmt.Sprintf("restored-%d", i)})
		if err != nil {
			return err
		}
		id, _ := made["context_id"].(string)
		first, err := s.run(ctx, id, sumOfFrame, frameSum)
		if err != nil {
			return err
		}
		restored = append(restored, took+first)
		if err := s.end(ctx, id); err != nil {
			return err
		}
		if _, _, err := s.call(ctx, "delete_snapshot", map[string]any{"snapshot_id": content["snapshot_id"]}); err != nil {
			return err
		}
		beside.take(ctx)
	}
	pandas := beside.of(b.peers.pandas)
	b.add(report.Measured("snapshot.take", "snapshot_context, pandas loaded", "ms", taken...).Against(pandas),
		report.Measured("snapshot.restore", "restore_context and first result of pandas", "ms", restored...).Against(pandas))
	return s.end(ctx, ids...)
}

// frames creates n contexts with a pandas table.
func (b *bench) frames(ctx context.Context, s *server, n int) ([]string, error) {
	var ids []string
	for i := range n {
		_, id, _, err := s.create(ctx, fmt.Sprintf("frame-%d", i))
		if err != nil {
			return nil, err
		}
		if _, err := s.run(ctx, id, frame, ""); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// size returns the disk usage of a directory in MB.
func size(dir string) float64 {
	var blocks int64
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went away meanwhile
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				blocks += st.Blocks
			}
		}
		return nil
	})
	return float64(blocks) * 512 / 1e6
}

// free returns the free space of a file system in MB.
func free(dir string) (float64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	return float64(st.Bavail) * float64(st.Frsize) / 1e6, nil
}
