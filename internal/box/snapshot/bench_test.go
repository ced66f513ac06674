//go:build linux

package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkCreate makes as many records as live on one machine, then anew.
func BenchmarkCreate(b *testing.B) {
	s := open(b, Config{MaxBytes: 1 << 40, MinFree: 1 << 20})
	var leases []*Lease
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		c, err := s.Create(box("a"))
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		leases = append(leases, c)
		if len(leases) == 100 {
			b.StopTimer()
			for _, c := range leases {
				if err := c.Remove(); err != nil {
					b.Fatal(err)
				}
			}
			leases = leases[:0]
			b.StartTimer()
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
}

func BenchmarkRemove(b *testing.B) {
	s := open(b, Config{})
	for b.Loop() {
		b.StopTimer()
		c := create(b, s, box("a"))
		b.StartTimer()
		if err := c.Remove(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, data := range []bool{false, true} {
		b.Run(fmt.Sprintf("data=%t", data), func(b *testing.B) {
			s := open(b, Config{})
			c := create(b, s, box("a"))
			m := box("a")
			if data {
				write(b, c, m, "data")
			}
			for b.Loop() {
				m.Used = m.Used.Add(time.Second)
				if err := c.Update(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUpdateLive is of the one update that waits for the disk.
func BenchmarkUpdateLive(b *testing.B) {
	s := open(b, Config{})
	c := create(b, s, box("a"))
	m := box("a")
	write(b, c, m, "data")
	for b.Loop() {
		for _, m.Stale = range []bool{true, false} {
			if err := c.Update(m); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	s := open(b, Config{})
	id := stored(b, s, box("a"), "data")
	for b.Loop() {
		c, err := s.Acquire(id)
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Release(); err != nil {
			b.Fatal(err)
		}
	}
}

// thousand returns the directory of a store with 1,000 hibernated boxes. Their data
// are hardly any, and not waited for.
func thousand(b *testing.B) string {
	s := open(b, Config{})
	for i := range 1000 {
		c := create(b, s, box(fmt.Sprint(i)))
		e := entry{Meta: c.Meta(), Gen: 1, Bytes: 1}
		e.Written = day(3)
		if err := c.dir.Mkdir(dataName(1), 0o700); err != nil {
			b.Fatal(err)
		}
		if err := writeEntry(c.dir, savedName, &e, false); err != nil {
			b.Fatal(err)
		}
		if err := c.dir.Remove(metaName); err != nil {
			b.Fatal(err)
		}
		c.Release()
		if err := os.Chtimes(filepath.Join(s.dir, recordsDir, c.ID()), day(3), day(3)); err != nil {
			b.Fatal(err)
		}
	}
	return s.dir
}

func BenchmarkList1000(b *testing.B) {
	dir := thousand(b)
	b.Run("warm", func(b *testing.B) {
		s := open(b, Config{Dir: dir})
		list(b, s)
		for b.Loop() {
			if n := len(list(b, s)); n != 1000 {
				b.Fatal(n)
			}
		}
	})
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s := open(b, Config{Dir: dir})
			b.StartTimer()
			if n := len(list(b, s)); n != 1000 {
				b.Fatal(n)
			}
			b.StopTimer()
			s.Close()
			b.StartTimer()
		}
	})
	b.Run("sweep", func(b *testing.B) {
		s := open(b, Config{Dir: dir})
		for b.Loop() {
			sweep(b, s)
		}
	})
	b.Run("create", func(b *testing.B) {
		s := open(b, Config{Dir: dir})
		for b.Loop() {
			c, err := s.Create(box("a"))
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			c.Remove()
			b.StartTimer()
		}
	})
}

// BenchmarkWrite is of what the store adds to the engine's own writing, which here
// gives one page to the disk.
func BenchmarkWrite(b *testing.B) {
	page := func(_ context.Context, dir string) error {
		f, err := os.Create(filepath.Join(dir, "pages"))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return err
		}
		return f.Sync()
	}
	b.Run("alone", func(b *testing.B) {
		dir := b.TempDir()
		for b.Loop() {
			if err := page(b.Context(), dir); err != nil {
				b.Fatal(err)
			}
			os.Remove(filepath.Join(dir, "pages"))
		}
	})
	b.Run("stored", func(b *testing.B) {
		s := open(b, Config{MaxBytes: 1 << 40})
		c := create(b, s, box("a"))
		for b.Loop() {
			if err := c.Write(b.Context(), box("a"), 4096, page); err != nil {
				b.Fatal(err)
			}
		}
	})
}
