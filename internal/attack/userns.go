//go:build linux

package attack

import (
	"context"
	"os"
	"time"
)

func usernsClass() class {
	return class{
		name:  "userns",
		about: "User code enters user namespaces, has every capability in them, and uses what is behind them.",
		attacks: []Attack{
			{Name: "all-capabilities", Claim: "every capability in a namespace opens nothing of the host", run: script("all_capabilities", shape{})},
			{Name: "mount-over-proc", Claim: "mounts over the box's own files do not confuse the agent", run: script("mount_over_proc", shape{})},
			{Name: "remount-writable", Claim: "read-only files of the host stay read-only after a remount (CVE-2026-46695)", run: script("remount_writable", shape{})},
			{Name: "overlay", Claim: "an overlay over the host's files writes nothing to the host", run: script("overlay", shape{})},
			{Name: "fuse", Claim: "a FUSE server that never answers holds up nothing", run: script("fuse", shape{})},
			{Name: "packet-sockets", Claim: "packet sockets in a new network namespace reach nothing", run: script("packet_sockets", shape{})},
			{Name: "network-devices", Claim: "making virtual network devices harms no other box and not the host", run: script("network_devices", shape{})},
			{Name: "nftables", Claim: "messages to nftables and iptables harm no other box and not the host", run: script("nftables", shape{})},
			{Name: "cgroups", Claim: "cgroups mounted in a namespace are not the host's", run: script("cgroups", shape{})},
			{Name: "ptrace-agent", Claim: "capabilities in a namespace give no power over the agent", run: script("ptrace_agent", shape{})},
			{Name: "nested", Claim: "nesting of user namespaces is bounded", run: script("nested", shape{})},
			{Name: "many", Claim: "many namespaces at once do not exhaust the box or the host", run: fatal("many_namespaces")},
			{Name: "new-proc", Claim: "a newly mounted proc shows nothing of the host", run: script("new_proc", shape{})},
			{Name: "new-sysfs", Claim: "a newly mounted sysfs shows nothing of the host", run: script("new_sysfs", shape{})},
			{Name: "device-nodes", Claim: "device nodes made in a namespace open no device of the host", run: script("device_nodes", shape{})},
			{Name: "file-systems", Claim: "images of disk and network file systems are not parsed", run: script("file_systems", shape{})},
			{Name: "host-name", Claim: "the host keeps its name", run: usernsHostName},
			{Name: "clock", Claim: "the clock of the host cannot be set", run: usernsClock},
			{Name: "kernel-code", Claim: "modules, bpf and perf stay refused in a namespace", run: script("kernel_code", shape{})},
			{Name: "processes", Claim: "the limit of processes holds after raising every rlimit in a namespace", run: script("raise_limits", shape{})},
			{Name: "tmpfs", Claim: "a large tmpfs in a namespace counts as memory of the box", Alone: true, run: memoryAttack("fill_tmpfs")},
			{Name: "disk", Claim: "the limit of disk holds in a namespace", Alone: true, run: script("fill_disk", shape{})},
		},
	}
}

func usernsHostName(ctx context.Context, t *trial) error {
	before, err := os.Hostname()
	if err != nil {
		return err
	}
	err = script("host_name", shape{})(ctx, t)
	after, _ := os.Hostname() // empty if it fails, which the check notices
	t.check(after == before, "the host's name was changed from %q to %q", before, after)
	return err
}

// usernsClock compares the wall clock with the monotonic clock.
func usernsClock(ctx context.Context, t *trial) error {
	start := time.Now()
	err := script("clock", shape{})(ctx, t)
	monotonic, wall := time.Since(start), time.Now().Round(0).Sub(start.Round(0))
	drift := (wall - monotonic).Abs()
	t.check(drift < time.Hour, "the host's clock moved by %v", drift)
	return err
}
