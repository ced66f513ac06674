package approval

import (
	"slices"
	"time"
)

// A Waiting says what programs in a box wait for.
type Waiting struct {
	Tools []string      // SERVER.TOOL, in order and safe to show, at most maxWaiting
	More  int           // tools that Tools leaves out
	Left  time.Duration // until the question expires and the program goes on
	// Recallable says that the request which began the program asks again if it is repeated; see
	// [Approver.Recall].
	Recallable bool
	Task       bool // a task has the question
}

// maxWaiting bounds the tools in a Waiting.
const maxWaiting = 3

// Waiting returns what the programs of an owner in a box wait for; ok is false if none waits for
// approval.
func (a *Approver) Waiting(owner, box string) (w Waiting, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := range a.runs {
		if r.caller.Owner != owner {
			continue
		}
		calls := slices.Clone(r.pending)
		left := a.o.Expiry
		if r.open != nil {
			left = time.Until(r.open.until)
			calls = append(slices.Concat(r.open.groups...), calls...)
		}
		found := false
		for _, p := range calls {
			if p.Box == box && !p.decided {
				found = true
				w.add(p)
			}
		}
		if found && (!ok || left < w.Left) {
			w.Left = left
			w.Task = r.caller.Task
			w.Recallable = r.open != nil && a.byToken[r.open.token] == r.open && r.open.recallableLocked()
		}
		ok = ok || found
	}
	slices.Sort(w.Tools)
	return w, ok
}

func (w *Waiting) add(p *pendingCall) {
	server, _ := serverName.show(p.Server)
	tool, _ := toolName.show(p.Tool)
	switch name := server + "." + tool; {
	case slices.Contains(w.Tools, name):
	case len(w.Tools) < maxWaiting:
		w.Tools = append(w.Tools, name)
	default:
		w.More++
	}
}
