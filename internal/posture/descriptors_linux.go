package posture

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// descriptors counts the open descriptors of a process by kind and names those that lead
// to what can be changed on the host.
func descriptors(dir string) (map[Kind]int, []string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, nil, err
	}
	count := make(map[Kind]int)
	var suspicious []string
	for _, e := range entries {
		link := filepath.Join(dir, "fd", e.Name())
		target, err := os.Readlink(link)
		if err != nil {
			continue // closed since
		}
		info, err := os.Stat(link)
		var mode os.FileMode
		if err == nil {
			mode = info.Mode()
		}
		flags, _ := os.ReadFile(filepath.Join(dir, "fdinfo", e.Name()))
		kind := kindOf(target, mode, writable(string(flags)))
		count[kind]++
		if kind == KindWritable || kind == KindOther || kind == KindDevice && target != os.DevNull {
			suspicious = append(suspicious, target)
		}
	}
	return count, suspicious, nil
}

// kindOf returns the kind of a descriptor by what the kernel calls it and what it is.
func kindOf(target string, mode os.FileMode, writable bool) Kind {
	switch {
	case strings.HasPrefix(target, "pipe:"):
		return KindPipe
	case strings.HasPrefix(target, "socket:"):
		return KindSocket
	case strings.HasPrefix(target, "anon_inode:"):
		return KindEvent
	case strings.HasPrefix(target, "/memfd:"):
		return KindMemory
	case mode&os.ModeSymlink != 0:
		return KindLink
	case mode&os.ModeDevice != 0:
		return KindDevice
	case mode.IsDir():
		return KindDirectory
	case mode.IsRegular() && !writable:
		return KindRead
	case mode.IsRegular() && strings.HasSuffix(target, " (deleted)"):
		return KindScratch
	case mode.IsRegular():
		return KindWritable
	}
	return KindOther
}

// writable reports whether a descriptor with this fdinfo can be written to.
func writable(fdinfo string) bool {
	for line := range strings.Lines(fdinfo) {
		value, ok := strings.CutPrefix(line, "flags:")
		if !ok {
			continue
		}
		flags, err := strconv.ParseInt(strings.TrimSpace(value), 8, 64)
		return err != nil || flags&syscall.O_ACCMODE != syscall.O_RDONLY
	}
	return true
}

// dumpable reports whether others of its user may trace a process, from the owner of its
// files in /proc: if they may not, that is the root of its user namespace. For a process
// of this root, it shows nothing.
func (f *Facts) dumpable(dir string) string {
	info, err := os.Stat(filepath.Join(dir, "environ"))
	if err != nil {
		return "unknown"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || slices.Contains(f.UIDMap, fmt.Sprintf("0 %d 1", f.UID)) || f.UID == 0:
		return "unknown"
	case st.Uid == f.UID:
		return "yes"
	}
	return "no"
}
