//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/server"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"

	"github.com/glovebox-dev/glovebox/engine"
)

// spinCPUs is the number of processors from which on sentry and guest spin briefly for
// each other before they sleep. With fewer, the spinning thread delays the thread
// that it waits for.
const spinCPUs = 3

// launch describes the processes of a guest to start.
type launch struct {
	id      string
	spec    *engine.Spec
	tree    *tree  // the assembled root
	bundle  string // any directory: relative paths would be taken from here
	socket  string // of the control server
	stdio   [3]*os.File
	disk    *os.File // backs what the guest writes
	report  *os.File // receives the last error output of gVisor
	debug   string   // directory of debug logs, or empty
	group   *cgroup  // nil without cgroups
	user    user     // of the sentry
	volumes *guestVolumes
	cpus    int // processors that the guest sees
}

// flags returns the gVisor settings of the sentry and the gofers.
func (l *launch) flags() []string {
	flags := []string{
		"--platform=systrap",
		"--network=none",
		"--directfs=true",
		"--host-settings=ignore", // the server does not change the host
		"--overlay2=none",        // said per mount, by mountConfs
		"--file-access=exclusive",
		"--in-sandbox-cgroup=v2",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		"--control-rpc-stop-timeout=0s",
	}
	if runtime.NumCPU() < spinCPUs {
		flags = append(flags, "--systrap-disable-fast-path=true")
	}
	return flags
}

// begin returns the command line of a part of gVisor up to the name of the command.
// name is that of its debug log, and confs says how the root and the volumes are backed.
func (l *launch) begin(name, command, confs string, trash *files) (*commandLine, error) {
	c := &commandLine{args: l.flags()}
	if l.debug != "" {
		// The process itself may not write to the directory.
		f, err := os.Create(filepath.Join(l.debug, l.id+"."+name+".txt"))
		if err != nil {
			return nil, fmt.Errorf("make debug log: %w", err)
		}
		trash.add(f)
		c.args = append(c.args, "--debug")
		c.pass("debug-log-fd", f)
	}
	c.args = append(c.args, command, "--bundle="+l.bundle, "--gofer-mount-confs="+confs)
	return c, nil
}

// commandLine is a command line with descriptors in it.
type commandLine struct {
	args  []string
	files []*os.File
}

// pass appends a flag whose value is the number that f has in the child.
func (c *commandLine) pass(flag string, f *os.File) {
	c.args = append(c.args, fmt.Sprintf("--%s=%d", flag, 3+len(c.files)))
	c.files = append(c.files, f)
}

func (l *launch) cmd(name string, c *commandLine) *exec.Cmd {
	return &exec.Cmd{
		Path:        selfExe,
		Args:        append([]string{name}, c.args...),
		Env:         l.environment(), // nothing of the server's
		Stderr:      l.report,
		ExtraFiles:  c.files,
		SysProcAttr: &syscall.SysProcAttr{},
	}
}

// spareProcs is how many threads of a guest can compute, beyond one for each processor,
// before they delay the sentry's own work and each other: each occupies a P of the Go
// runtime. With 14, interrupts of a guest with five computing programs could come too late on
// a busy machine.
const spareProcs = 30

// environment returns the environment of the sentry and the gofers. Async preemption is off:
// its signals interrupt and restart the system calls in which a sentry's threads wait for the
// guest, so that a fork bomb would keep the sentry busy and slow the whole machine.
func (l *launch) environment() []string {
	return []string{
		"GOMAXPROCS=" + strconv.Itoa(l.cpus+spareProcs),
		"GODEBUG=asyncpreemptoff=1",
		oomScoreEnv + "=" + guestOOMScore(),
	}
}

// pair is a connection between the sentry and its gofer.
type pair struct{ sentry, gofer *os.File }

func newPair() (pair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair{}, fmt.Errorf("make socket pair: %w", err)
	}
	return pair{os.NewFile(uintptr(fds[0]), "sentry end"), os.NewFile(uintptr(fds[1]), "gofer end")}, nil
}

