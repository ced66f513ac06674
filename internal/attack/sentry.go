//go:build linux

package attack

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

func sentryClass() class {
	return class{
		name:  "sentry",
		about: "The processes of a box have been compromised: what do they hold on the host, and what can they do to the server?",
		attacks: []Attack{
			{Name: "system-call-filter", Claim: "every thread of a box's processes has a system call filter", run: posture(filtered)},
			{Name: "no-new-privileges", Claim: "no process of a box can gain privileges by starting a program", run: posture(noNewPrivileges)},
			{Name: "capabilities", Claim: "no process of a box may administer the host, its network, devices or modules", run: posture(capabilities)},
			{Name: "namespaces", Claim: "a box's processes have network, IPC, PID, UTS and mount namespaces of their own", run: posture(namespaces)},
			{Name: "descriptors", Claim: "a box's processes hold no file of the host that the box must not reach", run: posture(descriptors)},
			{Name: "environment", Claim: "a box's processes have none of the server's environment", run: posture(environment)},
			{Name: "root-directory", Claim: "a box's processes have a root without the host's files", run: posture(rootDirectory)},
			{Name: "threads-of-host", Claim: "a thread bomb does not multiply the threads of the host", Alone: true, run: threadsOfHost},
			{Name: "files-of-host", Claim: "a flood of open files does not multiply the descriptors of the host", Alone: true, run: filesOfHost},
			{Name: "garbage-to-server", Claim: "garbage on every socket and pipe of a sentry harms at most its own box", Alone: true, run: garbage},
			{Name: "killed", Claim: "a sentry that is killed is reported and leaves nothing", run: killed},
			{Name: "stopped", Claim: "a sentry that is stopped can still be destroyed quickly", run: stoppedSentry},
		},
	}
}

// member is a process of a box.
type member struct {
	proc
	status map[string]string // of /proc/PID/status
}

// members returns the processes of a box.
func (c *cell) members() []member {
	var list []member
	for _, p := range holdings(c.m.ID) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
		if err != nil {
			continue // it has ended
		}
		m := member{p, map[string]string{}}
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok {
				m.status[name] = strings.TrimSpace(value)
			}
		}
		list = append(list, m)
	}
	return list
}

// posture boots a box, runs code in it, and examines each of its processes from
// outside.
func posture(examine func(t *trial, m member)) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		if t.cfg.Maker.Engine.Info().Isolation != engine.IsolationKernel && t.cfg.weaken == nil {
			return skip("the boxes of this engine are not processes of this host")
		}
		c, err := t.boot(ctx, shape{})
		if err != nil {
			return err
		}
		e, err := c.run(ctx, call{function: "work"})
		if err == nil {
			err = c.judge(e, false)
		}
		if err != nil {
			return err
		}
		list := c.members()
		if len(list) == 0 {
			return fmt.Errorf("no process of box %s was found", c.m.ID)
		}
		for _, m := range list {
			examine(t, m)
		}
		return nil
	}
}

func filtered(t *trial, m member) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", m.pid))
	if err != nil {
		return // it has ended
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", m.pid, task.Name()))
		if err == nil {
			t.check(strings.Contains(string(b), "Seccomp:\t2"), "thread %s of %s has no system call filter", task.Name(), m)
		}
	}
}

func noNewPrivileges(t *trial, m member) {
	t.check(m.status["NoNewPrivs"] == "1", "%s can gain privileges by starting a program (NoNewPrivs is %q)", m, m.status["NoNewPrivs"])
}

// forbidden are capabilities that no process of a box may have over the host.
var forbidden = map[string]int{
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_MODULE": unix.CAP_SYS_MODULE, "CAP_SYS_RAWIO": unix.CAP_SYS_RAWIO,
	"CAP_SYS_BOOT": unix.CAP_SYS_BOOT, "CAP_SYS_TIME": unix.CAP_SYS_TIME, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN,
	"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_MKNOD": unix.CAP_MKNOD,
	"CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID, "CAP_KILL": unix.CAP_KILL, "CAP_SYSLOG": unix.CAP_SYSLOG,
}

