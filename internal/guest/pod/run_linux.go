package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

const (
	// mappedIDs is how many user and group ids a box has, 0 first.
	mappedIDs = 65536
	// maxLog bounds how much of the agent's standard error goes to the container's log.
	maxLog = 1 << 20
	// terminationLog is where Kubernetes reads why a container has ended.
	terminationLog = "/dev/termination-log"
)

// terminate writes the message of the container, which is about to end.
func terminate(t podlink.Termination) {
	b, err := json.Marshal(t)
	if err == nil {
		os.WriteFile(terminationLog, b, 0o600) // without it the exit code has to do
	}
}

// run starts the agent and serves connections to it until it ends.
func run(args []string) (int, error) {
	var code int
	life, err := lockLife(socketDir, lifePath)
	if err == nil {
		defer life.Close() // after the message, for which wait waits
		code, err = runAgent(args)
	}
	switch {
	case err != nil:
		terminate(podlink.Termination{Error: err.Error()})
	case code < 0:
		terminate(podlink.Termination{Stopped: true})
		code = 0
	default:
		terminate(podlink.Termination{Exited: &code})
	}
	return code, err
}

// runAgent returns the exit code of the agent, 128+n after signal n, or a negative
// number if a signal asked it to stop the agent.
func runAgent(args []string) (int, error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	l, err := net.Listen("unix", socketPath)
	if err != nil {
		return 1, err
	}
	cmd, stream, err := startAgent(args)
	if err != nil {
		return 1, err
	}
	go newServer(stream).serve(l)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-stop:
		cmd.Process.Kill() // fails if it has just ended
		<-ended
		return -1, nil
	case err = <-ended:
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// startAgent starts the agent by way of enter, in namespaces of its own.
func startAgent(args []string) (*exec.Cmd, *stdiolink.Stream, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"enter"}, args...)...)
	cmd.Args[0] = Name // selects the helper in a program that has other parts
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, &limited{w: os.Stderr, left: maxLog}
	ids := []syscall.SysProcIDMap{{Size: mappedIDs}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS |
			unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start the agent in namespaces of its own: %w; the container needs a runtime that allows them, such as gVisor", err)
	}
	inR.Close()
	outW.Close()
	return cmd, stdiolink.New(outR, inW), nil
}

// limited passes on the first bytes and discards the rest.
type limited struct {
	w    io.Writer
	left int
}

// Write never fails: a full log must not end the agent.
func (l *limited) Write(p []byte) (int, error) {
	if n := min(l.left, len(p)); n > 0 {
		l.w.Write(p[:n])
		l.left -= n
	}
	return len(p), nil
}

// keptCaps are the capabilities of the agent, in its own user namespace: those with which
// it gives files and processes to the user, and ends processes.
var keptCaps = map[uintptr]bool{
	unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_FOWNER: true, unix.CAP_FSETID: true,
	unix.CAP_KILL: true, unix.CAP_SETGID: true, unix.CAP_SETUID: true, unix.CAP_NET_BIND_SERVICE: true,
}

// enter finishes the agent's namespaces from inside and becomes the agent.
func enter(args []string) (int, error) {
	hostname, program, argv := args[0], args[1], args[2:]
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return 1, fmt.Errorf("set the host name: %w", err)
	}
	if err := raiseLoopback(); err != nil {
		return 1, fmt.Errorf("set up the loopback interface: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return 1, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return 1, fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", socketDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=000,size=4096"); err != nil {
		return 1, fmt.Errorf("hide %s: %w", socketDir, err)
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keptCaps[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return 1, fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("forbid new privileges: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return 1, err
	}
	err := unix.Exec(filepath.Clean(program), argv, os.Environ())
	return 126, fmt.Errorf("run %s: %w", program, err)
}
