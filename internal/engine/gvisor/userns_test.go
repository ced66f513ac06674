//go:build linux && (amd64 || arm64)

package gvisor

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestLimits_InUserNamespace: user code can give itself all capabilities in a user
// namespace inside the guest. No limit may depend on their absence.
func TestLimits_InUserNamespace(t *testing.T) {
	e := open(t)
	spec := newSpec(t)
	spec.Limits = engine.Limits{CPUs: 1, MemoryMB: 128, DiskMB: 20, PIDs: 64}
	b := create(t, e, "limited", spec)
	inside := func(script string) string {
		t.Helper()
		return b.ask(t, "shu unshare -Urmn sh -c '"+script+"' 2>&1")
	}
	if got := inside("grep CapEff /proc/self/status; id -u"); !strings.Contains(got, "ffffffffff\n0\n") {
		t.Fatalf("the user does not get the capabilities that this test is about: %s", got)
	}
	if got := inside("mount -t tmpfs none /var/tmp && echo mounted"); !strings.Contains(got, "mounted") {
		t.Fatalf("the user cannot mount: %s", got)
	}

	for _, c := range []struct{ name, script, want, unwanted string }{
		{"descriptors", "ulimit -Hn 2000000 && echo raised", "", "raised"},
		{"descriptors of all", "echo 2000000 > /proc/sys/fs/nr_open && echo raised", "", "raised"},
		{
			"processes, by another limit",
			"prlimit --nproc=unlimited:unlimited true && echo raised", "", "raised",
		},
		{
			"control groups",
			"cd /sys/fs/cgroup && for f in $(find . -name pids.max -o -name memory.max -o -name cpu.max -o -name memory.limit_in_bytes); do echo max > $f && echo raised; done",
			"", "raised",
		},
		{
			"control groups, mounted anew",
			"mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg || mount -t cgroup -o pids none /tmp/cg; for f in $(find /tmp/cg -name pids.max); do echo max > $f && echo raised; done",
			"", "raised",
		},
		{"disk", "head -c 41943040 /dev/zero > /tmp/big; rm /tmp/big", "No space left", ""},
		{"disk, remounted", "mount -o remount,size=1g /; head -c 41943040 /dev/zero > /tmp/big; rm /tmp/big", "No space left", ""},
		{
			"disk, on an overlay",
			"mkdir /tmp/u /tmp/w /tmp/m; mount -t overlay none -o lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/w /tmp/m; head -c 41943040 /dev/zero > /tmp/m/big; rm -r /tmp/u /tmp/w",
			"No space left", "",
		},
		{"processors", "nproc; taskset -p ffffffff $$; nproc", "", ""},
		{ // the last one: they stay
			"processes",
			"i=0; while [ $i -lt 200 ]; do sleep 1000 > /dev/null 2>&1 & i=$((i+1)); done; echo all",
			"annot fork", "all",
		},
	} {
		got := inside(c.script)
		if !strings.Contains(got, c.want) || c.unwanted != "" && strings.Contains(got, c.unwanted) {
			t.Errorf("%s: got %q, want %q and not %q", c.name, got, c.want, c.unwanted)
		}
	}

	// Processors: as many as before, on the host.
	g := b.Guest.(*guest)
	if len(g.cpus) > 0 {
		for _, pid := range descendants(g.sentry.Process.Pid)[1:] {
			var set unix.CPUSet
			if err := unix.SchedGetaffinity(pid, &set); err == nil && set.Count() != len(g.cpus) {
				t.Errorf("process %d of the guest may run on %d processors, want %d", pid, set.Count(), len(g.cpus))
			}
		}
	}

	// Memory, in a guest that can start processes.
	b = create(t, e, "eater", spec)
	got, err := b.try("shu unshare -Urmn sh -c 'mount -t tmpfs -o size=4g none /var/tmp; head -c 1500000000 /dev/zero > /var/tmp/big; wc -c /var/tmp/big' 2>&1")
	if err == nil {
		t.Errorf("a tmpfs of the user's holds %q, the memory limit is %d MiB", got, spec.Limits.MemoryMB)
		return
	}
	if exit := wait(t, b); exit.Reason != engine.ExitOOM {
		t.Errorf("exit: got %+v, want the reason %s", exit, engine.ExitOOM)
	}
}
