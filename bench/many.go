//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// idleScenario measures the processor time of idle contexts over the second minute after
// their last call, in percent of one core.
func idleScenario(ctx context.Context, b *bench) error {
	n := b.n(50, 5)
	s, err := b.servePlain(ctx, plain, "GLOVEBOX_MAX_CONTEXTS=100")
	if err != nil {
		return err
	}
	defer s.stop()
	ids, _, err := createNumbered(ctx, s, 0, n)
	if err != nil {
		return err
	}
	if err := sleep(ctx, b.pause(time.Minute, 3*time.Second)); err != nil {
		return err
	}
	before, err := usage(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := sleep(ctx, b.pause(time.Minute, 3*time.Second)); err != nil {
		return err
	}
	after, err := usage(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	share := 100 * after.Since(before).Seconds() / time.Since(begun).Seconds()
	wrong, err := checkNumbers(ctx, s, ids)
	if err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d contexts did not answer after the minute", wrong, n)
	}
	row := report.Measured("idle.cpu", fmt.Sprintf("processor time of %d idle contexts", n), "% of a core", share)
	if n == 50 {
		row = row.AtMost(report.Median, 0.5)
	}
	b.add(row)
	return s.end(ctx, ids...)
}

// createNumbered creates contexts, each with its number in a variable, until there are n or the
// server refuses one.
func createNumbered(ctx context.Context, s *server, first, n int) (ids []string, took []float64, err error) {
	for i := first; i < first+n; i++ {
		create, id, _, err := s.create(ctx, fmt.Sprintf("number-%d", i))
		if err != nil {
			return ids, took, err
		}
		call, err := s.run(ctx, id, fmt.Sprintf("number = %d; print(number)", i), fmt.Sprint(i))
		if err != nil {
			return ids, took, err
		}
		ids, took = append(ids, id), append(took, create+call)
	}
	return ids, took, nil
}

// checkNumbers counts the contexts that lost their number.
func checkNumbers(ctx context.Context, s *server, ids []string) (wrong int, err error) {
	for i, id := range ids {
		if _, err := s.run(ctx, id, "print(number)", fmt.Sprint(i)); err != nil {
			if ctx.Err() != nil {
				return wrong, context.Cause(ctx)
			}
			wrong++
		}
	}
	return wrong, nil
}

// liveScenario creates up to a hundred live contexts, until the server refuses one, and
// checks the number of each. None may be hibernated meanwhile.
func liveScenario(ctx context.Context, b *bench) error {
	n := b.n(100, 8)
	s, err := b.servePlain(ctx, plain, fmt.Sprintf("GLOVEBOX_MAX_CONTEXTS=%d", n), "MSB_ENABLE_LRU_EVICTION=false")
	if err != nil {
		return err
	}
	defer s.stop()
	ids, took, refused := createNumbered(ctx, s, 0, n)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(ids) == 0 {
		return refused
	}
	asleep, err := s.hibernated(ctx)
	if err != nil {
		return err
	}
	wrong, err := checkNumbers(ctx, s, ids)
	if err != nil {
		return err
	}
	m, err := s.memory()
	if err != nil {
		return err
	}
	row := report.Measured("live.boxes", "live contexts, every one answering", "", float64(len(ids)-wrong-asleep)).MoreIsBetter()
	if !b.quick {
		row = row.AtLeast(report.Median, 100)
	}
	if refused != nil {
		row = row.Noting("the next was refused: %v", refused)
	}
	if asleep > 0 {
		row = row.Noting("%d more were hibernated", asleep)
	}
	if wrong > 0 {
		row = row.Noting("%d more did not answer", wrong)
	}
	b.add(row,
		report.Measured("live.create", "of which create_context and the first call", "ms", took...).As(report.Part),
		report.Measured("live.memory", "of which memory of all, with the server (PSS)", "MB", float64(m.PSS)/1e6).As(report.Part))
	return s.end(ctx, ids...)
}

// diskReserve is the disk space in MB that the search for hibernated contexts leaves free.
const diskReserve = 5000

// hibernatedScenario creates contexts in a server that keeps few in memory and hibernates the
// others, until there are a thousand, the server refuses one, time is up or the disk is
// nearly full. It then wakes some at random.
func hibernatedScenario(ctx context.Context, b *bench) error {
	most := min(b.most, b.n(b.most, 12))
	const live = 4
	disk, err := free(b.dir)
	if err != nil {
		return err
	}
	s, err := b.servePlain(ctx, "asleep", fmt.Sprintf("GLOVEBOX_MAX_CONTEXTS=%d", live),
		fmt.Sprintf("GLOVEBOX_SNAPSHOT_DISK_MB=%.0f", max(1, disk-diskReserve)))
	if err != nil {
		return err
	}
	defer s.stop()
	begun := time.Now()
	var ids []string
	var took []float64
	why := ""
	for len(ids) < most+live && why == "" {
		more, t, err := createNumbered(ctx, s, len(ids), 1)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			if len(ids) == 0 {
				return err
			}
			why = "the next was refused: " + err.Error()
			break
		}
		ids, took = append(ids, more...), append(took, t...)
		if len(ids) == live+1 {
			if statuses, err := s.statuses(ctx); err != nil {
				return err
			} else if statuses[ids[0]] == "" {
				b.add(report.Absent("asleep.boxes", "hibernated contexts", notOffered).AtLeast(report.Median, 1000))
				return s.end(ctx, ids[1:]...)
			}
		}
		left, err := free(b.dir)
		switch {
		case err != nil:
			return err
		case left < diskReserve:
			why = fmt.Sprintf("the disk has only %.0f MB left", left)
		case time.Since(begun) > b.within:
			why = fmt.Sprintf("time was up after %v, none was refused", b.within)
		}
	}
	statuses, err := s.statuses(ctx)
	if err != nil {
		return err
	}
	number := make(map[string]int, len(ids))
	var asleep []string // those that the list leaves out are older, and hibernated or lost
	for i, id := range ids {
		number[id] = i
		if status, listed := statuses[id]; !listed || status == "hibernated" {
			asleep = append(asleep, id)
		}
	}
	count, err := s.hibernated(ctx)
	if err != nil {
		return err
	}
	rand.Shuffle(len(asleep), func(i, j int) { asleep[i], asleep[j] = asleep[j], asleep[i] })
	var woken []float64
	for _, id := range asleep[:min(len(asleep), b.n(20, 3))] {
		wake, err := s.run(ctx, id, "print(number)", fmt.Sprint(number[id]))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("wake one of %d hibernated contexts: %w", len(asleep), err)
		}
		woken = append(woken, wake)
	}
	row := report.Measured("asleep.boxes", "hibernated contexts", "", float64(count)).MoreIsBetter()
	if b.most == 1000 && !b.quick {
		row = row.AtLeast(report.Median, 1000)
	}
	if why != "" {
		row = row.Noting("%s", why)
	}
	slices.Sort(took)
	b.add(row,
		report.Measured("asleep.create", "of which create_context and first call, one going to disk", "ms", took...).As(report.Part),
		report.Measured("asleep.wake", "of which wake, any of them", "ms", woken...).As(report.Part),
		report.Measured("asleep.disk", "of which disk for each", "MB", size(b.dir+"/asleep")/max(1, float64(count))).As(report.Part),
		report.Measured("asleep.list", "of which list_contexts", "ms", listTimes(ctx, s)...).As(report.Part))
	return nil
}

// listTimes measures list_contexts.
func listTimes(ctx context.Context, s *server) []float64 {
	var samples []float64
	for range 5 {
		if took, _, err := s.call(ctx, "list_contexts", map[string]any{}); err == nil {
			samples = append(samples, took)
		}
	}
	return samples
}
