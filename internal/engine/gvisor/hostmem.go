//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel objects of the host that a guest costs, in bytes. /proc shows the size of page
// tables only. These are estimates for 64-bit Linux, rounded up.
const (
	taskMemory    = 32 << 10 // a thread: its kernel stack, task_struct, signal handlers
	fileMemory    = 1 << 10  // an open file, with the inode and the name that it pins
	mappingMemory = 256      // a mapping: vm_area_struct and its place in the tree
	// tableReach is how many bytes of addresses one byte of page tables maps.
	tableReach = 512
)

const (
	// countAfter is the processor time of a sentry after which kernel memory is counted
	// again: only a sentry creates mappings, threads and descriptors. While programs
	// compute, its clock alone takes this much about twice a second.
	countAfter = 500 * time.Microsecond
	// countShare and mapShare bound what counting takes of one processor: the next count
	// follows after this many times the duration of the last one. Mappings take longer
	// to count, but are made slowly: some 50 MB a second on one processor.
	countShare = 20
	mapShare   = 50
	// searchEvery is the interval in which all threads of a sentry are searched for
	// children. In between, only those that had children are read.
	searchEvery = time.Second
)

// meter measures the memory that a guest takes on the host, where no cgroup does it. Its
// methods are for one goroutine.
//
// The kernel's memory for all processes of a guest takes up to a millisecond to count,
// too long for idle guests. It is counted when it can have grown: after the sentry has
// used processor time, or while programs can fill enough page tables without the sentry.
type meter struct {
	sentry int      // process id
	served []int    // process ids of sentry and gofers
	file   *os.File // the guest's memory; nil if unknown

	busy    time.Duration // processor time of sentry and gofers at the last reading
	private int64         // memory of sentry and gofers at the last reading

	kernel      int64         // page tables, threads and descriptors at the last count
	growth      int64         // page tables that programs can fill without the sentry
	maxMappings int64         // upper bound of the memory of mappings
	counted     time.Time     // end of the last count; zero: none yet
	countTook   time.Duration // duration of the last count
	countBusy   time.Duration // processor time at the last count

	mappings int64         // memory of mappings; 0 where maxMappings did not matter
	mapped   time.Time     // end of the last count of mappings
	mapTook  time.Duration // duration of the last count of mappings

	stubs    []int     // process ids of the guest's address spaces at the last count
	parents  []string  // files of the sentry's threads that list its children
	searched time.Time // time of the last search for them
}

// newMeter returns a meter, which the caller closes.
func newMeter(sentry int, gofers ...int) *meter {
	// Without O_PATH the descriptor could be used to read the memory. An error means that
	// the sentry has ended.
	file, _ := os.OpenFile(memoryFile(sentry), unix.O_PATH|unix.O_CLOEXEC, 0)
	return &meter{sentry: sentry, served: append([]int{sentry}, gofers...), file: file}
}

// close frees the guest's memory, which the meter holds. It may be called at any time.
func (m *meter) close() { m.file.Close() }

// used returns the guest's memory on the host in bytes, and the host kernel's part of
// it. Where it may exceed limit, it is as of now.
func (m *meter) used(limit int64) (total, kernel int64) {
	var busy time.Duration
	for _, pid := range m.served {
		busy += cpuClock(pid)
	}
	if busy != m.busy || m.counted.IsZero() {
		m.busy, m.private = busy, 0
		for _, pid := range m.served {
			m.private += privateMemory(pid)
		}
	}
	user := m.private
	if info, err := m.file.Stat(); err == nil {
		user += info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	moved := busy-m.countBusy >= countAfter || user+m.kernel+m.mappings+m.growth > limit
	if m.counted.IsZero() || moved && time.Since(m.counted) >= countShare*m.countTook {
		m.countBusy = busy
		m.count()
		if user+m.kernel+m.maxMappings <= limit {
			m.mappings = 0
		} else if time.Since(m.mapped) >= mapShare*m.mapTook {
			m.countMappings()
		}
	}
	kernel = m.kernel + m.mappings
	return user + kernel, kernel
}

// count counts the kernel's memory but for mappings.
func (m *meter) count() {
	start := time.Now()
	m.kernel, m.growth, m.maxMappings = 0, 0, 0
	for _, pid := range m.served {
		s := readStatus(pid)
		m.kernel += s.tables + s.threads*taskMemory + openFiles(pid)*fileMemory
	}
	m.findStubs()
	most := maxMappings()
	for _, pid := range m.stubs {
		s := readStatus(pid)
		// The threads of a stub are processes that share its memory.
		threads := s.threads + int64(len(children(childrenFile(pid, pid))))
		m.kernel += s.private + s.tables + threads*taskMemory
		m.growth += max(0, s.size/tableReach-s.tables)
		m.maxMappings += min(s.size/int64(os.Getpagesize()), most) * mappingMemory
	}
	m.counted = time.Now()
	m.countTook = m.counted.Sub(start)
}

// countMappings counts the memory of mappings.
func (m *meter) countMappings() {
	start := time.Now()
	n := 0
	for _, pid := range append([]int{m.sentry}, m.stubs...) {
		n += countLines(fmt.Sprintf("/proc/%d/maps", pid))
	}
	m.mappings = int64(n) * mappingMemory
	m.mapped = time.Now()
	m.mapTook = m.mapped.Sub(start)
}

// findStubs finds the processes that hold the guest's address spaces, the children of
// the sentry. Nearly always all of them are children of the thread that started the
// first.
func (m *meter) findStubs() {
	m.stubs = m.stubs[:0]
	if time.Since(m.searched) < searchEvery {
		for _, file := range m.parents {
			m.stubs = append(m.stubs, children(file)...)
		}
		if len(m.stubs) > 0 {
			return
		}
	}
	m.parents, m.searched = m.parents[:0], time.Now()
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", m.sentry))
	if err != nil {
		return // the sentry has ended
	}
	defer dir.Close()
	threads, _ := dir.Readdirnames(-1)
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread)
		if err != nil {
			continue
		}
		file := childrenFile(m.sentry, tid)
		if pids := children(file); len(pids) > 0 {
			m.parents = append(m.parents, file)
			m.stubs = append(m.stubs, pids...)
		}
	}
}
