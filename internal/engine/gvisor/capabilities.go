//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
)

// serverCaps are the capabilities that a server keeps over its user namespace.
var serverCaps = map[int]string{
	unix.CAP_SYS_ADMIN:        "CAP_SYS_ADMIN", // mounts roots, makes namespaces
	unix.CAP_SETUID:           "CAP_SETUID",    // maps users into them
	unix.CAP_SETGID:           "CAP_SETGID",
	unix.CAP_SETFCAP:          "CAP_SETFCAP", // maps root into those of volumes
	unix.CAP_SETPCAP:          "CAP_SETPCAP", // limits a gofer
	unix.CAP_SYS_CHROOT:       "CAP_SYS_CHROOT",
	unix.CAP_CHOWN:            "CAP_CHOWN", // serves volumes, through a gofer
	unix.CAP_DAC_OVERRIDE:     "CAP_DAC_OVERRIDE",
	unix.CAP_DAC_READ_SEARCH:  "CAP_DAC_READ_SEARCH",
	unix.CAP_FOWNER:           "CAP_FOWNER",
	unix.CAP_FSETID:           "CAP_FSETID",
	unix.CAP_KILL:             "CAP_KILL",
	unix.CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE",
}

// limitPowers takes from this process, and from all that it will start, every
// capability but those in keep, the possibility to gain others by executing a program,
// and core dumps, which would hold secrets and the memory of guests.
func limitPowers(keep map[int]string) error {
	log.SetLevel(log.Warning) // of gVisor's own log, which is on standard error
	own, err := capabilities()
	if err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	var names []string
	for c, name := range keep {
		if own&(1<<c) != 0 {
			names = append(names, name)
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("forbid new privileges: %w", errno)
	}
	caps := &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
	if err := sandboxsetup.ApplyCapsAllThreads(caps, nil); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return limitCore()
}

// limitCore forbids core dumps. A limit of 0 would only forbid those in files: 1 makes
// the kernel refuse a dump to a program too.
func limitCore() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("read limit of core dumps: %w", err)
	}
	limit.Max = min(limit.Max, 1)
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	return nil
}

// capabilities returns the effective capabilities of the calling thread, one bit each.
func capabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}
