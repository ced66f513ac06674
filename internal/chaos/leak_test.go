//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// held is what this process holds on the host.
type held struct {
	processes  []string
	mounts     []string
	files      int
	goroutines int
}

// holdings returns what this process holds.
func holdings() held {
	h := held{processes: parts(), files: len(descriptors()), goroutines: runtime.NumGoroutine()}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return h
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			h.mounts = append(h.mounts, f[4])
		}
	}
	return h
}

// parts returns the processes of guests.
func parts() (list []string) {
	for _, pid := range children() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		if f := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"); strings.HasPrefix(f[0], "runsc-") {
			list = append(list, fmt.Sprintf("%s %d of %s", f[0], pid, f[len(f)-1]))
		}
	}
	return list
}

// since returns what is held beyond before.
func (h held) since(before held) (left []string) {
	for _, p := range h.processes {
		if !slices.Contains(before.processes, p) {
			left = append(left, "process "+p)
		}
	}
	if len(h.mounts) > len(before.mounts) {
		for _, m := range h.mounts {
			if !slices.Contains(before.mounts, m) {
				left = append(left, "mount "+m)
			}
		}
		if left == nil {
			left = append(left, fmt.Sprintf("%d mounts, %d before", len(h.mounts), len(before.mounts)))
		}
	}
	if h.files > before.files {
		left = append(left, fmt.Sprintf("%d descriptors, %d before", h.files, before.files))
	}
	if h.goroutines > before.goroutines {
		left = append(left, fmt.Sprintf("%d goroutines, %d before", h.goroutines, before.goroutines))
	}
	return left
}

// checkGuests reports guests that belong to no box, while the manager is open.
func (r *run) checkGuests() {
	var live, spare int
	enough := func() bool {
		live, spare = 0, 0
		st := r.manager.Stats()
		for state, n := range st.States {
			if state != box.StateHibernated {
				spare += n
			}
		}
		spare += st.Starting
		for _, p := range r.manager.Pool() {
			spare += p.Wanted
		}
		for _, p := range parts() {
			if strings.HasPrefix(p, "runsc-sandbox") {
				live++
			}
		}
		return live <= spare
	}
	if !polltest.Soon(r.patience, enough) {
		r.violate("leak", nil, "%d guests live, for %d boxes in memory and in the pool: %v", live, spare, parts())
	}
}

// checkHoldings reports what is left of a round that is over.
func (r *run) checkHoldings(before held) {
	var left []string
	if !polltest.Soon(r.patience, func() bool {
		left = holdings().since(before)
		for _, dir := range ownCgroups() {
			left = append(left, "cgroup "+dir)
		}
		left = append(left, r.strayFiles()...)
		return len(left) == 0
	}) {
		buf := make([]byte, 1<<20)
		r.violate("leak", nil, "after the round: %v\n%s", strings.Join(left, "; "), buf[:runtime.Stack(buf, true)])
	}
}

// strayFiles returns the files in the state directory that belong to nothing.
func (r *run) strayFiles() (left []string) {
	for _, pattern := range []string{"gvisor/*", "scratch/*", "ballast-*", "snapshots/trash/*", "snapshots/records/*/*.new"} {
		found, err := filepath.Glob(filepath.Join(r.dir, pattern))
		if err == nil {
			left = append(left, found...)
		}
	}
	left = slices.DeleteFunc(left, func(path string) bool {
		// The replaced description stays, to be overwritten next.
		return filepath.Base(path) == "meta.json.new"
	})
	records, err := filepath.Glob(filepath.Join(r.dir, "snapshots/records/*"))
	if err != nil {
		return left
	}
	for _, record := range records {
		data, err := filepath.Glob(filepath.Join(record, "data-*"))
		if err == nil && len(data) > 1 {
			left = append(left, data[1:]...)
		}
	}
	return left
}
