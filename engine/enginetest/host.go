//go:build linux

package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Host says where guests of a Linux host leave traces. Its method Held is a
// Harness.Held.
type Host struct {
	// Dirs are directories whose files count.
	Dirs []string
	// Cgroups are parts of the paths of cgroups that count.
	Cgroups []string
}

// Held lists the processes that descend from this one, zombies included, the
// mounts of its mount namespace, its descriptors and goroutines, cgroups and
// files. It makes this process the reaper of its orphaned descendants, so that
// it finds every process that is left behind.
func (h Host) Held(t testing.TB) []string {
	t.Helper()
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		t.Fatalf("become subreaper: %v", errno)
	}
	var held []string
	for _, list := range []func() ([]string, error){
		descendants, mounts, descriptors, goroutines, h.cgroups, h.files,
	} {
		more, err := list()
		if err != nil {
			t.Fatalf("list what guests hold: %v", err)
		}
		held = append(held, more...)
	}
	return held
}

// proc is a process in /proc.
type proc struct {
	pid, parent int
	name        string
	state       string
}

// descendants lists the processes below this one.
func descendants() ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]proc)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var held []string
	for todo := []int{os.Getpid()}; len(todo) > 0; todo = todo[1:] {
		for _, p := range children[todo[0]] {
			state := ""
			if p.state == "Z" {
				state = ", zombie"
			}
			held = append(held, fmt.Sprintf("process %d %s%s", p.pid, p.name, state))
			todo = append(todo, p.pid)
		}
	}
	return held, nil
}

func readProc(pid int) (proc, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return proc{}, false // it has ended
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	if open < 0 || len(fields) < 2 {
		return proc{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return proc{pid: pid, parent: parent, name: string(b[open : end+1]), state: fields[0]}, err == nil
}

// mounts lists the mount points of this mount namespace with their file systems.
func mounts() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var held []string
	for line := range strings.Lines(string(b)) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) >= 5 && len(r) >= 2 {
			held = append(held, fmt.Sprintf("mount %s of %s %s", l[4], r[0], r[1]))
		}
	}
	return held, nil
}

// descriptors lists the open files of this process by their targets, without numbers.
func descriptors() ([]string, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var held []string
	for _, name := range names {
		if name == strconv.Itoa(int(dir.Fd())) {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + name)
		if err != nil {
			continue // closed meanwhile
		}
		held = append(held, "descriptor "+target)
	}
	return held, nil
}

// goroutines lists the goroutines of this process by the function that started them.
func goroutines() ([]string, error) {
	b := make([]byte, 1<<20)
	b = b[:runtime.Stack(b, true)]
	var held []string
	for _, stack := range strings.Split(string(b), "\n\n") {
		_, by, ok := strings.Cut(stack, "created by ")
		if !ok {
			continue // the main goroutine
		}
		by, _, _ = strings.Cut(by, "\n")
		by, _, _ = strings.Cut(by, " in goroutine")
		if strings.HasPrefix(by, "testing.") {
			continue
		}
		held = append(held, "goroutine of "+by)
	}
	return held, nil
}

// cgroups lists the cgroups whose names count.
func (h Host) cgroups() ([]string, error) {
	if len(h.Cgroups) == 0 {
		return nil, nil
	}
	return walk("cgroup", "/sys/fs/cgroup", func(path string, d fs.DirEntry) bool {
		return d.IsDir() && slices.ContainsFunc(h.Cgroups, func(part string) bool { return strings.Contains(path, part) })
	})
}

// files lists the content of the directories.
func (h Host) files() ([]string, error) {
	var held []string
	for _, dir := range h.Dirs {
		more, err := walk("file", dir, func(path string, d fs.DirEntry) bool { return path != dir })
		if err != nil {
			return nil, err
		}
		held = append(held, more...)
	}
	return held, nil
}

// walk lists the files below dir for which counts returns true. It omits files that
// vanish meanwhile and the content of other file systems, whose mount points it lists.
func walk(what, dir string, counts func(path string, d fs.DirEntry) bool) ([]string, error) {
	var held []string
	dev, ok := device(dir)
	if !ok {
		return nil, nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if counts(path, d) {
			held = append(held, what+" "+path)
		}
		if d.IsDir() && what == "file" {
			if other, _ := device(path); other != dev {
				return fs.SkipDir
			}
		}
		return nil
	})
	return held, err
}

// device returns the file system that path is on.
func device(path string) (uint64, bool) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return 0, false
	}
	return uint64(st.Dev), true
}

// sameOwner reports whether two files belong to the same user and group.
func sameOwner(a, b os.FileInfo) bool {
	x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return x.Uid == y.Uid && x.Gid == y.Gid
}
