//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// maxProcesses bounds how many host processes of a guest are looked at.
const maxProcesses = 1 << 14

// clockTick is the unit of CPU times in /proc, the same on all Linux machines.
const clockTick = 10 * time.Millisecond

// stats measures the guest's processes on the host.
func (g *guest) stats(ctx context.Context) (engine.Stats, error) {
	if err := context.Cause(ctx); err != nil {
		return engine.Stats{}, err
	}
	g.mu.Lock()
	dead := g.dead
	g.mu.Unlock()
	if dead {
		return engine.Stats{}, engine.ErrGone
	}
	var pids []int
	if g.group != nil {
		pids = g.group.pids()
	} else {
		for _, cmd := range g.processes() {
			pids = append(pids, cmd.Process.Pid)
		}
		pids = descendants(pids...)
	}
	s := engine.Stats{Processes: len(pids), MemoryBytes: allocated(memoryFile(g.sentry.Process.Pid))}
	for _, pid := range pids {
		s.MemoryBytes += pss(pid)
		if g.group == nil {
			s.CPU += cpuTime(pid)
		}
	}
	if g.group != nil {
		s.CPU = g.group.cpu()
	}
	return s, nil
}

// descendants returns the given processes and all that they have started.
func descendants(pids ...int) []int {
	for i := 0; i < len(pids) && len(pids) < maxProcesses; i++ {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i]))
		if err != nil {
			continue
		}
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if err != nil {
				continue
			}
			for _, s := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(s); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// pss returns the memory of a process in bytes, shared pages in proportion; 0 if
// it has ended. Shared memory is left out: it is the guest's memory, of which
// only part is mapped anywhere.
func pss(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	var sum uint64
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if name == "Pss_Anon" || name == "Pss_File" {
			n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			sum += n << 10
		}
	}
	return sum
}

// cpuTime returns the CPU time of a process and of its children that have ended.
func cpuTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name in brackets may contain anything.
	_, rest, ok := strings.Cut(string(b)[strings.LastIndexByte(string(b), ')')+1:], " ")
	f := strings.Fields(rest)
	if !ok || len(f) < 15 {
		return 0
	}
	var ticks int64
	for _, s := range f[11:15] { // utime stime cutime cstime
		n, _ := strconv.ParseInt(s, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}
