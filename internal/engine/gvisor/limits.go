//go:build linux && (amd64 || arm64)

package gvisor

import "github.com/glovebox-dev/glovebox/engine"

const (
	// memoryOverhead is what gVisor itself may need beside the guest's memory: the
	// sentry, the gofer, page tables, pipes.
	memoryOverhead = 256 << 20
	// agentThreads is how many threads each user of a guest may have beyond the
	// limit, so that the agent has room within it. The agent holds the code that it
	// runs to the limit itself.
	agentThreads = 32
	// threadOverhead is how many host threads a guest without processes may have.
	threadOverhead = 256
	// threadsPerPID is how many host threads one guest thread may cost.
	threadsPerPID = 4
)

// hostMemory is how many bytes all processes of a guest may take on the host, 0
// for no limit. A quarter more than the guest's own limit covers the files it has in
// memory.
func hostMemory(l engine.Limits) int64 {
	if l.MemoryMB == 0 {
		return 0
	}
	m := int64(l.MemoryMB) << 20
	return m + m/4 + memoryOverhead
}

// hostThreads is how many threads all processes of a guest may have on the host,
// 0 for no limit.
func hostThreads(l engine.Limits) int {
	if l.PIDs == 0 {
		return 0
	}
	return threadOverhead + threadsPerPID*l.PIDs
}

// limits says how each limit is held. noGroups is why groups is nil.
func limits(groups *cgroups, noGroups error) []engine.Limit {
	disk := engine.Limit{Resource: "disk", Hard: true, By: "sentry: size of the writable layer"}
	pids := engine.Limit{Resource: "pids", Hard: true, By: "sentry: number of processes of each user"}
	if groups == nil {
		why := noGroups.Error()
		return []engine.Limit{
			{Resource: "cpu", By: "CPU affinity of its programs; gVisor's own work is not limited", Why: why},
			{Resource: "memory", By: "watcher", Why: why},
			disk, pids,
		}
	}
	by := "cgroup v1"
	if groups.v2 {
		by = "cgroup v2"
	}
	return []engine.Limit{
		{Resource: "cpu", Hard: true, By: by},
		{Resource: "memory", Hard: true, By: by},
		disk, pids,
	}
}
