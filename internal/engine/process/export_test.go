package process

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// Forget removes the mark from all processes of g but the agent, so that the
// engine does not find them.
func Forget(g engine.Guest) {
	guest := g.(*handle)
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
	guest, ok := g.(*handle)
	if !ok {
		return errors.New("not a guest of this package")
	}
	return unix.Kill(guest.cmd.Process.Pid, sig)
}