func capabilities(t *trial, m member) {
	if ns, own := namespaceOf(m.pid, "user"), namespaceOf(os.Getpid(), "user"); ns != "" && own != "" && ns != own {
		t.held(1) // over a namespace of its own only
		return
	}
	for _, set := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
		bits, err := strconv.ParseUint(m.status[set], 16, 64)
		if err != nil {
			t.broke("%s has no %s", m, set)
			continue
		}
		for name, bit := range forbidden {
			t.check(bits&(1<<bit) == 0, "%s has %s in %s", m, name, set)
		}
	}
}

// namespaceOf returns the identity of a namespace; "" if it cannot be read.
func namespaceOf(pid int, kind string) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		return ""
	}
	return name
}

func namespaces(t *trial, m member) {
	for _, kind := range []string{"net", "ipc", "pid", "uts", "mnt"} {
		theirs, ours := namespaceOf(m.pid, kind), namespaceOf(os.Getpid(), kind)
		t.check(theirs != "" && theirs != ours, "%s has the server's %s namespace", m, kind)
	}
}

func descriptors(t *trial, m member) {
	dir := fmt.Sprintf("/proc/%d/fd", m.pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return // it has ended
	}
	for _, fd := range fds {
		name, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			continue
		}
		kind, _, _ := strings.Cut(name, ":")
		switch {
		case slices.Contains([]string{"pipe", "socket", "anon_inode"}, kind),
			strings.HasPrefix(name, "/memfd:"), strings.HasSuffix(name, " (deleted)"), name == "/dev/null",
			strings.HasPrefix(name, "/proc/") && strings.Contains(name, "/maps"):
			t.held(1)
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, fd.Name()), &st); err != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			// The root of the image, which is assembled from the host's files.
			var host unix.Stat_t
			same := unix.Stat("/", &host) == nil && host.Dev == st.Dev && host.Ino == st.Ino
			t.check(!same, "%s holds the host's root directory as descriptor %s", m, fd.Name())
		case unix.S_IFBLK, unix.S_IFCHR:
			t.broke("%s holds the device %s", m, name)
		default:
			t.check(!t.hostOnly(&st), "%s holds a file of the host that is not in the image: %s", m, name)
			t.check(!writable(m.pid, fd.Name()), "%s can write a file of the host: %s", m, name)
		}
	}
}

// writable reports whether a process has opened a descriptor for writing.
func writable(pid int, fd string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return false // it is closed
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 64)
			return err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return true
}

// hostOnly reports whether a file is one of the host's that no image contains: planted,
// or an account file, unless the image shows that very file.
func (t *trial) hostOnly(st *unix.Stat_t) bool {
	for _, path := range []string{t.bait.file(), "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/hosts", "/etc/machine-id"} {
		var host unix.Stat_t
		if unix.Stat(path, &host) != nil || host.Dev != st.Dev || host.Ino != st.Ino {
			continue
		}
		tree := t.cfg.Maker.Root.Tree
		return tree == nil || !slices.ContainsFunc(tree.Binds, func(b engine.Mount) bool {
			return path == b.Host || strings.HasPrefix(path, b.Host+"/")
		})
	}
	return false
}

func environment(t *trial, m member) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.pid))
	if err != nil {
		t.held(1)
		return
	}
	for v := range strings.SplitSeq(string(b), "\x00") {
		name, _, _ := strings.Cut(v, "=")
		for _, secret := range []string{"TOKEN", "SECRET", "PASSWORD", "HOME", "SSH_", "AWS_", "USER"} {
			t.check(!strings.Contains(name, secret), "%s has the variable %s", m, name)
		}
	}
}

func rootDirectory(t *trial, m member) {
	for _, path := range []string{"/etc/shadow", "/root", "/home", "/var/lib", "/sys/kernel", t.bait.file()} {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", m.pid, path))
		if os.IsPermission(err) {
			continue // not ours to look at
		}
		t.check(err != nil, "%s can reach %s of its root", m, path)
	}
}

