package box

import (
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// state is where a box is in its life. Only registry.setState changes it.
type state uint8

const (
	stateNew         state = iota // described, and not in the registry yet
	stateStarting                 // its machine is being made
	stateWaking                   // its machine is being restored from its record
	stateReady                    // no call is in flight
	stateRunning                  // calls are in flight
	stateDraining                 // a stop or rollback waits for the calls in flight, or a rollback is under way; new calls are refused
	statePaused                   // its machine is paused, or about to be
	stateHibernating              // it is being written to disk, and leaves memory
	stateEnding                   // it has ended; its machine is being freed
	stateHibernated               // on disk only; the next call wakes it
	stateGone                     // nothing is left
	numStates
)

var stateNames = [numStates]string{
	"new", "starting", "waking", "ready", "running", "draining", "paused", "hibernating", "ending", "hibernated", "gone",
}

func (s state) String() string { return stateNames[s] }

// transitions are all changes of state that there are, with their causes.
// docs/architecture.md draws this table.
var transitions = []struct {
	from, to state
	cause    string
}{
	{stateNew, stateStarting, "admitted"},
	{stateNew, stateReady, "takes the place of a box that is rolled back"},
	{stateHibernated, stateWaking, "call on its id"},
	{stateStarting, stateReady, "machine made"},
	{stateStarting, stateEnding, "start failed, abandoned or stopped"},
	{stateWaking, stateReady, "machine restored"},
	{stateWaking, stateEnding, "start failed, abandoned or stopped"},
	{stateReady, stateRunning, "call begins"},
	{stateReady, statePaused, "idle"},
	{stateReady, stateDraining, "stop or rollback begins"},
	{stateReady, stateHibernating, "idle timeout, eviction or shutdown"},
	{stateReady, stateEnding, "stop or crash"},
	{stateRunning, stateReady, "last call ends"},
	{stateRunning, stateDraining, "stop or rollback waits for calls"},
	{stateRunning, stateHibernating, "shutdown or a quota cuts off calls"},
	{stateRunning, stateEnding, "stop or crash"},
	{stateDraining, stateRunning, "stop or rollback gives up waiting"},
	{stateDraining, stateReady, "stop or rollback gives up, no call is left"},
	{stateDraining, statePaused, "rollback gives up, the box was paused"},
	{stateDraining, stateHibernating, "shutdown or a quota cuts off calls"},
	{stateDraining, stateEnding, "stop, rollback or crash"},
	{statePaused, stateReady, "pausing failed, or the disk has nothing of it any more"},
	{statePaused, stateRunning, "call begins and resumes it"},
	{statePaused, stateDraining, "stop or rollback begins"},
	{statePaused, stateHibernating, "idle timeout, eviction or shutdown"},
	{statePaused, stateEnding, "stop or crash"},
	{stateHibernating, stateHibernated, "written to disk"},
	{stateHibernating, stateReady, "writing failed; tried again later"},
	{stateHibernating, statePaused, "writing failed; tried again later"},
	{stateHibernating, stateEnding, "writing failed at shutdown, and nothing was written before"},
	{stateEnding, stateHibernated, "an earlier state is on disk"},
	{stateEnding, stateGone, "freed"},
}

// successors has a bit for each state that may follow.
var successors = func() (next [numStates]uint16) {
	for _, t := range transitions {
		next[t.from] |= 1 << t.to
	}
	return next
}()

func (s state) mayBecome(to state) bool { return successors[s]&(1<<to) != 0 }

// starting reports whether the machine is being made or restored.
func (s state) starting() bool { return s == stateStarting || s == stateWaking }

// live reports whether the box can be found in memory.
func (s state) live() bool { return s >= stateStarting && s <= statePaused }

// freeing reports whether the box has ended and still has resources to free.
func (s state) freeing() bool { return s == stateHibernating || s == stateEnding }

// final reports whether nothing of the box is left in memory.
func (s state) final() bool { return s == stateHibernated || s == stateGone }

// panicOnInvalidTransition is set by tests.
var panicOnInvalidTransition bool

// setState changes the state of a box: it enters the box into the registry or
// removes it, and wakes the waiters for the change. A change that is not in the
// table is a programming error. setState refuses it and logs it: the one box may stay
// behind, but the boxes of all others live on. The caller holds mu.
func (r *registry) setState(b *Box, to state) {
	from := b.state
	if !from.mayBecome(to) {
		err := fmt.Errorf("box %q cannot become %v when it is %v", b.key.id, to, from)
		if panicOnInvalidTransition {
			panic(err)
		}
		if r.phase != phaseClosed {
			// In a goroutine: the caller holds mu, and a log may block.
			r.wg.Go(func() { r.log.Error("refused a change of a box's state; please report this", logkey.Error, err) })
		}
		return
	}
	b.state = to
	switch {
	case to.live() && from == stateHibernating:
		delete(r.freeing, b)
		r.boxes[b.key] = b
		close(b.unloadDone)
		b.unloadDone = make(chan struct{})
	case to.live() && !from.live():
		r.boxes[b.key] = b
	case to.freeing() && from.live():
		delete(r.boxes, b.key)
		r.freeing[b] = struct{}{}
	case to.final():
		delete(r.freeing, b)
		close(b.unloadDone)
	}
	// An idle box that is being hibernated may stay.
	if idle := from == stateReady || from == statePaused; to.final() || to.freeing() && !(to == stateHibernating && idle) {
		b.abortCalls()
	}
	switch {
	case to == stateReady && (from.starting() || from == stateNew):
		b.hasStarted = true
		close(b.ready)
	case to.final() && !b.hasStarted:
		close(b.ready)
	}
	if to == stateReady || !to.live() || from == stateHibernating {
		r.changed.broadcast()
	}
	if r.onTransition != nil {
		r.onTransition(b, from, to)
	}
}
