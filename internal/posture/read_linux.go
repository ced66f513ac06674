package posture

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Read returns the facts of a process. The caller needs the power to trace it.
func Read(p Process) (Facts, error) {
	f := Facts{PID: p.PID, Role: p.Role, Seccomp: true, NoNewPrivs: true}
	dir := filepath.Join("/proc", strconv.Itoa(p.PID))
	if err := f.read(dir); err != nil {
		return f, fmt.Errorf("inspect process %d (%s): %w", p.PID, p.Role, err)
	}
	return f, nil
}

func (f *Facts) read(dir string) error {
	tasks, err := filepath.Glob(filepath.Join(dir, "task", "*", "status"))
	if err != nil {
		return err
	}
	var held, bounding uint64
	read := 0
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		read++
		s := parseStatus(string(b))
		held |= s.held
		bounding |= s.bounding
		f.Seccomp = f.Seccomp && s.seccomp
		f.NoNewPrivs = f.NoNewPrivs && s.noNewPrivs
		f.UID, f.GID, f.Groups = s.uid, s.gid, s.groups
	}
	if read == 0 {
		return os.ErrNotExist
	}
	f.Capabilities, f.Bounding = capNames(held), capNames(bounding)
	if err := f.readNamespaces(dir); err != nil {
		return err
	}
	f.Dumpable = f.dumpable(dir)
	f.UID, f.GID = outside("uid_map", f.UID), outside("gid_map", f.GID)
	for i, g := range f.Groups {
		f.Groups[i] = outside("gid_map", g)
	}
	limits, err := os.ReadFile(filepath.Join(dir, "limits"))
	if err != nil {
		return err
	}
	f.CoreDumps = allowsCore(string(limits))
	groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return err
	}
	f.MemoryGroup = memoryGroup(string(groups))
	score, err := os.ReadFile(filepath.Join(dir, "oom_score_adj"))
	if err != nil {
		return err
	}
	if f.OOMScoreAdj, err = strconv.Atoi(strings.TrimSpace(string(score))); err != nil {
		return err
	}
	f.Descriptors, f.Suspicious, err = descriptors(dir)
	return err
}

func (f *Facts) readNamespaces(dir string) error {
	entries, err := os.ReadDir(filepath.Join(dir, "ns"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, "ns", e.Name()))
		if err != nil {
			return err
		}
		switch e.Name() {
		case "user":
			f.UserNamespace = to
		case "pid_for_children", "time_for_children":
		default:
			f.Namespaces = append(f.Namespaces, to)
		}
	}
	sort.Strings(f.Namespaces)
	b, err := os.ReadFile(filepath.Join(dir, "uid_map"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		f.UIDMap = append(f.UIDMap, strings.Join(strings.Fields(line), " "))
	}
	return nil
}

// status is what /proc/PID/status says of a thread.
type status struct {
	uid, gid            uint32
	groups              []uint32
	held, bounding      uint64
	seccomp, noNewPrivs bool
}

func parseStatus(text string) status {
	var s status
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch name {
		case "Uid", "Gid": // real, effective, saved, of files
			if len(fields) < 2 {
				continue
			}
			id := parseID(fields[1])
			if name == "Uid" {
				s.uid = id
			} else {
				s.gid = id
			}
		case "Groups":
			s.groups = make([]uint32, 0, len(fields))
			for _, g := range fields {
				s.groups = append(s.groups, parseID(g))
			}
		case "CapInh", "CapPrm", "CapEff", "CapAmb":
			s.held |= parseMask(value)
		case "CapBnd":
			s.bounding = parseMask(value)
		case "NoNewPrivs":
			s.noNewPrivs = strings.TrimSpace(value) == "1"
		case "Seccomp":
			s.seccomp = strings.TrimSpace(value) == "2"
		}
	}
	return s
}

func parseID(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return overflow
	}
	return uint32(n)
}

// parseMask parses a set of capabilities. It returns all of them for text that is none.
func parseMask(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 16, 64)
	if err != nil {
		return ^uint64(0)
	}
	return n
}

// allowsCore reports whether the limits of a process allow core dumps. The kernel
// reads a limit of 1 as none, also of dumps to a program; of 0, of dumps to files only.
func allowsCore(limits string) bool {
	for line := range strings.Lines(limits) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
			f := strings.Fields(rest)
			return len(f) < 2 || f[0] != "1" && f[0] != "0" || f[1] != "1" && f[1] != "0"
		}
	}
	return true
}

// memoryGroup returns the cgroup that limits the memory of a process.
func memoryGroup(text string) string {
	unified := ""
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[1] == "" {
			unified = parts[2]
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			if c == "memory" {
				return parts[2]
			}
		}
	}
	return unified
}

// outside translates an id of this process's user namespace into the one around it.
func outside(file string, id uint32) uint32 {
	b, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		return id
	}
	id, _ = translate(strings.Split(string(b), "\n"), id)
	return id
}
