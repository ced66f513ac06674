package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// userGroup is the control group, in the guest's kernel, of all user processes.
type userGroup struct {
	path string
	dir  *os.File // version 2: for CLONE_INTO_CGROUP
	// tasks moves threads to a version 1 group. A thread's children start in its group,
	// so only the thread that starts them has to join.
	tasks string

	pids   bool // limits the number of processes and threads
	memory bool // accounts memory, and limits it where the kernel can
}

// newUserGroup creates the group and sets its limits; zero means none. Only the first
// process of a guest may call it: it moves itself.
func newUserGroup(pids int, memory int64) (*userGroup, error) {
	g, err := newGroupV2("/sys/fs/cgroup", pids, memory)
	if err == nil {
		return g, nil
	}
	errs := []error{err}
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		g, err := newGroupV1(root, pids)
		if err == nil {
			return g, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func newGroupV2(root string, pids int, memory int64) (*userGroup, error) {
	controllers, err := readBounded(filepath.Join(root, "cgroup.controllers"), 4096)
	if err != nil {
		return nil, err
	}
	// A group has either members or limits for subgroups.
	agent := filepath.Join(root, "glovebox-agent")
	if err := makeGroup(agent); err != nil {
		return nil, err
	}
	if err := control(agent, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return nil, err
	}
	g := &userGroup{path: filepath.Join(root, "glovebox-user")}
	for _, c := range bytes.Fields(controllers) {
		switch string(c) {
		case "pids":
			g.pids = control(root, "cgroup.subtree_control", "+pids") == nil
		case "memory":
			g.memory = control(root, "cgroup.subtree_control", "+memory") == nil
		}
	}
	if err := makeGroup(g.path); err != nil {
		return nil, err
	}
	if pids > 0 && g.pids {
		g.pids = control(g.path, "pids.max", strconv.Itoa(pids)) == nil
	}
	if memory > 0 && g.memory {
		g.memory = control(g.path, "memory.max", strconv.FormatInt(memory, 10)) == nil
	}
	if g.dir, err = os.Open(g.path); err != nil {
		return nil, err
	}
	return g, nil
}

func newGroupV1(root string, pids int) (*userGroup, error) {
	g := &userGroup{path: filepath.Join(root, "glovebox-user"), pids: true}
	if _, err := os.Stat(filepath.Join(root, "tasks")); err != nil {
		return nil, err
	}
	if err := makeGroup(g.path); err != nil {
		return nil, err
	}
	if pids > 0 {
		if err := control(g.path, "pids.max", strconv.Itoa(pids)); err != nil {
			return nil, err
		}
	}
	g.tasks = filepath.Join(g.path, "tasks")
	return g, nil
}

func makeGroup(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// control writes a group's control file.
func control(group, file, value string) error {
	f, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// attr makes a child start in the group, where the kernel supports that.
func (g *userGroup) attr(a *syscall.SysProcAttr) {
	if g != nil && g.dir != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(g.dir.Fd())
	}
}

// join adds the calling thread to the group, where children start in their parent's
// group.
func (g *userGroup) join() error {
	if g == nil || g.tasks == "" {
		return nil
	}
	if err := os.WriteFile(g.tasks, []byte(strconv.Itoa(unix.Gettid())), 0); err != nil {
		return fmt.Errorf("join the group of the user's processes: %w", err)
	}
	return nil
}

// used returns the memory of the user's processes, -1 if it is not accounted.
func (g *userGroup) used() int64 {
	if g == nil || !g.memory {
		return -1
	}
	b, err := readBounded(filepath.Join(g.path, "memory.current"), 64)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