// threadsOfHost counts the host's threads during a thread bomb.
func threadsOfHost(ctx context.Context, t *trial) error {
	const perGuestThread, fixed = 4, 256
	return t.count(ctx, "threads", hostThreads, fixed+perGuestThread*(small.PIDs+64))
}

// filesOfHost counts the host's descriptors while the box opens as many as it can.
func filesOfHost(ctx context.Context, t *trial) error {
	// The script opens 2,000 files. Each may cost a descriptor of its own, one of its
	// directory entry and one of a directory.
	const opened, perFile, fixed = 2000, 3, 2000
	return t.count(ctx, "files", hostDescriptors, perFile*opened+fixed)
}

// count runs a function of the class's script and counts something on the host
// meanwhile.
func (t *trial) count(ctx context.Context, function string, count func([]proc) int, bound int) error {
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- c.attack(ctx, call{function: function, mayDie: true}) }()
	most := 0
	for {
		select {
		case err := <-done:
			t.check(most <= bound, "the box's processes had %d %s on the host, more than %d", most, function, bound)
			return err
		case <-time.After(100 * time.Millisecond):
			most = max(most, count(holdings(c.m.ID)))
		}
	}
}

// garbage plays a compromised sentry: it takes the sockets and pipes of the box's
// processes and writes random bytes to each.
func garbage(ctx context.Context, t *trial) error {
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return err
	}
	c.connectionMayEnd = true
	noise := make([]byte, 64<<10)
	rand.Read(noise) // never fails
	return t.keepsMemory(func() error {
		written := c.write(noise[:4096])
		if written == 0 {
			return skip("the descriptors of the box's processes cannot be taken")
		}
		t.held(written)
		return sleep(ctx, time.Second)
	})
}

// write writes p to every socket and pipe of the box's processes, and returns to how
// many.
func (c *cell) write(p []byte) (written int) {
	for _, m := range c.members() {
		pidfd, err := unix.PidfdOpen(m.pid, 0)
		if err != nil {
			continue // it has ended
		}
		for fd := range 64 {
			n, err := unix.PidfdGetfd(pidfd, fd, 0)
			if err != nil {
				continue
			}
			var st unix.Stat_t
			if unix.Fstat(n, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFSOCK || st.Mode&unix.S_IFMT == unix.S_IFIFO) {
				// A duplicate shares the mode of the original, which has to stay as it is.
				poll := []unix.PollFd{{Fd: int32(n), Events: unix.POLLOUT}}
				if ready, _ := unix.Poll(poll, 0); ready == 1 && poll[0].Revents&unix.POLLOUT != 0 {
					if _, err := unix.Write(n, p); err == nil {
						written++
					}
				}
			}
			unix.Close(n)
		}
		unix.Close(pidfd)
	}
	return written
}

// bootMembers boots a box and returns it with its processes on the host.
func (t *trial) bootMembers(ctx context.Context) (*cell, []member, error) {
	c, err := t.boot(ctx, shape{})
	if err != nil {
		return nil, nil, err
	}
	list := c.members()
	if len(list) == 0 {
		return nil, nil, fmt.Errorf("find the processes of box %s: none", c.m.ID)
	}
	return c, list, nil
}

// killed kills a process of the box.
func killed(ctx context.Context, t *trial) error {
	c, list, err := t.bootMembers(ctx)
	if err != nil {
		return err
	}
	if err := syscall.Kill(list[0].pid, syscall.SIGKILL); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	exit, err := c.m.Guest.Wait(wait)
	t.check(err == nil && exit.Reason != "" && exit.Reason != engine.ExitDestroyed, "the death of a sentry is reported as %+v, %v", exit, err)
	return nil
}

// stoppedSentry stops the processes of the box and destroys it.
func stoppedSentry(ctx context.Context, t *trial) error {
	c, list, err := t.bootMembers(ctx)
	if err != nil {
		return err
	}
	for _, m := range list {
		if err := syscall.Kill(m.pid, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	t.held(len(list))
	c.destroy(ctx)
	return nil
}
