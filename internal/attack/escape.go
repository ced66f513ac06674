//go:build linux

package attack

import (
	"context"
	"os"
	"strings"
)

func escapeClass() class {
	return class{
		name:  "escape",
		about: "Escapes that worked on other sandboxes: the scenarios of SandboxEscapeBench and known vulnerabilities.",
		attacks: []Attack{
			{Name: "docker-socket", Claim: "no container runtime can be asked for a privileged container", run: script("docker_socket", shape{asAgent: true})},
			{Name: "core-pattern", Claim: "the host's core_pattern is neither writable nor visible", run: corePattern},
			{Name: "kernel-helpers", Claim: "modprobe, uevent_helper, sysrq and binfmt_misc cannot be written", run: script("kernel_helpers", shape{})},
			{Name: "sysctl", Claim: "no setting of the kernel can be opened for writing", run: script("sysctl_sweep", shape{})},
			{Name: "release-agent", Claim: "cgroups cannot be mounted, and no release_agent can be written (CVE-2022-0492)", run: script("release_agent", shape{})},
			{Name: "own-cgroup", Claim: "a box cannot change its own limits", run: script("own_cgroup", shape{})},
			{Name: "block-devices", Claim: "disks of the host cannot be opened", run: script("block_devices", shape{asAgent: true})},
			{Name: "character-devices", Claim: "memory, kernel log and virtualization devices cannot be opened", run: script("character_devices", shape{asAgent: true})},
			{Name: "capabilities", Claim: "user code has no capabilities and cannot become another user", run: script("capabilities", shape{})},
			{Name: "setuid-programs", Claim: "setuid programs give no privileges", run: script("setuid_programs", shape{})},
			{Name: "kernel-modules", Claim: "modules and kernels cannot be loaded", run: script("kernel_modules", shape{asAgent: true})},
			{Name: "dangerous-calls", Claim: "bpf, perf, userfaultfd, io_uring, keyrings and similar calls are refused", run: script("dangerous_calls", shape{})},
			{Name: "clock", Claim: "the clock cannot be set", run: script("clock", shape{})},
			{Name: "host-name", Claim: "the host name cannot be set", run: hostName},
			{Name: "mounts", Claim: "user code cannot mount, remount or change the root", run: script("mounts", shape{})},
			{Name: "mounts-as-agent", Claim: "mounts by a compromised agent do not reach the host", run: script("remount_as_root", shape{asAgent: true})},
			{Name: "namespaces", Claim: "user code cannot enter namespaces of other processes", run: script("other_namespaces", shape{})},
			{Name: "ptrace-agent", Claim: "user code cannot trace, read or signal the agent", run: script("ptrace_agent", shape{})},
			{Name: "steal-descriptors", Claim: "user code cannot take descriptors of the agent", run: script("steal_descriptors", shape{})},
			{Name: "inherited-descriptors", Claim: "no descriptor of the host is inherited (CVE-2024-21626)", run: script("inherited_descriptors", shape{})},
			{Name: "overwrite-runtime", Claim: "neither agent nor runtime can be overwritten through /proc (CVE-2019-5736)", run: script("overwrite_runtime", shape{})},
			{Name: "masked-paths", Claim: "/dev/null cannot be replaced (CVE-2025-31133)", run: script("masked_paths", shape{})},
			{Name: "console-mount", Claim: "/dev/console and /dev/pts cannot be replaced (CVE-2025-52565)", run: script("console_mount", shape{})},
			{Name: "misdirected-writes", Claim: "writes to /proc cannot be misdirected (CVE-2025-52881)", run: script("misdirected_writes", shape{})},
			{Name: "dirty-pipe", Claim: "a read-only file cannot be changed through a pipe (CVE-2022-0847)", run: script("dirty_pipe", shape{})},
			{Name: "dirty-cow", Claim: "a read-only file cannot be changed through a private mapping (CVE-2016-5195)", run: script("dirty_cow", shape{})},
			{Name: "vdso", Claim: "pages of the kernel are not shared with the host", run: script("vdso", shape{})},
			{Name: "file-handles", Claim: "files of the host cannot be opened by handle", run: script("file_handles", shape{asAgent: true})},
			{Name: "parent-directories", Claim: "nothing above the root can be reached from moved or removed directories", run: script("parent_directories", shape{})},
			{Name: "magic-links", Claim: "links in /proc lead to nothing of the host", run: script("magic_links", shape{asAgent: true})},
			{Name: "subpath-race", Claim: "swapping a directory for a link leads to nothing of the host (CVE-2017-1002101, CVE-2021-25741)", run: script("subpath_race", shape{})},
			{Name: "loader-variables", Claim: "files of the loader cannot be written, and its variables do not affect the next command", run: script("loader_variables", shape{})},
			{Name: "random-calls", Claim: "random system calls end at most the box", Alone: true, run: fatal("random_calls")},
		},
	}
}

// corePattern compares the pattern that the box sees with the host's.
func corePattern(ctx context.Context, t *trial) error {
	got, err := t.values(ctx, "core_pattern", shape{})
	if err != nil {
		return err
	}
	host, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if inside := got["core_pattern"]; err == nil && inside != "" && strings.TrimSpace(string(host)) != "core" {
		t.check(inside != strings.TrimSpace(string(host)), "the host's core_pattern is visible: %q", inside)
	}
	return nil
}

// hostName looks at the host's name afterwards.
func hostName(ctx context.Context, t *trial) error {
	before, err := os.Hostname()
	if err != nil {
		return err
	}
	_, err = t.values(ctx, "host_name", shape{})
	after, _ := os.Hostname() // empty if it fails, which the check notices
	t.check(after == before, "the host's name was changed from %q to %q", before, after)
	return err
}
