//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// openWithoutGroups returns an engine as on a host without cgroups.
func openWithoutGroups(t testing.TB) *Engine {
	t.Helper()
	e := open(t)
	if err := e.groups.close(); err != nil {
		t.Fatal(err)
	}
	e.groups = nil
	return e
}

// pageTables returns the size of all page tables of a guest in bytes.
func pageTables(g *guest) (n int64) {
	sentry := g.sentry.Process.Pid
	stubs := make(map[int]bool) // the children of a stub share its memory
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", sentry))
	for _, file := range threads {
		for _, pid := range children(file) {
			stubs[pid] = true
		}
	}
	stubs[sentry] = true
	for pid := range stubs {
		n += readStatus(pid).tables
	}
	return n
}

// TestLimit_PageTables: a guest that takes memory of the host's kernel instead of its own
// is ended at its limit.
func TestLimit_PageTables(t *testing.T) {
	e := openWithoutGroups(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 64, DiskMB: 20, PIDs: 1000}
	b := create(t, e, "hostile", spec)
	g := b.Guest.(*guest)
	answered := make(chan string, 1)
	b.send(t, "each 6 maps 60000")
	go func() {
		answer, _ := b.in.ReadString('\n')
		answered <- answer
	}()
	start, most := time.Now(), int64(0)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		exit, err := b.Wait(ctx)
		cancel()
		if err == nil {
			t.Logf("%+v after %v; at most %d MiB of page tables seen", exit, time.Since(start), most>>20)
			if exit.Reason != engine.ExitOOM || !strings.Contains(exit.Detail, "page tables") {
				t.Errorf("exit: got %+v, want the reason %s and its cause", exit, engine.ExitOOM)
			}
			break
		}
		select {
		case answer := <-answered:
			if answer != "" {
				t.Fatalf("the guest has %d MiB of page tables with a limit of %d MiB: %.100s", pageTables(g)>>20, spec.Limits.MemoryMB, answer)
			}
		default:
		}
		most = max(most, pageTables(g))
	}
	if bound := hostMemory(spec.Limits) + 512<<20; most > bound {
		t.Errorf("the guest took %d MiB of page tables, want at most %d", most>>20, bound>>20)
	}
}

// TestLimit_Mappings: a program with too many mappings gets an error, as on Linux, and
// the guest continues.
func TestLimit_Mappings(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 256, PIDs: 100}
	b := create(t, e, "mapping", spec)
	n := maxMappings()
	if n > 200_000 {
		t.Skipf("the host allows %d mappings, too many for this test", n)
	}
	if got := b.ask(t, fmt.Sprintf("each 1 vmas %d", n+1000)); !strings.Contains(got, "cannot allocate memory") {
		t.Errorf("%d mappings: got %s, want an error", n+1000, got)
	}
	if got := b.ask(t, "each 1 vmas 1000"); strings.Contains(got, "error") {
		t.Errorf("1000 mappings in another program: %s", got)
	}
	if got := b.ask(t, "echo alive"); got != "alive" {
		t.Errorf("the guest answers %q", got)
	}
}

// TestMeter_CountsKernelMemory compares the meter before and after a guest takes memory
// of each kind.
func TestMeter_CountsKernelMemory(t *testing.T) {
	e := openWithoutGroups(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 1024, PIDs: 1000}
	for _, c := range []struct {
		name, command string
		all, kernel   int64 // MiB that it takes at least, and the kernel's part
	}{
		{"memory", "eat 100", 95, 0},
		{"page tables", "maps 20000", 80, 75},
		{"mappings", "vmas 20000", 5, 4},
		{"descriptors", "open 4000", 8, 7},
		{"processes", "each 50 echo", 10, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := create(t, e, "measured", spec)
			defer b.Destroy(t.Context())
			m := newMeter(b.Guest.(*guest).sentry.Process.Pid)
			defer m.close()
			all, kernel := m.used(1)
			if got := b.ask(t, c.command); strings.Contains(got, "error") {
				t.Fatal(got)
			}
			m.counted, m.mapped = time.Time{}, time.Time{} // count now
			all2, kernel2 := m.used(1)
			all, kernel = (all2-all)>>20, (kernel2-kernel)>>20
			t.Logf("%d MiB more, %d of it the kernel's; the count took %v and %v", all, kernel, m.countTook, m.mapTook)
			if all < c.all || all > 2*c.all+100 || kernel < c.kernel || kernel > 2*c.kernel+20 {
				t.Errorf("%s: got %d MiB, %d of it the kernel's; want about %d and %d", c.command, all, kernel, c.all, c.kernel)
			}
		})
	}
}

// TestMeter_SkipsIdleGuest: the kernel memory of an idle guest is not counted again.
func TestMeter_SkipsIdleGuest(t *testing.T) {
	e := openWithoutGroups(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 256, PIDs: 100}
	b := create(t, e, "idle", spec)
	b.ask(t, "echo up")
	if err := e.Pause(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	m := newMeter(b.Guest.(*guest).sentry.Process.Pid)
	defer m.close()
	limit := hostMemory(spec.Limits)
	m.used(limit)
	last, counts := m.counted, 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		m.used(limit)
		if m.counted != last {
			last = m.counted
			counts++
		}
	}
	if counts > 20 {
		t.Errorf("the kernel memory of a paused guest was counted %d times in two seconds, want hardly ever", counts)
	}
}

// BenchmarkMeter measures one look at an idle guest.
func BenchmarkMeter(b *testing.B) {
	e := openWithoutGroups(b)
	spec := newSpec(b)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 256, PIDs: 100}
	g := create(b, e, "idle", spec)
	g.ask(b, "echo up")
	m := newMeter(g.Guest.(*guest).sentry.Process.Pid)
	defer m.close()
	limit := hostMemory(spec.Limits)
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			m.used(limit)
		}
	})
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			m.count()
		}
	})
}
