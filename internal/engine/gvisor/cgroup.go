//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// cpuPeriod is the period of CPU quotas, the kernel's default.
	cpuPeriod = 100 * time.Millisecond
	// removeTimeout bounds the wait for a cgroup to become empty: the kernel
	// counts killed processes a little longer than wait does.
	removeTimeout = 5 * time.Second
)

// cgroup holds the processes of one guest. A nil one limits nothing.
type cgroup struct {
	parent *cgroups
	id     string
	dir    *os.File // to start processes in, v2 only
}

// create makes the cgroup of a guest. After an error nothing is left. Without
// cgroups it returns nil.
func (c *cgroups) create(id string, l engine.Limits) (*cgroup, error) {
	if c == nil {
		return nil, nil
	}
	g := &cgroup{parent: c, id: id}
	for _, dir := range c.distinct() {
		if err := os.Mkdir(filepath.Join(dir, id), 0o755); err != nil {
			return nil, errors.Join(fmt.Errorf("make cgroup: %w", err), g.remove())
		}
	}
	if err := g.limit(l); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	if c.v2 {
		dir, err := os.Open(g.path("memory"))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open cgroup: %w", err), g.remove())
		}
		g.dir = dir
	}
	return g, nil
}

func (c *cgroup) path(controller string) string {
	return filepath.Join(c.parent.dirs[controller], c.id)
}

func (c *cgroup) limit(l engine.Limits) error {
	set := func(controller, file string, value any, optional bool) error {
		err := os.WriteFile(filepath.Join(c.path(controller), file), fmt.Append(nil, value), 0)
		if err != nil && !(optional && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("limit %s to %v: %w", controller, value, err)
		}
		return nil
	}
	var errs []error
	if limit := hostMemory(l); limit > 0 {
		if c.parent.v2 {
			errs = append(errs, set("memory", "memory.max", limit, false),
				set("memory", "memory.swap.max", 0, true),
				set("memory", "memory.oom.group", 1, true))
		} else {
			errs = append(errs, set("memory", "memory.limit_in_bytes", limit, false),
				set("memory", "memory.memsw.limit_in_bytes", limit, true))
		}
	}
	if l.CPUs > 0 {
		quota := max(int64(l.CPUs*float64(cpuPeriod.Microseconds())), 1000) // the kernel's least
		if c.parent.v2 {
			errs = append(errs, set("cpu", "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod.Microseconds()), false))
		} else {
			errs = append(errs, set("cpu", "cpu.cfs_period_us", cpuPeriod.Microseconds(), false),
				set("cpu", "cpu.cfs_quota_us", quota, false))
		}
	}
	if limit := hostThreads(l); limit > 0 {
		errs = append(errs, set("pids", "pids.max", limit, false))
	}
	return errors.Join(errs...)
}

// start starts cmd, a part of gVisor, in the cgroup. Where the kernel cannot start a
// process there, the process does nothing until it has been moved: what it starts
// before, the guest's memory and threads among it, would stay outside for good.
func (c *cgroup) start(s *spawner, cmd *exec.Cmd) error {
	if c == nil {
		return s.start(cmd)
	}
	if c.dir != nil {
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(c.dir.Fd())
		return s.start(cmd)
	}
	gate, open, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer gate.Close()
	defer open.Close()
	cmd.Stdin = gate
	if err := s.start(cmd); err != nil {
		return err
	}
	if err := c.add(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill() // not reaped yet, so it exists
		_ = cmd.Wait()         // its error is that it was killed
		return err
	}
	return nil
}

// awaitPlace waits until the server has moved this process, a part of gVisor, into its
// cgroup or has ended.
func awaitPlace() {
	// The server never writes: the read ends at EOF.
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// add moves a process into the cgroup.
func (c *cgroup) add(pid int) error {
	for _, dir := range c.parent.distinct() {
		err := os.WriteFile(filepath.Join(dir, c.id, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0)
		if err != nil {
			return fmt.Errorf("move process into cgroup: %w", err)
		}
	}
	return nil
}

// oomKilled reports whether the kernel has killed a process of the cgroup because
// of its memory limit.
func (c *cgroup) oomKilled() bool {
	if c == nil {
		return false
	}
	file := "memory.oom_control"
	if c.parent.v2 {
		file = "memory.events"
	}
	return c.value("memory", file, "oom_kill") > 0
}

// cpu returns the CPU time that the guest has used.
func (c *cgroup) cpu() time.Duration {
	if c.parent.v2 {
		return time.Duration(c.value("cpu", "cpu.stat", "usage_usec")) * time.Microsecond
	}
	b, err := os.ReadFile(filepath.Join(c.parent.cpuacct, c.id, "cpuacct.usage"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return time.Duration(n)
}

// pids returns the host processes of the guest.
func (c *cgroup) pids() []int {
	b, err := os.ReadFile(filepath.Join(c.path("memory"), "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, s := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(s); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// value returns the value of key in a file of lines "key value", 0 if there is
// none.
func (c *cgroup) value(controller, file, key string) int64 {
	b, err := os.ReadFile(filepath.Join(c.path(controller), file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

// remove kills what is left in the cgroup and removes it.
func (c *cgroup) remove() error {
	if c == nil {
		return nil
	}
	if c.dir != nil {
		c.dir.Close()
	}
	for _, pid := range c.pids() {
		unix.Kill(pid, unix.SIGKILL)
	}
	var errs []error
	for _, dir := range c.parent.distinct() {
		errs = append(errs, c.parent.remove(filepath.Join(dir, c.id)))
	}
	return errors.Join(errs...)
}

// rmdir removes a cgroup, waiting for it to become empty.
func rmdir(dir string) error {
	for wait, start := time.Millisecond, time.Now(); ; wait = min(2*wait, 100*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Since(start) > removeTimeout {
			return fmt.Errorf("remove cgroup %q: %w", dir, err)
		}
		time.Sleep(wait) // the kernel offers no event for this
	}
}
