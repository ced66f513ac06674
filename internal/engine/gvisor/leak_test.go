//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// held counts what guests hold on the host.
func held(t *testing.T) map[string]int {
	t.Helper()
	count := func(dir string) int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]int{
		"descriptors": count("/proc/self/fd"),
		"mounts":      strings.Count(string(mounts), "\n"),
		"processes":   len(descendants(os.Getpid())),
		"goroutines":  runtime.NumGoroutine(),
	}
}

func TestDestroy_LeavesNothing(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 256, DiskMB: 100, PIDs: 100}
	create(t, e, "warm", spec).Destroy(t.Context())
	check := func(name string, before map[string]int) {
		t.Helper()
		var after map[string]int
		polltest.Soon(time.Second, func() bool { // goroutines of finished AfterFuncs end soon
			after = held(t)
			return after["goroutines"] <= before["goroutines"]
		})
		for what, n := range after {
			if n > before[what] {
				t.Errorf("%s: leak: %d %s before, %d after", name, before[what], what, n)
			}
			before[what] = min(n, before[what]) // a goroutine of "warm" may have ended late
		}
		for _, sub := range []string{"ctl"} {
			if entries, _ := os.ReadDir(e.dir.path(sub)); len(entries) > 0 {
				t.Errorf("%s: left %v in %s", name, entries, sub)
			}
		}
		if e.groups != nil {
			if dirs, _ := filepath.Glob(e.groups.dirs["memory"] + "/*/"); len(dirs) > 0 {
				t.Errorf("%s: left cgroups %v", name, dirs)
			}
		}
	}
	before := held(t)
	start := time.Now()
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			id := fmt.Sprintf("many-%d", i)
			g, err := e.Create(t.Context(), id, spec)
			if err != nil {
				t.Error(err)
				return
			}
			for range 3 {
				group.Go(func() {
					if err := g.Destroy(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	group.Wait()
	t.Logf("50 guests in %v", time.Since(start))
	check("50 guests", before)

	// A create that is cancelled at any moment leaves nothing.
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Millisecond)
		g, err := e.Create(ctx, "cut-short", spec)
		cancel()
		if err == nil {
			g.Destroy(t.Context())
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled create: %v", err)
		}
	}
	check("cancelled creates", before)
}

func TestClose_WhileCreating(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			if _, err := e.Create(t.Context(), fmt.Sprintf("late-%d", i), spec); err != nil && !errors.Is(err, engine.ErrGone) {
				t.Error(err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	group.Wait()
	if _, err := e.Create(t.Context(), "after", spec); !errors.Is(err, engine.ErrGone) {
		t.Errorf("create after close: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
