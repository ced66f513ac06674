//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// BenchmarkBoot measures from Create to the agent's first answer, and the memory
// of a guest that then rests.
func BenchmarkBoot(b *testing.B) {
	e := open(b)
	spec := newSpec(b)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 512, DiskMB: 1024, PIDs: 256}
	var took, gone []time.Duration
	var memory uint64
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		g := create(b, e, fmt.Sprintf("boot-%d", i), spec)
		g.ask(b, "echo hello")
		took = append(took, time.Since(start))
		b.StopTimer()
		time.Sleep(50 * time.Millisecond)
		if s, err := e.Stats(b.Context(), g.ID()); err == nil {
			memory = max(memory, s.MemoryBytes)
		}
		start = time.Now()
		g.Destroy(b.Context())
		gone = append(gone, time.Since(start))
		b.StartTimer()
	}
	slices.Sort(took)
	slices.Sort(gone)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
	b.ReportMetric(float64(gone[len(gone)/2].Microseconds())/1000, "destroy-p50-ms")
	b.ReportMetric(float64(memory)/(1<<20), "MiB/guest")
}

// BenchmarkRoundTrip measures a line to the agent and back.
func BenchmarkRoundTrip(b *testing.B) {
	e := open(b)
	g := create(b, e, "echo", newSpec(b))
	g.ask(b, "echo warm")
	for b.Loop() {
		g.ask(b, "echo x")
	}
}

// BenchmarkSumFile measures the check of a snapshot's files, from the page cache.
func BenchmarkSumFile(b *testing.B) {
	const size = 64 << 20
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	for b.Loop() {
		if _, err := sumFile(b.Context(), f, size); err != nil {
			b.Fatal(err)
		}
	}
}
