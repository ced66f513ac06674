package process

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// Forget makes the engine blind for all processes of g but the agent, as one is
// that does not know what a guest has started.
func Forget(g engine.Guest) {
	guest := g.(*guest)
	for _, m := range guest.family.members() {
		if m.pid != guest.cmd.Process.Pid {
			var limit unix.Rlimit
			unix.Prlimit(m.pid, rlimitLocks, nil, &limit)
			limit.Cur = 1
			unix.Prlimit(m.pid, rlimitLocks, &limit, nil)
		}
	}
}

// SignalAgent sends a signal to the agent of g alone.
func SignalAgent(g engine.Guest, sig unix.Signal) error {
	guest, ok := g.(*guest)
	if !ok {
		return errors.New("no guest")
	}
	return unix.Kill(guest.cmd.Process.Pid, sig)
}
