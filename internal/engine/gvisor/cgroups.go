//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// groupPrefix begins the names of instances' cgroups; the instance's name follows,
// which begins with its process id.
const groupPrefix = "glovebox-"

// controllers are those that guests are limited by.
var controllers = []string{"memory", "cpu", "pids"}

// cgroups makes a cgroup per guest below one of its own.
type cgroups struct {
	v2   bool
	dirs map[string]string // controller -> directory of the instance; all the same in v2
	// cpuacct is the directory that counts CPU time in v1, where it need not be
	// that of cpu.
	cpuacct string

	mu   sync.Mutex
	left []string // guarded by mu; directories of ended guests that could not be removed
}

// openCgroups makes the instance's cgroups. The error says why there are none.
func openCgroups(instance string) (*cgroups, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	own, err := ownCgroups()
	if err != nil {
		return nil, err
	}
	name := groupPrefix + instance
	if _, v1 := mounts["memory"]; v1 {
		return openV1(mounts, own, name)
	}
	if mount, ok := mounts[""]; ok {
		return openV2(mount, own[""], name)
	}
	return nil, errors.New("no cgroups are mounted")
}

// cgroupMount is where a hierarchy is mounted, and which part of it.
type cgroupMount struct{ point, root string }

// dir returns the directory of cgroup path in the mount.
func (m cgroupMount) dir(path string) (string, error) {
	rel, err := filepath.Rel(m.root, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		return "", fmt.Errorf("own cgroup %q is not below the mounted one %q", path, m.root)
	}
	return filepath.Join(m.point, rel), nil
}

// cgroupMounts returns the mounts by controller, with "" for the unified one.
func cgroupMounts() (map[string]cgroupMount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer f.Close()
	mounts := make(map[string]cgroupMount)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		m := cgroupMount{root: l[3], point: l[4]}
		switch r[0] {
		case "cgroup2":
			mounts[""] = m
		case "cgroup":
			for option := range strings.SplitSeq(r[2], ",") {
				mounts[option] = m // options that are no controllers do no harm
			}
		}
	}
	return mounts, lines.Err()
}

// ownCgroups returns the cgroups of this process by controller.
func ownCgroups() (map[string]string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read own cgroup: %w", err)
	}
	own := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			own[controller] = parts[2]
		}
	}
	return own, nil
}

const (
	// threadWeight is the scheduler's weight of a thread in v1.
	threadWeight = 1024
	// maxWeight is the largest weight of a cgroup that the kernel accepts in v1.
	maxWeight = 262144
)

// setWeight makes the boxes together weigh as much as one thread on each processor. In v1 a
// cgroup competes with the single threads beside it, the server's among them, and weighs as
// much as one of them by default: the more boxes are busy, the longer some of them then wait
// for a processor. In v2 it competes with other cgroups only.
func setWeight(dir string) error {
	weight := min(threadWeight*runtime.NumCPU(), maxWeight)
	if err := os.WriteFile(filepath.Join(dir, "cpu.shares"), []byte(strconv.Itoa(weight)), 0); err != nil {
		return fmt.Errorf("set the weight of all boxes: %w", err)
	}
	return nil
}

