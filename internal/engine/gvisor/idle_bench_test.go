//go:build linux && (amd64 || arm64)

package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// setting returns a number from the environment.
func setting(b *testing.B, name string, otherwise int) int {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return n
}

// BenchmarkIdle measures what boxes with a Python kernel take that do nothing,
// restored from one snapshot: memory, and processor time. The environment says how
// many (GLOVEBOX_BENCH_BOXES), how long they settle and how long they are looked
// at (GLOVEBOX_BENCH_SETTLE, GLOVEBOX_BENCH_SECONDS).
func BenchmarkIdle(b *testing.B) {
	for _, preload := range []string{"plain", "pandas"} {
		for _, paused := range []bool{false, true} {
			name := preload + "/running"
			if paused {
				name = preload + "/paused"
			}
			b.Run(name, func(b *testing.B) { benchIdle(b, preload, paused) })
		}
	}
}

func benchIdle(b *testing.B, preload string, paused bool) {
	boxes := setting(b, "GLOVEBOX_BENCH_BOXES", 4)
	settle := time.Duration(setting(b, "GLOVEBOX_BENCH_SETTLE", 5)) * time.Second
	window := time.Duration(setting(b, "GLOVEBOX_BENCH_SECONDS", 10)) * time.Second
	h := harness(b, toolchain(b))
	e := h.Open(b)
	defer e.Close()
	spec := h.Spec(b)
	spec.Limits = engine.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024, PIDs: 256}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	hello := protocol.Hello{
		Home: "/home/user", UID: 1000, GID: 1000, PIDs: 256, MemoryMB: 512,
		Interpreters: map[string]string{"python": "/usr/bin/python3"},
	}
	run := func(l *client.Conn) {
		b.Helper()
		res, err := l.Run(b.Context(), protocol.Run{Kernel: "k", Language: "python"}, []byte("print(1)"), noSink{})
		if err != nil || !res.OK {
			b.Fatalf("%+v, %v", res, err)
		}
	}
	g, err := e.Create(b.Context(), "template", spec)
	must(err)
	l, err := client.Open(b.Context(), g, client.Options{Hello: hello})
	must(err)
	var modules []string
	if preload != "plain" {
		modules = []string{preload}
	}
	_, err = l.Kernel(b.Context(), protocol.Kernel{Kernel: "k", Language: "python", Action: "start", Preload: modules})
	must(err)
	run(l)
	dir := b.TempDir()
	snapshotter, _ := engine.As[engine.Snapshotter](e)
	pauser, _ := engine.As[engine.Pauser](e)
	statser, _ := engine.As[engine.Statser](e)
	_, err = snapshotter.Snapshot(b.Context(), g.ID(), dir)
	must(err)
	l.Close()
	must(g.Destroy(b.Context()))

	hello.Restored = true
	var guests []engine.Guest
	for i := range boxes {
		g, err := snapshotter.Restore(b.Context(), fmt.Sprintf("idle-%d", i), spec, engine.Snapshot{Dir: dir})
		must(err)
		guests = append(guests, g)
		l, err := client.Resume(b.Context(), g, client.Options{Hello: hello})
		must(err)
		defer l.Close()
		run(l)
		if paused {
			must(pauser.Pause(b.Context(), g.ID()))
		}
	}
	time.Sleep(settle)
	b.ResetTimer()
	for b.Loop() {
		before := look()
		time.Sleep(window)
		after := look()
		for what, n := range after.kib {
			b.ReportMetric(float64(n)/1024/float64(boxes), what+"-MiB")
		}
		for what, t := range after.cpu {
			b.ReportMetric(float64((t-before.cpu[what]).Microseconds())/float64(boxes)/window.Seconds(), what+"-us/s")
		}
		for what, n := range after.switches {
			b.ReportMetric(float64(n-before.switches[what])/float64(boxes)/window.Seconds(), what+"-switches/s")
		}
		var stats float64
		for _, g := range guests {
			s, err := statser.Stats(b.Context(), g.ID())
			must(err)
			stats += float64(s.MemoryBytes)
		}
		b.ReportMetric(stats/float64(boxes)/(1<<20), "stats-MiB")
	}
	b.ReportMetric(0, "ns/op")
}

// looked is what the processes of all guests have, by part.
type looked struct {
	kib      map[string]int64
	cpu      map[string]time.Duration
	switches map[string]int64
}

// look looks at all descendants of this process.
func look() looked {
	l := looked{make(map[string]int64), make(map[string]time.Duration), make(map[string]int64)}
	pids := []int{os.Getpid()}
	for i := 0; i < len(pids); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pids[i]))
		part := "stub"
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[i]))
		switch name, _, _ := strings.Cut(string(cmdline), "\x00"); name {
		case "runsc-sandbox":
			part = "sentry"
		case "runsc-gofer":
			part = "gofer"
		}
		for _, task := range tasks {
			children, _ := os.ReadFile(task + "/children")
			for _, s := range strings.Fields(string(children)) {
				if pid, err := strconv.Atoi(s); err == nil {
					pids = append(pids, pid)
				}
			}
			if i == 0 {
				continue
			}
			// Nanoseconds on a processor come first.
			stat, _ := os.ReadFile(task + "/schedstat")
			if f := strings.Fields(string(stat)); len(f) == 3 {
				n, _ := strconv.ParseInt(f[0], 10, 64)
				l.cpu[part] += time.Duration(n)
				l.cpu["all"] += time.Duration(n)
			}
			status, _ := os.ReadFile(task + "/status")
			for line := range strings.Lines(string(status)) {
				if _, value, ok := strings.Cut(line, "ctxt_switches:"); ok {
					n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
					l.switches[part] += n
				}
			}
		}
		if i == 0 {
			continue
		}
		rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pids[i]))
		for line := range strings.Lines(string(rollup)) {
			name, value, _ := strings.Cut(line, ":")
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			switch name {
			case "Pss_Anon", "Pss_File", "Pss_Shmem":
				l.kib[part+"-"+strings.ToLower(strings.TrimPrefix(name, "Pss_"))] += n
				l.kib["pss"] += n
			}
		}
	}
	return l
}
