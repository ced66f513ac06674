//go:build linux && (amd64 || arm64)

package gvisor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// medians collects durations under names and reports their medians.
type medians map[string][]time.Duration

func (m medians) add(name string, since time.Time) { m[name] = append(m[name], time.Since(since)) }

func (m medians) report(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the sum of unlike parts says nothing
	for name, all := range m {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-ms")
	}
}

type noSink struct{}

func (noSink) Output(protocol.Channel, []byte) {}
func (noSink) Display(protocol.Display)        {}

// BenchmarkSnapshot measures the life of a snapshot of a Python kernel, beside
// what there is without: python3 on the host, and a cold boot.
func BenchmarkSnapshot(b *testing.B) {
	for _, preload := range [][]string{nil, {"pandas"}} {
		name := "plain"
		if len(preload) > 0 {
			name = preload[0]
		}
		b.Run(name, func(b *testing.B) { benchSnapshot(b, preload) })
	}
}

func benchSnapshot(b *testing.B, preload []string) {
	const python = "/usr/bin/python3"
	code := "pass"
	for _, name := range preload {
		code = "import " + name
	}
	if err := exec.Command(python, "-c", code).Run(); err != nil {
		b.Skipf("%s -c %q: %v", python, code, err)
	}
	h := harness(b, toolchain(b))
	e := h.Open(b)
	defer e.Close()
	spec := h.Spec(b)
	spec.Agent = enginetest.Agent(b)
	spec.Limits = engine.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024, PIDs: 256}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	hello := protocol.Hello{
		Home: "/home/user", UID: 1000, GID: 1000, PIDs: 256, MemoryMB: 512,
		Interpreters: map[string]string{"python": python},
	}
	run := func(l *client.Conn) {
		b.Helper()
		res, err := l.Run(b.Context(), protocol.Run{Kernel: "k", Language: "python"}, []byte("print(1)"), noSink{})
		if err != nil || !res.OK || res.Fresh && len(preload) > 0 {
			b.Fatalf("%+v, %v", res, err)
		}
	}
	snapshotter, _ := engine.As[engine.Snapshotter](e)
	statser, _ := engine.As[engine.Statser](e)
	memory := func(g engine.Guest) float64 {
		b.Helper()
		s, err := statser.Stats(b.Context(), g.ID())
		must(err)
		return float64(s.MemoryBytes) / (1 << 20)
	}
	m := make(medians)
	var size, coldMemory, warmMemory float64
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		must(exec.Command(python, "-c", code).Run())
		m.add("host-python", start)

		start = time.Now()
		g, err := e.Create(b.Context(), fmt.Sprintf("cold-%d", i), spec)
		must(err)
		l, err := client.Open(b.Context(), g, client.Options{Hello: hello})
		must(err)
		_, err = l.Kernel(b.Context(), protocol.Kernel{Kernel: "k", Language: "python", Action: "start", Preload: preload})
		must(err)
		run(l)
		m.add("cold-to-first-result", start)

		// The slowest ping shows for how long the guest was paused.
		ctx, cancel := context.WithCancel(b.Context())
		slowest := make(chan time.Duration)
		go func() {
			most := time.Duration(0)
			for ctx.Err() == nil {
				if d, err := l.Ping(b.Context()); err == nil {
					most = max(most, d)
				}
			}
			slowest <- most
		}()
		dir := filepath.Join(b.TempDir(), "image")
		must(os.Mkdir(dir, 0o700))
		start = time.Now()
		_, err = snapshotter.Snapshot(b.Context(), g.ID(), dir)
		must(err)
		m.add("snapshot", start)
		cancel()
		m["snapshot-pause"] = append(m["snapshot-pause"], <-slowest)
		entries, err := os.ReadDir(dir)
		must(err)
		size = 0
		for _, entry := range entries {
			info, err := entry.Info()
			must(err)
			size += float64(info.Size()) / (1 << 20)
		}
		coldMemory = memory(g)
		l.Close()
		must(g.Destroy(b.Context()))

		// Several live at once, since they share the program's pages.
		const guests = 4
		var restored []engine.Guest
		for j := range guests {
			start = time.Now()
			g, err = snapshotter.Restore(b.Context(), fmt.Sprintf("warm-%d-%d", i, j), spec, engine.Snapshot{Dir: dir})
			must(err)
			restored = append(restored, g)
			m.add("restore", start)
			again := hello
			again.Restored = true
			l, err = client.Resume(b.Context(), g, client.Options{Hello: again})
			must(err)
			m.add("restore-to-link", start)
			run(l)
			m.add("restore-to-first-result", start)
			start = time.Now()
			run(l)
			m.add("second-result", start)
			l.Close()
		}
		time.Sleep(300 * time.Millisecond) // the pages come in the background
		warmMemory = 0
		for _, g := range restored {
			warmMemory += memory(g) / guests
		}
		if os.Getenv("GLOVEBOX_SMAPS") != "" {
			out, _ := exec.Command("sh", "-c", `for p in $(pgrep -f 'runsc-(sandbox|gofer)'); do echo $p $(tr '\0' ' ' < /proc/$p/cmdline | cut -c1-20) $(grep -E '^(Rss|Pss|Pss_Anon|Pss_File|Pss_Shmem|Private_Dirty):' /proc/$p/smaps_rollup | awk '{print $1 $2}'); done`).CombinedOutput()
			b.Logf("%s", out)
		}
		for _, g := range restored {
			must(g.Destroy(b.Context()))
		}
		must(os.RemoveAll(dir))
	}
	m.report(b)
	b.ReportMetric(size, "image-MiB")
	b.ReportMetric(coldMemory, "cold-PSS-MiB")
	b.ReportMetric(warmMemory, "restored-PSS-MiB")
}
