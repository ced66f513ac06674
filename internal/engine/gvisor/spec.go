//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// agentPath is where the agent's executable is seen inside a guest.
const agentPath = "/.glovebox/agent"

// agentCaps are the powers of the agent over the guest: to give files away, to
// start processes as other users and to end them. They are powers over gVisor's
// own kernel, never over the host. CAP_SYS_RESOURCE and CAP_SYS_ADMIN over the guest's
// first user namespace are not among them, because they would lift the limits. User code
// can have all capabilities in a user namespace of its own (unshare --user --map-root-user),
// where it may mount and change what belongs to that namespace; every limit holds there.
var agentCaps = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
}

// validate checks the properties that the engine relies on. Paths are checked on use.
func validate(s *engine.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Agent.Image != nil {
		return fmt.Errorf("agent of image %s: %w", s.Agent.Image.Digest, engine.ErrUnsupported)
	}
	for _, m := range s.Mounts {
		if m.Volume != "" {
			return fmt.Errorf("volume %q: this engine mounts directories of the host only: %w", m.Volume, engine.ErrUnsupported)
		}
		if reserved(m.Guest) {
			return fmt.Errorf("mount at %q: the path is the guest kernel's own: %w", m.Guest, engine.ErrInvalid)
		}
	}
	return nil
}

// reserved reports whether a guest path belongs to what the guest kernel mounts.
func reserved(p string) bool {
	for _, own := range []string{"/proc", "/sys", "/dev", "/.glovebox"} {
		if p == own || (len(p) > len(own) && p[:len(own)+1] == own+"/") {
			return true
		}
	}
	return false
}

// ociSpec returns the configuration of the guest in the words of gVisor. volumes are
// s.Mounts.
func ociSpec(id string, s *engine.Spec, root *tree, volumes *guestVolumes) *specs.Spec {
	hostname := s.Hostname
	if hostname == "" {
		hostname = id
	}
	shm := "size=64m"
	if s.Limits.MemoryMB > 0 {
		shm = "size=" + strconv.Itoa(max(1, s.Limits.MemoryMB/2)) + "m"
	}
	oci := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			User: specs.User{UID: 0, GID: 0},
			Args: append([]string{agentPath}, s.Agent.Args[1:]...),
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"HOME=/",
				"LANG=C.UTF-8",
			},
			Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding:  agentCaps,
				Effective: agentCaps,
				Permitted: agentCaps,
			},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: 4096, Hard: 1 << 20},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
			NoNewPrivileges: true,
		},
		Root:     &specs.Root{Path: root.path},
		Hostname: hostname,
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", shm}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
			},
		},
	}
	if s.Limits.MemoryMB > 0 {
		limit := int64(s.Limits.MemoryMB) << 20
		oci.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	}
	if s.Limits.PIDs > 0 {
		n := uint64(s.Limits.PIDs + agentThreads)
		oci.Process.Rlimits = append(oci.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: n, Hard: n})
	}
	if root.images != nil {
		oci.Mounts = append(oci.Mounts, agentMount)
	}
	for _, m := range volumes.list {
		options := []string{"rbind", "nosuid", "nodev", "rw"}
		if m.ReadOnly {
			options[3] = "ro"
		}
		if volumes.beside(m) {
			options = besideOptions(m.Host, options)
		}
		mount := specs.Mount{Destination: m.Guest, Type: "bind", Source: m.Host, Options: options}
		if m.tree != nil {
			// Not read by anyone, but with it the gofer asks for the mount.
			mount.UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
			mount.GIDMappings = mount.UIDMappings
		}
		oci.Mounts = append(oci.Mounts, mount)
	}
	oci.Annotations = volumes.annotations()
	return oci
}

// mountConfs says, in gVisor's words, how the root and the volumes are backed:
// the root by its directory or image below a writable layer of limited size in a
// file, the agent beside an image by another, the volumes by their directories. A volume
// that the process does not serve is nothing to it.
func mountConfs(s *engine.Spec, root *tree, serves func(int) bool) string {
	confs := "lisafs:anon"
	if root.images != nil {
		confs = "erofs:anon"
	}
	if s.Limits.DiskMB > 0 {
		confs += ":size=" + strconv.Itoa(s.Limits.DiskMB) + "m"
	}
	if root.images != nil {
		confs += ",erofs:none"
	}
	return confs + volumeConfs(s, serves)
}

// volumeConfs is the part of mountConfs about volumes.
func volumeConfs(s *engine.Spec, serves func(int) bool) (confs string) {
	for i := range s.Mounts {
		if serves(i) {
			confs += ",lisafs:none"
		} else {
			confs += "," + notServed
		}
	}
	return confs
}

// visibleMemory is how many bytes of memory a guest sees.
func visibleMemory(l engine.Limits) uint64 {
	if l.MemoryMB > 0 {
		return uint64(l.MemoryMB) << 20
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30 // never fails on Linux
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// memFile returns a file in memory that holds v as JSON.
func memFile(name string, v any) (*os.File, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make file for %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return f, nil
}
