//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memoryFile returns the path of a sentry's descriptor of the file that holds its
// guest's memory, "" if there is none.
func memoryFile(sentry int) string {
	dir := fmt.Sprintf("/proc/%d/fd", sentry)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "" // the sentry has ended
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "/memfd:runsc-memory") {
			return path
		}
	}
	return ""
}

// allocated returns how many bytes of a file are allocated.
func allocated(path string) uint64 {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}

// cpuClock returns the processor time of a process; 0 if it has ended or pid is 0.
func cpuClock(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	const perProcess, scheduler = 0, 2 // the clock's kind, in the lowest bits of its id
	var ts unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|perProcess|scheduler), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// processStatus is what the meter reads of /proc/PID/status, sizes in bytes.
type processStatus struct {
	size    int64 // of the address space, as far as it is mapped
	private int64 // resident and not from a file or shared memory
	tables  int64 // page tables
	threads int64
}

// readStatus reads the status of a process. It is zero if the process has ended or pid
// is 0.
func readStatus(pid int) (s processStatus) {
	if pid == 0 {
		return s
	}
	for line := range bytes.Lines(readProc(fmt.Sprintf("/proc/%d/status", pid))) {
		name, value, _ := bytes.Cut(line, []byte{':'})
		var to *int64
		unit := int64(1 << 10)
		switch string(name) {
		case "VmSize":
			to = &s.size
		case "RssAnon":
			to = &s.private
		case "VmPTE":
			to = &s.tables
		case "Threads":
			to, unit = &s.threads, 1
		default:
			continue
		}
		n, _ := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
		*to = n * unit
	}
	return s
}

// privateMemory returns the resident memory of a process that is not from a file or
// shared memory, in bytes; 0 if the process has ended or pid is 0.
func privateMemory(pid int) int64 {
	if pid == 0 {
		return 0
	}
	// size resident shared ..., in pages.
	f := bytes.Fields(readProc(fmt.Sprintf("/proc/%d/statm", pid)))
	if len(f) < 3 {
		return 0
	}
	resident, _ := strconv.ParseInt(string(f[1]), 10, 64)
	shared, _ := strconv.ParseInt(string(f[2]), 10, 64)
	return (resident - shared) * int64(os.Getpagesize())
}

// openFiles returns the number of descriptors of a process; 0 if it has ended or pid is
// 0.
func openFiles(pid int) int64 {
	if pid == 0 {
		return 0
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	info, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	if n := info.Size(); n > 0 {
		return n
	}
	// Linux before 6.2 does not report the number.
	entries, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer entries.Close()
	names, _ := entries.Readdirnames(-1)
	return int64(len(names))
}

func childrenFile(pid, tid int) string {
	return fmt.Sprintf("/proc/%d/task/%d/children", pid, tid)
}

// children returns the process ids in a file of children.
func children(file string) []int {
	var pids []int
	for field := range bytes.FieldsSeq(readProc(file)) {
		if pid, err := strconv.Atoi(string(field)); err == nil && len(pids) < maxProcesses {
			pids = append(pids, pid)
		}
	}
	return pids
}

// maxMappings returns how many mappings a process may have.
func maxMappings() int64 {
	n, err := strconv.ParseInt(readSysctl("vm/max_map_count"), 10, 64)
	if err != nil {
		return 65530 // Linux's default
	}
	return n
}

// countLines returns the number of lines of a file.
func countLines(path string) (n int) {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		k, err := f.Read(buf)
		n += bytes.Count(buf[:k], []byte{'\n'})
		if err != nil {
			return n
		}
	}
}

// readProc returns the content of a file of /proc, nil if it cannot be read. os.ReadFile
// makes twice as many system calls.
func readProc(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 2048)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return b
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}
