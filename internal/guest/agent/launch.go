package agent

import (
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/kernel"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// openFiles is how many files a process of the user may have open.
	openFiles = 4096
	mib       = 1 << 20
	// addressSpace is what a process may reserve: an allocation by mistake fails
	// there instead of in the use of it. JavaScript and WebAssembly reserve tens
	// of gigabytes.
	addressSpace = 64 << 30
	// pythonSpace is the least address space of a Python kernel: libraries for
	// numbers reserve gigabytes for their threads.
	pythonSpace = 4 << 30
)

// launcher starts the user's processes: with the user's identity, within its
// limits, unable to gain privileges.
type launcher struct {
	a        *agent
	cred     *syscall.Credential // nil: the agent's own
	env      []string
	dir      string
	group    *userGroup // nil: none
	data     uint64     // RLIMIT_DATA; 0: none
	maxProcs uint64     // RLIMIT_NPROC; 0: none
	hunt     sync.Mutex // held by endLeftovers
}

func (a *agent) newLauncher(h protocol.Hello, env []string, limits map[string]string) *launcher {
	l := &launcher{a: a, env: env, dir: h.Home}
	root := unix.Geteuid() == 0
	if root && h.UID >= 0 {
		l.cred = &syscall.Credential{Uid: uint32(h.UID), Gid: uint32(h.GID)}
	}
	limits["core"] = lowerLimit(unix.RLIMIT_CORE, 0)
	limits["open_files"] = lowerLimit(unix.RLIMIT_NOFILE, openFiles)
	if h.MemoryMB > 0 && a.init {
		limits["address_space"] = lowerLimit(unix.RLIMIT_AS, addressSpace)
	}
	limits["pids"] = "none"
	// Groups are for a kernel of the guest's own: elsewhere they would be the
	// host's.
	if a.init && root {
		g, err := newUserGroup(h.PIDs, int64(h.MemoryMB)*mib)
		if err != nil {
			a.log.Warn("no control groups in the guest", "err", err)
		}
		l.group = g
	}
	switch {
	case h.PIDs <= 0:
	case l.group != nil && l.group.pids:
		limits["pids"] = "cgroup"
	case a.init && l.cred != nil && l.cred.Uid != 0:
		// Counts the user's processes wherever they are; root is exempt.
		l.maxProcs = uint64(h.PIDs)
		limits["pids"] = "rlimit"
	}
	if h.MemoryMB > 0 {
		l.data = uint64(h.MemoryMB) * mib
	}
	return l
}

// lowerLimit lowers one of the agent's own limits, which its children inherit.
func lowerLimit(resource int, n uint64) string {
	var lim unix.Rlimit
	if unix.Getrlimit(resource, &lim) != nil {
		return "none"
	}
	lim.Cur = min(n, lim.Cur)
	lim.Max = lim.Cur
	// Through the syscall package, which restores the limit of open files that
	// the process was started with in its children otherwise.
	if syscall.Setrlimit(resource, &syscall.Rlimit{Cur: lim.Cur, Max: lim.Max}) != nil {
		return "none"
	}
	return "rlimit"
}

// command returns a command that is the head of a session and process group of
// its own, has the user's environment and runs in the user's home.
func (l *launcher) command(argv []string) *exec.Cmd {
	cmd := &exec.Cmd{Path: argv[0], Args: argv, Env: l.env, Dir: l.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: l.cred}
	l.group.attr(cmd.SysProcAttr)
	return cmd
}

// start starts a command made by command. Its process is to be waited for, and
// then ended is to be called. It returns how many processes that earlier
// commands had left behind were killed to make room.
func (l *launcher) start(cmd *exec.Cmd) (killed int, err error) {
	try := *cmd // a Cmd starts once
	err = l.startOnce(&try)
	if atLimit(err) {
		if killed = l.endLeftovers(0); killed > 0 {
			try = *cmd
			err = l.startOnce(&try)
		}
	}
	*cmd = try
	return killed, err
}

func (l *launcher) startOnce(cmd *exec.Cmd) error {
	err := l.apart(func() error {
		_, err := l.a.reaper.start(func() (int, error) {
			if err := cmd.Start(); err != nil {
				return 0, err
			}
			return cmd.Process.Pid, nil
		})
		return err
	})
	if err == nil {
		l.confine(cmd.Process.Pid)
	}
	return err
}

// startKernel runs fn, which starts a kernel with commands made by command and
// returns its process id.
func (l *launcher) startKernel(language string, fn func() (int, error)) error {
	err := l.startKernelOnce(language, fn)
	if atLimit(err) && l.endLeftovers(0) > 0 {
		err = l.startKernelOnce(language, fn)
	}
	return err
}

func (l *launcher) startKernelOnce(language string, fn func() (int, error)) error {
	return l.apart(func() error {
		pid, err := l.a.reaper.start(fn)
		if err != nil {
			return err
		}
		l.confine(pid)
		if language == kernel.Python && l.data > 0 {
			// Python turns a refused allocation into an exception. Others reserve
			// far more addresses than they use and do not start.
			l.limit(pid, unix.RLIMIT_AS, max(pythonSpace, 4*l.data))
		}
		return nil
	})
}

func (l *launcher) ended(pid int) { l.a.reaper.forget(pid) }

// confine sets the limits of a process that has just started. They keep a
// mistake from ending the whole guest; what a process does to evade them meets
// the limits of the engine.
func (l *launcher) confine(pid int) {
	l.limit(pid, unix.RLIMIT_DATA, l.data)
	l.limit(pid, unix.RLIMIT_NPROC, l.maxProcs)
}

// limit sets one limit of a process; 0 means none.
func (l *launcher) limit(pid, resource int, n uint64) {
	if n == 0 {
		return
	}
	lim := unix.Rlimit{Cur: n, Max: n}
	// An engine may keep the agent from changing the limits of others: those that
	// count are not these.
	if err := unix.Prlimit(pid, resource, &lim, nil); err != nil && err != unix.ESRCH {
		l.a.log.Debug("limit not set", "resource", resource, "err", err)
	}
}

// apart runs fn on a thread that has what children are to inherit: no new
// privileges and membership in the group that counts processes. The thread ends
// afterwards.
func (l *launcher) apart(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			done <- fmt.Errorf("renounce new privileges: %w", err)
			return
		}
		if err := l.group.join(); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}