// controlSocket makes the socket that the sentry's control server listens at.
func controlSocket(path string) (*os.File, error) {
	// gVisor makes it without close-on-exec. A process started now would hold it
	// too, under the number that it has here, which may be one that a sentry
	// needs for itself.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := server.CreateSocket(path)
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "control"), nil
}

// started is what a launch has started.
type started struct {
	gofers []*exec.Cmd
	root   *rootServer // instead of gofers; nil if the root is an image
	sentry *exec.Cmd
	ready  *os.File // becomes readable when the control server answers
}

// start starts the processes. The guest is at rest then: booted, with no process
// of its own. After an error, what is in the result has been started.
func (l *launch) start(e *Engine, trash *files) (s started, err error) {
	oci := ociSpec(l.id, l.spec, l.tree, l.volumes)
	sentry, err := l.begin("boot", "boot", mountConfs(l.spec, l.tree, everyVolume), trash)
	if err != nil {
		return s, err
	}
	sentry.args = append(sentry.args,
		"--apply-caps=true", "--setup-root", "--attached",
		"--cpu-num="+strconv.Itoa(l.cpus),
		"--total-memory="+strconv.FormatUint(visibleMemory(l.spec.Limits), 10),
		"--total-host-memory="+strconv.FormatUint(visibleMemory(l.spec.Limits), 10),
		"--product-name=glovebox",
	)
	spec, err := memFile("spec", oci)
	if err != nil {
		return s, err
	}
	trash.add(spec)
	sentry.pass("spec-fd", spec)
	if l.tree.images != nil { // the sentry reads them itself
		sentry.pass("io-fds", l.tree.images.root)
		sentry.pass("io-fds", l.tree.images.agent)
	}
	switch {
	case len(l.spec.Mounts) > 0:
		s.gofers, err = l.startGofers(e, oci, sentry, trash)
	case l.tree.images == nil:
		s.root, err = l.serveRoot(sentry, trash)
	}
	if err != nil {
		return s, err
	}

	pgalloc.IMAWorkAroundForMemFile(l.disk.Fd())
	sentry.pass("gofer-filestore-fds", l.disk)

	ready, readyW, err := os.Pipe()
	if err != nil {
		return s, fmt.Errorf("make pipe: %w", err)
	}
	trash.add(ready, readyW)
	sentry.pass("start-sync-fd", readyW)

	control, err := controlSocket(l.socket)
	if err != nil {
		return s, err
	}
	trash.add(control)
	sentry.pass("controller-fd", control)
	for _, f := range l.stdio {
		sentry.pass("stdio-fds", f)
	}
	sentry.args = append(sentry.args, l.id)
	cmd := l.cmd(sentryName, sentry)
	e.users.confine(cmd, l.user)
	if err := l.group.start(e.spawn, cmd); err != nil {
		return s, explainStart(err)
	}
	s.sentry, s.ready = cmd, ready
	return s, nil
}

// serveRoot gives the sentry its root from here.
func (l *launch) serveRoot(sentry *commandLine, trash *files) (*rootServer, error) {
	p, err := newPair()
	if err != nil {
		return nil, err
	}
	trash.add(p.sentry)
	sentry.pass("io-fds", p.sentry)
	return serveRoot(p.gofer, l.tree.root)
}

// files closes what a launch has opened once its processes have their copies.
type files struct{ open []*os.File }

func (t *files) add(f ...*os.File) { t.open = append(t.open, f...) }

// closeExcept closes all files but one, which stays for close.
func (t *files) closeExcept(keep *os.File) {
	for _, f := range t.open {
		if f != keep {
			f.Close()
		}
	}
	t.open = []*os.File{keep}
}

func (t *files) close() {
	for _, f := range t.open {
		f.Close()
	}
	t.open = nil
}
