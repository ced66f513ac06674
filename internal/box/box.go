package box

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/glovebox-dev/glovebox/internal/box/callqueue"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// Box is one box. All methods may be called concurrently. Once the box has
// ended, every call returns CodeGone with the reason.
type Box struct {
	spec
	env  *env
	reg  *registry
	life *lifecycle

	guestID  string              // of the machine to be; another one's if the pool gave it
	commands *callqueue.Queue    // commands and file calls
	callLock *semaphore.Weighted // held by calls, one unit each, or exclusively for fork and snapshot
	writing  sync.Mutex          // held while the box is written to disk; before reg.mu
	power    power               // pauses and resumes the machine

	startCtx    context.Context // of the start
	cancelStart context.CancelCauseFunc
	ready       chan struct{} // closed when the start has succeeded or failed
	startErr    error         // of the start; read after ready
	aborted     chan struct{} // closed when calls in flight are aborted: at the latest when the box has left memory

	executed    atomic.Bool  // code or a command has run
	activeCalls atomic.Int32 // calls that are past their queues
	parked      atomic.Int32 // of these, runs that are parked

	ranNoted     atomic.Bool // other servers know that code has run, or are being told
	networkNoted atomic.Bool // a result had the note that boxes have no network
	frozenNoted  atomic.Bool // a result had the note about volumes over their quota
	modulesNoted atomic.Bool // a result had the note about libraries

	// guarded by reg.mu
	state          state
	waits          bool // its start waits for room: it is in registry.waiting
	noted          bool // its record has been written down for other servers, or is being
	startedMachine      // once it has started
	hasStarted     bool
	unloadDone     chan struct{} // closed when the box has left memory or, since it could not be written, stays; then there is a new one
	died           *Tombstone    // how its guest ended while the box was hibernating
	tomb           *Tombstone    // why it takes no calls: it ended or, while it is being hibernated, ReasonHibernated; nil: it takes calls, or its start was abandoned or failed
	recordStays    bool          // the next call on its id wakes it, from its record on disk
	report         *report       // how it came into memory; nil: a call has delivered that
	undelivered    *Undelivered  // what calls did whose clients got no answer; nil: nothing, or a call has delivered it
	undeliveredBy  *pin          // of the call that is about to deliver it; nil: none
	idUnknown      bool          // no answer has named the id to a client
	use            use
	kernels        map[string]*kernel // by language
	disk           diskState
	idle           idleState
	quotaDetail    string // why ReviseVolumes has tried to hibernate it; empty: it has not
}

// spec describes a box to make. It does not change.
type spec struct {
	key         key
	name        string
	desc        string
	interpreter Interpreter
	template    string // the named template that it came from; "": a built-in one
	flavor      Flavor
	limits      snapshot.NetLimits // of its network
	created     time.Time          // zero: now
	origin      origin
	chosen      bool // a client chose the id, so that another server may have a box of that id
	untold      bool // only an answer tells the client the id
}

// use counts the users of a box, and has the time of its last use.
type use struct {
	lastUsed time.Time
	seq      uint64        // order of the last use among all boxes
	calls    int           // in flight, queued ones included
	begun    time.Time     // when the first of those in flight began
	worked   time.Duration // in which calls were in flight, since the box was written
	called   bool          // there has been one
	pins     []*pin        // of callers that are about to call, the oldest first
	drainers int           // callers of drainBoxLocked
	noCalls  chan struct{} // not nil while draining; closed when calls is 0

	drainedFrom state // the state before draining
	replacing   bool  // it is being rolled back
}

// newBox returns a box that is not in the registry yet. It is hibernated if sp has a
// record.
func (l *lifecycle) newBox(sp spec) *Box {
	if sp.created.IsZero() {
		sp.created = l.now()
	}
	b := &Box{
		spec: sp, idUnknown: sp.untold, env: l.env, reg: l.reg, life: l,
		guestID: newGuestID(), startedMachine: startedMachine{maker: l.parts.Machines},
		callLock: semaphore.NewWeighted(allCalls), commands: callqueue.New(l.cfg().ParallelCalls, l.cfg().QueueLen),
		kernels: map[string]*kernel{},
		ready:   make(chan struct{}), aborted: make(chan struct{}), unloadDone: make(chan struct{}),
	}
	if sp.origin.record != nil {
		b.state = stateHibernated
	}
	if sp.origin.adopted != nil {
		b.guestID = sp.origin.adopted.State.ID
		b.ranNoted.Store(sp.origin.ran)
	}
	b.startCtx, b.cancelStart = context.WithCancelCause(l.base)
	return b
}

