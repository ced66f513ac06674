//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// pinWarning is the age of the pinned gVisor at which doctor warns: upstream fixes
// vulnerabilities without announcing them.
const pinWarning = 120 * 24 * time.Hour

// Probe checks what this machine can do, inside Enter or outside. It changes nothing, and
// starts only one short process.
func Probe(ctx context.Context) []engine.Finding {
	pin, date := Version()
	return []engine.Finding{
		probeVersion(pin, date, time.Now()),
		probeKernel(),
		probeNamespaces(ctx),
		probeCgroups(),
		{Name: "platform", Level: engine.LevelOK, Detail: "systrap (needs no hardware support)" + kvmNote()},
	}
}

// probeVersion reports the age of a version of gVisor; a zero date is unknown.
func probeVersion(pin string, date, now time.Time) engine.Finding {
	f := engine.Finding{Name: "gvisor", Level: engine.LevelOK, Detail: pin}
	if date.IsZero() {
		return f
	}
	age := now.Sub(date)
	f.Detail = fmt.Sprintf("%s, %s old", pin, plural.N(int(age.Hours()/24), "day"))
	if age > pinWarning {
		f.Level, f.Fix = engine.LevelWarn, "install a newer release; to build one: make update-gvisor"
	}
	return f
}

// probeKernel checks the kernel for the system calls that the engine needs: mount_setattr came
// with 5.12.
func probeKernel() engine.Finding {
	f := engine.Finding{Name: "kernel", Level: engine.LevelOK}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		f.Detail = unix.ByteSliceToString(u.Release[:])
	}
	if err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{}); err == unix.ENOSYS {
		f.Level, f.Fix = engine.LevelFail, "Linux 5.12 or newer is needed"
	}
	return f
}

// probeNamespaces tries the namespaces that Enter makes.
func probeNamespaces(ctx context.Context) engine.Finding {
	f := engine.Finding{Name: "namespaces", Level: engine.LevelOK}
	cmd := exec.CommandContext(ctx, "/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		f.Level = engine.LevelFail
		f.Detail, f.Fix = "user namespaces cannot be made: "+err.Error(), fixFor(err)
		return f
	}
	if canMount() {
		f.Detail = "root, or root in a user namespace; user namespaces can be made"
		return f
	}
	f.Detail = "user namespaces can be made"
	return f
}

// probeCgroups says which limits a kernel holds here.
func probeCgroups() engine.Finding {
	f := engine.Finding{Name: "limits", Level: engine.LevelOK}
	groups, err := openCgroups(fmt.Sprintf("%d-probe", os.Getpid()))
	if err != nil {
		f.Level = engine.LevelWarn
		f.Detail = "cpu, memory and pids are watched, not held by the kernel: " + err.Error()
		f.Fix = "run as root, or in a cgroup of its own: systemd-run --user --scope -p Delegate=yes glovebox ..."
		return f
	}
	defer groups.close()
	var hard []string
	for _, l := range limits(groups, nil) {
		hard = append(hard, l.Resource)
	}
	version := "v1"
	if groups.v2 {
		version = "v2"
	}
	f.Detail = fmt.Sprintf("cgroup %s holds %s", version, strings.Join(hard, ", "))
	return f
}

func kvmNote() string {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	unix.Close(fd)
	return "; /dev/kvm is there and not used"
}
