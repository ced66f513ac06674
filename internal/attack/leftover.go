//go:build linux

package attack

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leftoverTimeout is how long the host may take to free what a destroyed box held.
const leftoverTimeout = 5 * time.Second

// proc identifies a process, also after its number has been given to another one.
type proc struct {
	pid     int
	started string
	name    string
}

func (p proc) String() string { return fmt.Sprintf("process %d %s", p.pid, p.name) }

// alive reports whether the process still exists.
func (p proc) alive() bool {
	now, _, ok := readProc(p.pid)
	return ok && now.started == p.started
}

// readProc returns a process and its parent; ok is false if it has ended.
func readProc(pid int) (p proc, parent int, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if err != nil || open < 0 || end < open {
		return proc{}, 0, false
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 20 {
		return proc{}, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return proc{pid: pid, started: fields[19], name: string(b[open : end+1])}, parent, err == nil
}

// processes returns the processes that this one can see, by parent.
func processes() map[int][]proc {
	children := make(map[int][]proc)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return children
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, parent, ok := readProc(pid); ok {
				children[parent] = append(children[parent], p)
			}
		}
	}
	return children
}

// below returns the descendants of a process.
func below(children map[int][]proc, pid int) (list []proc) {
	for todo := []int{pid}; len(todo) > 0; todo = todo[1:] {
		for _, p := range children[todo[0]] {
			list = append(list, p)
			todo = append(todo, p.pid)
		}
	}
	return list
}

// holdings returns the processes of the box with an id: those whose command line or
// environment names it, and their descendants.
func holdings(id string) []proc {
	children := processes()
	var list []proc
	for _, p := range below(children, os.Getpid()) {
		if names(p.pid, id) {
			list = append(list, p)
			list = append(list, below(children, p.pid)...)
		}
	}
	slices.SortFunc(list, func(a, b proc) int { return a.pid - b.pid })
	return slices.Compact(list)
}

// names reports whether the command line or the environment of a process contains
// word.
func names(pid int, word string) bool {
	for _, file := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err == nil && bytes.Contains(b, []byte(word)) {
			return true
		}
	}
	return false
}

// leftovers records what a destroyed box left: processes it had before, and
// mounts, cgroups and files that carry its id.
func (t *trial) leftovers(id string, before []proc) {
	var left []string
	for end := time.Now().Add(leftoverTimeout); ; time.Sleep(20 * time.Millisecond) {
		left = left[:0]
		for _, p := range append(before, holdings(id)...) {
			if p.alive() {
				left = append(left, p.String())
			}
		}
		left = append(left, mountsNamed(id)...)
		left = append(left, pathsNamed("/sys/fs/cgroup", id, 4)...)
		left = append(left, pathsNamed(t.cfg.StateDir, id, 6)...)
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, l := range left {
		t.broke("left behind: %s", l)
	}
}

// mountsNamed lists the mounts of this mount namespace that name word.
func mountsNamed(word string) (list []string) {
	for _, m := range mounts() {
		if strings.Contains(m, word) {
			list = append(list, m)
		}
	}
	return list
}

func mounts() (list []string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			list = append(list, "mount "+f[4])
		}
	}
	return list
}

// pathsNamed lists paths below dir, at most depth levels down, whose last element
// contains word.
func pathsNamed(dir, word string, depth int) (list []string) {
	if dir == "" {
		return nil
	}
	deepest := strings.Count(filepath.Clean(dir), "/") + depth
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return fs.SkipDir
		}
		if err != nil {
			return nil // of another kind: not ours to judge
		}
		if strings.Contains(d.Name(), word) {
			list = append(list, "path "+path)
		}
		if d.IsDir() && strings.Count(path, "/") >= deepest {
			return fs.SkipDir
		}
		return nil
	})
	return list
}

// state is what this process holds on the host.
type state struct {
	processes []proc
	mounts    []string
	files     int   // open descriptors
	memory    int64 // resident bytes
}

const (
	// fileSlack and memorySlack allow for what Go and the engine keep once they have
	// been busy.
	fileSlack   = 32
	memorySlack = 192 << 20
)

// everything returns what this process holds, apart from the processes of the box
// except.
func everything(except string) state {
	var s state
	own := holdings(except)
	for _, p := range below(processes(), os.Getpid()) {
		if !slices.Contains(own, p) {
			s.processes = append(s.processes, p)
		}
	}
	s.mounts = mounts()
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		s.files = len(fds)
	}
	s.memory = statusKB("self", "VmRSS") << 10
	return s
}

// leftSince returns what this process holds beyond before.
func leftSince(before state, except string) []string {
	var left []string
	for end := time.Now().Add(leftoverTimeout); ; time.Sleep(50 * time.Millisecond) {
		left = left[:0]
		now := everything(except)
		for _, p := range now.processes {
			if !slices.Contains(before.processes, p) {
				left = append(left, p.String())
			}
		}
		for _, m := range now.mounts {
			// The engine keeps assembled roots while it is open.
			if !slices.Contains(before.mounts, m) && !strings.Contains(m, "/roots/") {
				left = append(left, m)
			}
		}
		if now.files > before.files+fileSlack {
			left = append(left, fmt.Sprintf("%d open descriptors, %d before", now.files, before.files))
		}
		if now.memory > before.memory+memorySlack {
			left = append(left, fmt.Sprintf("%d MiB of resident memory, %d before", now.memory>>20, before.memory>>20))
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// statusKB returns a field of /proc/<pid>/status in kB, 0 if it has none.
func statusKB(pid, field string) int64 {
	return procKB("/proc/"+pid+"/status", field)
}

// procKB returns the field of a file whose lines are "name: value kB".
func procKB(path, field string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return n
		}
	}
	return 0
}
