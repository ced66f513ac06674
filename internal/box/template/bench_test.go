//go:build linux && (amd64 || arm64)

package template

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// medians collects figures under names and reports their medians.
type medians map[string][]float64

func (m medians) add(name string, value float64) { m[name] = append(m[name], value) }

func (m medians) since(name string, start time.Time) {
	m.add(name+"-ms", float64(time.Since(start).Microseconds())/1000)
}

func (m medians) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		slices.Sort(m[name])
		all = append(all, fmt.Sprintf("%s %.1f", name, m[name][len(m[name])/2]))
	}
	return strings.Join(all, "  ")
}

// BenchmarkPreload measures what each library costs in a template and what it saves in the
// boxes: the time to the first result, to the libraries imported and to a figure, beside an
// import on the host. All templates are measured in turn, so that what else the machine does
// falls on each.
func BenchmarkPreload(b *testing.B) {
	l := open(b)
	s := l.another(b, nil)
	sets := []string{"", "numpy", "pandas", "pandas matplotlib", "pandas matplotlib.pyplot"}
	figures, host := make(map[string]medians), make(medians)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		if err := exec.Command(l.maker.Interpreters["python"], "-c", "import pandas").Run(); err != nil {
			b.Skip(err)
		}
		host.since("import-pandas", start)
		for _, set := range sets {
			if figures[set] == nil {
				figures[set] = make(medians)
			}
			benchPreload(b, s, strings.Fields(set), figures[set])
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of unlike parts says nothing
	fmt.Printf("%-26s %s\n", "host", host)
	for _, set := range sets {
		fmt.Printf("%-26s %s\n", set, figures[set])
	}
}

func benchPreload(b *testing.B, s *Store, preload []string, m medians) {
	w := python()
	w.Limits.MemoryMB = 1024
	w.Preload = preload
	start := time.Now()
	t := mustBuild(b, s, w)
	m.since("build", start)
	m.add("MiB", float64(t.Bytes)/(1<<20))
	for i := range 3 {
		start = time.Now()
		box, err := s.Restore(b.Context(), t, fmt.Sprintf("bench-%d", i))
		if err != nil {
			b.Fatal(err)
		}
		m.since("restored", start)
		run(b, box, "python", "1")
		m.since("result", start)
		time.Sleep(300 * time.Millisecond) // the pages come in the background
		if stats, err := box.Stats(b.Context()); err == nil {
			m.add("PSS-MiB", float64(stats.MemoryBytes)/(1<<20))
		}
		for _, x := range [][2]string{{"pandas", "import pandas as pd"}, {"pyplot", "import matplotlib.pyplot as plt"}} {
			start = time.Now()
			run(b, box, "python", x[1])
			m.since(x[0], start)
		}
		for _, what := range []string{"figure", "again"} {
			start = time.Now()
			if out := run(b, box, "python", "pd.DataFrame({'a': [1, 2]}).plot()"); out.figures != 1 {
				b.Fatalf("%d figures", out.figures)
			}
			m.since(what, start)
		}
		box.Close(context.Background())
	}
	if err := s.Remove(t.Key); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkFind measures what every box pays that is made from a template, and
// what one of them pays every few seconds.
func BenchmarkFind(b *testing.B) {
	s := open(b).store
	w := pandas(b)
	for name, find := range map[string]func() bool{
		"known":  func() bool { _, ok := s.Find(w); return ok },
		"looked": func() bool { in, err := s.inputs(w); return err == nil && in.key() != "" },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if !find() {
					b.Fatal("not found")
				}
			}
		})
	}
}
