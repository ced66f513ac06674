package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// maxAncestors bounds the search for a process among the ancestors of another.
const maxAncestors = 64

var (
	errNoDescendant = errors.New("the run did not start it")
	errStartedEarly = errors.New("it started before the run")
	errReplaced     = errors.New("it has ended, and another process has its id")
)

// processID identifies a process, now and after it has ended.
type processID struct {
	pid     int
	started int64 // in ticks of the system's clock
}

// identify returns the identity of the process that has an id now.
func identify(pid int) (processID, error) {
	_, started, err := processStatus(pid)
	return processID{pid, started}, err
}

// processTable holds the start of each process by its id, in ticks of the system's
// clock. Both together identify a process: ids are used again, but in sequence, and a
// tick is too short to start all others.
type processTable map[int]int64

// existingProcesses returns the processes that exist now.
func existingProcesses() (processTable, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := make(processTable)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if _, started, err := processStatus(pid); err == nil { // otherwise it has ended
			all[pid] = started
		}
	}
	return all, nil
}

// descends returns nil if p is leader, or a process that descends from it through
// processes none of which is in earlier. A process whose parent has ended belongs to the
// agent, so it does not descend.
func descends(p, leader processID, earlier processTable) error {
	return descendsFrom(p, leader, earlier, os.Getpid())
}

// descendsFrom is descends of an agent with that id.
func descendsFrom(p, leader processID, earlier processTable, agent int) error {
	pid := p.pid
	for range maxAncestors {
		if pid <= 1 || pid == agent {
			return errNoDescendant
		}
		parent, started, err := processStatus(pid)
		switch {
		case err != nil:
			return err
		case pid == p.pid && started != p.started:
			return errReplaced
		case pid == leader.pid && started == leader.started:
			return nil
		case pid == leader.pid:
			return errNoDescendant
		}
		if at, existed := earlier[pid]; existed && at == started {
			return errStartedEarly
		}
		pid = parent
	}
	return errNoDescendant
}

// processStatus returns the parent and the start of a process.
func processStatus(pid int) (parent int, started int64, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, errNoDescendant // it has ended
	}
	return parseStat(b)
}

// parseStat parses the stat file of a process. Its second field, the name, may contain
// anything.
func parseStat(b []byte) (parent int, started int64, err error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("parse status of a process: %d fields", len(f))
	}
	if parent, err = strconv.Atoi(string(f[1])); err == nil {
		started, err = strconv.ParseInt(string(f[19]), 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("parse status of a process: %w", err)
	}
	return parent, started, nil
}
