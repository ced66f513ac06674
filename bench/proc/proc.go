//go:build linux

// Package proc reads the memory and processor time of process trees from Linux's /proc.
// Processes that end meanwhile count as zero.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Tree returns root and all its descendants.
func Tree(root int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], child)
	}
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

// Process identifies a process, and not a later one with the same id.
type Process struct {
	PID   int
	start string // in ticks since the machine's start
}

// Identify returns the identities of the processes that still run.
func Identify(pids []int) []Process {
	var all []Process
	for _, pid := range pids {
		if start := startOf(pid); start != "" {
			all = append(all, Process{pid, start})
		}
	}
	return all
}

// Alive reports whether the process exists, including as a zombie.
func (p Process) Alive() bool { return startOf(p.PID) == p.start }

// startOf returns the start time of a process, or "" if there is none.
func startOf(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	const start = 19 // starttime, counted from the state
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) <= start {
		return ""
	}
	return fields[start]
}

// Memory is the memory of processes in bytes.
type Memory struct {
	PSS    int64 // proportional set size: a page that n processes map counts a nth in each
	Shared int64 // of it anonymous shared memory: what guests have as theirs
	// Whole is PSS with anonymous shared memory counted as allocated instead of as mapped:
	// pages of a restored guest that no process has touched yet are in no PSS, but occupy
	// memory.
	Whole int64
}

// MemoryOf adds up the memory of processes. It returns an error if one cannot be read,
// since the sum would be too small.
func MemoryOf(pids []int) (Memory, error) {
	var m Memory
	pids, err := distinct(pids)
	if err != nil {
		return Memory{}, err
	}
	files := make(map[inode]int64) // allocated
	for _, pid := range pids {
		pss, err := sum(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:", nil)
		if gone(err) {
			continue
		}
		if err != nil {
			return Memory{}, fmt.Errorf("weigh process %d: %w", pid, err)
		}
		m.PSS += pss
		memfds(pid, files)
		mapped, err := sum(fmt.Sprintf("/proc/%d/smaps", pid), "Pss:", func(name string) bool { return strings.HasPrefix(name, "/memfd:") })
		if err != nil && !gone(err) {
			return Memory{}, fmt.Errorf("weigh process %d: %w", pid, err)
		}
		m.Shared += mapped
		m.Whole += pss - mapped
	}
	for _, size := range files {
		m.Whole += size
	}
	return m, nil
}

// distinct drops processes that share the address space of an earlier one, as gVisor's
// stubs of one guest process do: the kernel reports the same pages undivided for each.
func distinct(pids []int) ([]int, error) {
	var kept []int
next:
	for _, pid := range pids {
		for _, other := range kept {
			const vm = 1 // KCMP_VM
			order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), vm, 0, 0, 0)
			switch {
			case errno == unix.ESRCH && syscall.Kill(pid, 0) != nil:
				continue next
			case errno == unix.ESRCH: // the other one ended
			case errno != 0:
				return nil, fmt.Errorf("tell whether processes %d and %d share memory: %w", pid, other, errno)
			case order == 0:
				continue next
			}
		}
		kept = append(kept, pid)
	}
	return kept, nil
}

// sum adds up a field in bytes over the mappings with a wanted name.
func sum(path, field string, want func(name string) bool) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var total int64
	wanted := want == nil
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") { // the head of a mapping
			if want != nil {
				wanted = len(fields) > 5 && want(fields[5])
			}
			continue
		}
		if wanted && fields[0] == field && len(fields) > 1 {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", path, err)
			}
			total += kb << 10
		}
	}
	return total, nil
}

type inode struct{ dev, ino uint64 }

// memfds records the allocated size of anonymous files that a process has open or mapped.
// Each file counts once.
func memfds(pid int, files map[inode]int64) {
	for _, dir := range []string{"fd", "map_files"} {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/%s/*", pid, dir))
		if err != nil {
			continue
		}
		for _, link := range links {
			if target, err := os.Readlink(link); err != nil || !strings.HasPrefix(target, "/memfd:") {
				continue
			}
			if info, err := os.Stat(link); err == nil {
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					files[inode{uint64(st.Dev), st.Ino}] = st.Blocks * 512
				}
			}
		}
	}
}

// Usage is the processor time by thread.
type Usage map[thread]time.Duration

type thread struct{ pid, tid int }

// UsageOf reads the processor time of all threads of processes, in nanoseconds where the
// kernel counts them.
func UsageOf(pids []int) (Usage, error) {
	usage := make(Usage)
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				return nil, err
			}
			used, err := threadTime(fmt.Sprintf("/proc/%d/task/%d", pid, tid))
			if gone(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			usage[thread{pid, tid}] = used
		}
	}
	return usage, nil
}

// threadTime prefers schedstat, in nanoseconds, over stat, in ticks of 10 ms, which misses
// threads that run for microseconds.
func threadTime(dir string) (time.Duration, error) {
	if data, err := os.ReadFile(dir + "/schedstat"); err == nil {
		if fields := strings.Fields(string(data)); len(fields) == 3 {
			ns, err := strconv.ParseInt(fields[0], 10, 64)
			return time.Duration(ns), err
		}
	}
	data, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("read %s/stat: %d fields", dir, len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s/stat: %w", dir, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// Since returns the processor time used since before, without threads that started and
// ended in between.
func (u Usage) Since(before Usage) time.Duration {
	var total time.Duration
	for t, used := range u {
		total += max(0, used-before[t])
	}
	return total
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
