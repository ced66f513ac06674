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
	// openFiles is the limit of open files of a user process.
	openFiles = 4096
	mib       = 1 << 20
	// addressSpace limits what a process may reserve, so that an excessive allocation
	// fails at once and not when it is used. JavaScript and WebAssembly reserve tens of
	// gigabytes.
	addressSpace = 64 << 30
	// pythonSpace is the minimum address space of a Python kernel: numeric libraries
	// reserve gigabytes for their threads.
	pythonSpace = 4 << 30
)

// launcher starts user processes: with the user's identity and limits, and without a
// way to gain privileges.
type launcher struct {
	a        *agent
	cred     *syscall.Credential // nil: the agent's own
	env      []string
	dir      string
	group    *userGroup // nil: none
	data     uint64     // RLIMIT_DATA; 0: none
	maxProcs uint64     // RLIMIT_NPROC; 0: none
	orphanMu sync.Mutex // serializes killOrphans
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
	// Control groups only inside a guest: elsewhere they would be the host's.
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
		// RLIMIT_NPROC counts all processes of the user; root is exempt.
		l.maxProcs = uint64(h.PIDs)
		limits["pids"] = "rlimit"
	}
	if h.MemoryMB > 0 {
		l.data = uint64(h.MemoryMB) * mib
	}
	return l
}

// lowerLimit lowers one of the agent's own limits, which its children inherit, and
// returns how it is enforced.
func lowerLimit(resource int, n uint64) string {
	var lim unix.Rlimit
	if unix.Getrlimit(resource, &lim) != nil {
		return "none"
	}
	lim.Cur = min(n, lim.Cur)
	lim.Max = lim.Cur
	// The syscall package otherwise restores the initial limit of open files in
	// children.
	if syscall.Setrlimit(resource, &syscall.Rlimit{Cur: lim.Cur, Max: lim.Max}) != nil {
		return "none"
	}
	return "rlimit"
}

// command returns a command with the user's environment in the user's home, which leads
// a session and process group of its own.
func (l *launcher) command(argv []string) *exec.Cmd {
	cmd := &exec.Cmd{Path: argv[0], Args: argv, Env: l.env, Dir: l.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: l.cred}
	l.group.attr(cmd.SysProcAttr)
	return cmd
}

// start starts a command made by command. The caller must wait for its process and then
// call ended. At the limit of processes it kills those that earlier commands left
// behind and returns their number.
func (l *launcher) start(cmd *exec.Cmd) (killed int, err error) {
	try := *cmd // a Cmd can be started once
	err = l.startOnce(&try)
	if atLimit(err) {
		if killed = l.killOrphans(0); killed > 0 {
			try = *cmd
			err = l.startOnce(&try)
		}
	}
	*cmd = try
	return killed, err
}

func (l *launcher) startOnce(cmd *exec.Cmd) error {
	err := l.onOwnThread(func() error {
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

// startKernel runs fn, which starts a kernel with commands made by command and returns
// its process id.
func (l *launcher) startKernel(language string, fn func() (int, error)) error {
	err := l.startKernelOnce(language, fn)
	if atLimit(err) && l.killOrphans(0) > 0 {
		err = l.startKernelOnce(language, fn)
	}
	return err
}

func (l *launcher) startKernelOnce(language string, fn func() (int, error)) error {
	return l.onOwnThread(func() error {
		pid, err := l.a.reaper.start(fn)
		if err != nil {
			return err
		}
		l.confine(pid)
		if language == kernel.Python && l.data > 0 {
			// Python raises an exception for a refused allocation. Other interpreters
			// reserve far more addresses than they use and would not start.
			l.limit(pid, unix.RLIMIT_AS, max(pythonSpace, 4*l.data))
		}
		return nil
	})
}

func (l *launcher) ended(pid int) { l.a.reaper.forget(pid) }

// confine sets the limits of a new process. They keep a mistake from ending the whole
// guest; the engine's limits stop a process that evades them.
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
	// An engine may forbid changing limits of other processes; its own limits hold
	// anyway.
	if err := unix.Prlimit(pid, resource, &lim, nil); err != nil && err != unix.ESRCH {
		l.a.log.Debug("limit not set", "resource", resource, "err", err)
	}
}

// onOwnThread runs fn on a thread with the properties that children inherit: no new
// privileges, and membership in the control group. The thread ends afterwards.
func (l *launcher) onOwnThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			done <- fmt.Errorf("set no_new_privs: %w", err)
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