func newGuestID() string { return "box-" + uuid.NewString() }

// abortCalls ends the calls in flight. The caller holds the registry's lock.
func (b *Box) abortCalls() {
	select {
	case <-b.aborted:
	default:
		close(b.aborted)
	}
}

// kernel is the host's view of one interpreter in a box.
type kernel struct {
	runs *callqueue.Queue // one run at a time
	ran  atomic.Bool      // something ran, so that there is state to lose; set while it has the queue
}

// ID returns the id of the session or context.
func (b *Box) ID() string { return b.key.id }

// Info describes the box now.
func (b *Box) Info() Info {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	return b.infoLocked()
}

func (b *Box) infoLocked() Info {
	return Info{
		ID: b.key.id, Kind: b.key.kind, Owner: b.key.owner, Name: b.name, Description: b.desc,
		Interpreter: b.interpreter, Template: b.template, Language: b.interpreter.Language(), Flavor: b.flavor, Limits: b.limits,
		State: b.stateLocked(), Created: b.created, LastUsed: b.use.lastUsed, Source: b.source,
	}
}

// stateLocked returns the state that clients see.
func (b *Box) stateLocked() State {
	switch b.state {
	case stateNew, stateStarting, stateWaking:
		return StateCreating
	case stateReady:
		return StateReady
	case stateRunning, stateDraining:
		return StateRunning
	case statePaused:
		return StatePaused
	}
	if b.recordStays {
		return StateHibernated
	}
	if b.tomb != nil && b.tomb.Reason.failure() {
		return StateError
	}
	return StateStopped
}

// evictableLocked reports whether the box may leave memory: no call is in flight or about
// to begin, and writing it to disk has not failed just now.
func (b *Box) evictableLocked() bool {
	return (b.state == stateReady || b.state == statePaused) && len(b.use.pins) == 0 && !b.writeBackoffLocked()
}

// begin counts a call into the box, which may have to wait for others before its work
// begins. The caller must call end once if it gets no error.
func (b *Box) begin(ctx context.Context, op string) (end func(), err error) {
	if err := b.reg.beginCall(ctx, op, b); err != nil {
		return nil, err
	}
	return func() {
		b.reg.endCall(b)
		b.life.maintainer.callEnded(b)
	}, nil
}

// slot is begin and resumeForCall for a call beside the kernels: at most Config.ParallelCalls run
// at once.
func (b *Box) slot(ctx context.Context, op string) (end func(), err error) {
	ended, err := b.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := b.commands.Enter(ctx, b.aborted); err != nil {
		ended()
		return nil, b.queueError(op, err)
	}
	if err := b.callLock.Acquire(ctx, 1); err != nil {
		b.commands.Leave()
		ended()
		return nil, b.cancelled(op, context.Cause(ctx))
	}
	endWork, err := b.resumeForCall(ctx, op)
	if err != nil {
		b.callLock.Release(1)
		b.commands.Leave()
		ended()
		return nil, err
	}
	return func() { endWork(); b.callLock.Release(1); b.commands.Leave(); ended() }, nil
}

// allCalls is more calls than a box can have under way.
const allCalls = 1 << 20

// exclusively calls do with the box's machine while no call is in flight in it. New
// calls wait meanwhile.
func (b *Box) exclusively(ctx context.Context, op string, do func(context.Context, *machine.Machine) error) error {
	end, err := b.begin(ctx, op)
	if err != nil {
		return err
	}
	defer end()
	if err := b.callLock.Acquire(ctx, allCalls); err != nil {
		return b.cancelled(op, context.Cause(ctx))
	}
	defer b.callLock.Release(allCalls)
	endWork, err := b.resumeForCall(ctx, op)
	if err != nil {
		return err
	}
	defer endWork()
	return do(ctx, b.machine)
}

// kernel returns the host's view of a language's interpreter.
func (b *Box) kernel(language string) *kernel {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	k := b.kernels[language]
	if k == nil {
		k = &kernel{runs: callqueue.New(1, b.env.cfg().QueueLen)}
		k.ran.Store(b.ran && language == b.interpreter.Language())
		b.kernels[language] = k
	}
	return k
}

// ranLocked reports whether code has run in the box's own interpreter, on this server or
// an earlier one, and its loss was not reported yet.
func (b *Box) ranLocked() bool {
	if k := b.kernels[b.interpreter.Language()]; k != nil {
		return k.ran.Load()
	}
	return b.ran
}
