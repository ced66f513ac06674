//go:build linux

package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"
)

// spent is how long something took.
type spent struct {
	wall time.Duration
	cpu  time.Duration // of the whole process
}

// during measures what do spends.
func during(do func() error) (s spent, err error) {
	begun, cpu := time.Now(), processorTime()
	err = do()
	return spent{time.Since(begun), processorTime() - cpu}, err
}

// processorTime is what the process has used so far. On a busy machine it tells more than the
// time that has passed.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memory is what the process holds after a collection.
type memory struct {
	heap, stacks int64
	goroutines   int
}

func held() memory {
	runtime.GC()
	runtime.GC() // the first one leaves what finalizers and pools keep
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()}
}

// peak returns by how much the living heap grew at most while do ran. The collector runs
// after each 2% of growth meanwhile, so that it finds the peak.
func peak(do func() error) (int64, error) {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(2))
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	live := func() int64 {
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	before, most := live(), int64(0)
	done := make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most = max(most, live())
			case <-done:
				return
			}
		}
	})
	err := do()
	close(done)
	sampler.Wait()
	return max(most-before, 0), err
}
