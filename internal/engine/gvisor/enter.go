//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/posture"
)

// enteredEnv tells the inner process which mount namespace the outer one had. It
// is a hint and not trusted: it only counts if the process really is in another
// mount namespace and has the power to mount there.
const enteredEnv = "GLOVEBOX_OUTER_MNT_NS"

// sysmonErr is why Enter has not slackened sysmon, which limitPowers would forbid.
var sysmonErr error

// Enter makes sure that the process runs in a mount namespace of its own and has
// the powers of root over it. Where it does not yet, Enter runs the same
// executable with the same arguments again inside new namespaces, passes signals
// and the standard streams through, and exits with the inner process's code.
// Inside, Enter returns nil.
//
// The kernel kills the inner process with the outer one. With surviveParent it sends the inner process
// SIGHUP instead, so that a server whose client kills it can still write its boxes to disk.
//
// As an ordinary user the namespaces include a user namespace; where the host
// forbids that, the error is an *engine.HostError with the command to type.
func Enter(surviveParent bool) error {
	if entered() {
		os.Unsetenv(enteredEnv)
		// Nothing that is mounted here shows outside, and nothing that outside
		// unmounts is held busy here.
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		if errors.Is(err, os.ErrPermission) {
			// AppArmor lets namespaces be made, and then forbids what they are for.
			return hostError(fmt.Errorf("mount in them: %w", err), err)
		}
		if err != nil {
			return fmt.Errorf("detach the mount namespace: %w", err)
		}
		sysmonErr = slackenSysmon()
		return limitPowers(serverCaps)
	}
	if os.Getenv(enteredEnv) != "" {
		return hostError(errors.New("the new namespaces give no power to mount"), unix.EPERM)
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("read own mount namespace: %w", err)
	}
	return reexec(own, surviveParent)
}

// entered reports whether the process is inside.
func entered() bool {
	outer := os.Getenv(enteredEnv)
	if outer == "" {
		return false
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	return err == nil && own != outer && canMount()
}

// canMount reports whether the process has CAP_SYS_ADMIN over its namespaces.
func canMount() bool {
	caps, err := capabilities()
	return err == nil && os.Geteuid() == 0 && caps&(1<<unix.CAP_SYS_ADMIN) != 0
}

// reexec runs the executable again in new namespaces and exits with its code. It
// returns only if that process cannot be started. For surviveParent see Enter.
func reexec(ownNS string, surviveParent bool) error {
	// The parent death signal is bound to the thread that starts the child, so
	// that thread must stay.
	runtime.LockOSThread()
	cmd := &exec.Cmd{
		Path:   selfExe,
		Args:   os.Args,
		Env:    append(os.Environ(), enteredEnv+"="+ownNS),
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS,
			Pdeathsig:  unix.SIGKILL,
		},
	}
	if surviveParent {
		// Some clients kill the whole process group.
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Pdeathsig = true, unix.SIGHUP
	}
	if !canMount() {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	if err := cmd.Start(); err != nil {
		signal.Stop(signals)
		return hostError(err, err)
	}
	// This process only waits from now on.
	if err := limitPowers(nil); err != nil {
		cmd.Process.Kill() // fails only if it has ended
		cmd.Wait()         // its error is that it was killed
		return err
	}
	go forward(cmd.Process, signals, !surviveParent) // ends with the process
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			os.Exit(128 + int(ws.Signal()))
		}
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("wait for the inner process: %w", err)
	}
	os.Exit(0)
	return nil
}

// forward passes signals on, except those that the terminal has sent to the whole process
// group, if the process is in the group.
func forward(p *os.Process, signals <-chan os.Signal, sameGroup bool) {
	for sig := range signals {
		if sameGroup && (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGWINCH) && inForeground() {
			continue
		}
		p.Signal(sig)
	}
}

// inForeground reports whether the process group is the foreground one of a
// terminal.
func inForeground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// hostError is the error of namespaces that this host does not allow.
func hostError(cause, sign error) error {
	return &engine.HostError{Op: "create user and mount namespaces", Cause: cause, Fix: fixFor(sign)}
}

// fixFor says what makes user namespaces possible on this host after err.
func fixFor(err error) string {
	switch {
	case readSysctl("user/max_user_namespaces") == "0":
		return "type: sudo sysctl -w user.max_user_namespaces=15000"
	case readSysctl("kernel/unprivileged_userns_clone") == "0":
		return "type: sudo sysctl -w kernel.unprivileged_userns_clone=1"
	case readSysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor forbids it to ordinary users here; type: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case errors.Is(err, unix.ENOSPC):
		return "the limit of namespaces is reached; type: sudo sysctl -w user.max_user_namespaces=15000 user.max_mnt_namespaces=15000"
	case posture.InContainer():
		return "the profile of this container forbids it; start the container with: --security-opt seccomp=unconfined --security-opt apparmor=unconfined; docs/deploy.md has a profile that forbids more"
	}
	label, _ := os.ReadFile("/proc/self/attr/apparmor/current")
	if profile, ok := enforcedProfile(string(label)); ok {
		return fmt.Sprintf("the AppArmor profile %q forbids it; add these rules to its file in /etc/apparmor.d: userns, capability, mount, umount, pivot_root, and type: sudo apparmor_parser -r FILE; or start glovebox without that profile", profile)
	}
	return "allow unprivileged user namespaces on this host, or run as root"
}

// enforcedProfile returns the AppArmor profile of a process with a label such as
// "name (enforce)". ok is false if no profile forbids it anything.
func enforcedProfile(label string) (name string, ok bool) {
	return strings.CutSuffix(strings.TrimSpace(label), " (enforce)")
}

// readSysctl returns the trimmed value of /proc/sys/name, "" if there is none.
func readSysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