func openV1(mounts map[string]cgroupMount, own map[string]string, name string) (*cgroups, error) {
	c := &cgroups{dirs: make(map[string]string)}
	for _, controller := range append([]string{"cpuacct"}, controllers...) {
		mount, ok := mounts[controller]
		if !ok {
			c.close()
			return nil, fmt.Errorf("cgroup controller %q is not mounted", controller)
		}
		dir, err := mount.dir(own[controller])
		if err == nil {
			removeStaleGroups(dir)
			dir = filepath.Join(dir, name)
			err = os.Mkdir(dir, 0o755)
			if errors.Is(err, fs.ErrExist) { // cpu and cpuacct may be one
				err = nil
			}
		}
		if err != nil {
			c.close()
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		if controller == "cpuacct" {
			c.cpuacct = dir
		} else {
			c.dirs[controller] = dir
		}
	}
	if err := setWeight(c.dirs["cpu"]); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// openV2 makes the instance's cgroup where its controllers can be had: at the top
// of what is mounted, or in the own cgroup if no other process is in it.
func openV2(mount cgroupMount, own, name string) (*cgroups, error) {
	c, errTop := openV2At(mount.point, name)
	if errTop == nil {
		return c, nil
	}
	dir, err := mount.dir(own)
	if err != nil {
		return nil, errTop
	}
	if err := moveAside(dir); err != nil {
		return nil, fmt.Errorf("%w; %w", errTop, err)
	}
	return openV2At(dir, name)
}

func openV2At(parent, name string) (*cgroups, error) {
	enable := "+" + strings.Join(controllers, " +")
	if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(enable), 0); err != nil {
		return nil, fmt.Errorf("enable cgroup controllers: %w", err)
	}
	removeStaleGroups(parent)
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(enable), 0); err != nil {
		os.Remove(dir)
		return nil, fmt.Errorf("enable cgroup controllers: %w", err)
	}
	c := &cgroups{v2: true, dirs: make(map[string]string), cpuacct: dir}
	for _, controller := range controllers {
		c.dirs[controller] = dir
	}
	return c, nil
}

// removeStale removes the cgroups of dead instances beside this one's. c may be
// nil.
func (c *cgroups) removeStale() {
	if c == nil {
		return
	}
	removeStaleGroups(filepath.Dir(c.cpuacct))
	for _, dir := range c.dirs {
		removeStaleGroups(filepath.Dir(dir))
	}
}

// removeStaleGroups removes the cgroups of instances whose process is gone. The
// kernel refuses to remove one with processes in it, so that a mistake about that
// (another process may have the number now, or the process is out of sight) costs
// at most the cgroup of an instance without guests.
func removeStaleGroups(parent string) {
	dirs, err := filepath.Glob(filepath.Join(parent, groupPrefix+"*-*"))
	if err != nil {
		return // not possible: the pattern is constant
	}
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), groupPrefix), "-")
		if alive(pid) {
			continue
		}
		guests, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, guest := range guests {
			if guest.IsDir() {
				unix.Rmdir(filepath.Join(dir, guest.Name()))
			}
		}
		unix.Rmdir(dir)
	}
}

// alive reports whether a process runs: one that has ended and that nobody has
// waited for yet does not.
func alive(pid string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// moveAside moves this process and its outer one into a leaf of their cgroup,
// since a cgroup with processes in it cannot hand controllers down. It refuses if
// others are in the cgroup.
func moveAside(dir string) error {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read own cgroup: %w", err)
	}
	ours := map[string]bool{strconv.Itoa(os.Getpid()): true, strconv.Itoa(os.Getppid()): true}
	for _, pid := range strings.Fields(string(procs)) {
		if !ours[pid] {
			return errors.New("own cgroup has other processes in it")
		}
	}
	leaf := filepath.Join(dir, "glovebox-server")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make cgroup: %w", err)
	}
	for _, pid := range strings.Fields(string(procs)) {
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(pid), 0); err != nil {
			return fmt.Errorf("move into cgroup %q: %w", leaf, err)
		}
	}
	return nil
}

// distinct returns the directories without repetitions.
func (c *cgroups) distinct() []string {
	if c.v2 {
		return []string{c.cpuacct}
	}
	dirs := []string{}
	if c.cpuacct != "" {
		dirs = append(dirs, c.cpuacct)
	}
	for _, dir := range c.dirs {
		if dir != c.cpuacct {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// removeLeft removes the directories of ended guests that could not be removed before. c
// may be nil.
func (c *cgroups) removeLeft() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	left := c.left
	c.left = nil
	c.mu.Unlock()
	var errs []error
	for _, dir := range left {
		errs = append(errs, c.remove(dir))
	}
	return errors.Join(errs...)
}

// remove removes the directory of an ended guest. If that fails, removeLeft tries again.
func (c *cgroups) remove(dir string) error {
	err := rmdir(dir)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.left = append(c.left, dir)
	}
	return err
}

// close removes the instance's cgroups; the guests have ended.
func (c *cgroups) close() error {
	if c == nil {
		return nil
	}
	errs := []error{c.removeLeft()}
	for _, dir := range c.distinct() {
		errs = append(errs, rmdir(dir))
	}
	return errors.Join(errs...)
}
