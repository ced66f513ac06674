package box

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// Box is one box. All methods may be called concurrently. Once the box has
// ended, every call returns CodeGone with the reason.
type Box struct {
	m        *Manager
	key      key
	guestID  string // of the machine to be; another one's if the pool gave it
	name     string
	desc     string
	template Template
	flavor   Flavor
	created  time.Time
	origin   origin
	chosen   bool                // a client chose the id, so that another server may have a box of that id
	slots    *callQueue          // commands and file calls
	callLock *semaphore.Weighted // 1 per call, allCalls for who wants the box to stand still
	writing  sync.Mutex          // held while the box is written to disk; before m.mu
	power    sync.Mutex          // held while the machine is paused or resumed; before m.mu

	boot       context.Context // of the start
	cancelBoot context.CancelCauseFunc
	ready      chan struct{} // closed when the start has ended
	startErr   error         // of the start; read after ready
	terminated chan struct{} // closed when the box has ended
	freed      chan struct{} // closed when nothing is left of it

	networkNoted atomic.Bool // a result had the note that boxes have no network

	// guarded by m.mu
	machine     *machine.Machine // nil until started
	maker       *machine.Maker   // what made the machine: the box's image
	rescued     *Rescue          // what it could not bring along; nil: nothing is missing
	source      Source           // how the machine came to be
	claim       *snapshot.Lease  // its record on disk; nil if there is none
	paused      bool             // also guarded by power
	maintaining bool             // rest is at work
	savedUse    uint64           // the use after which the box was written to disk; 0: never
	saveTook    time.Duration    // how long the last write took
	savedAt     time.Time        // when that was, or when the box was made
	called      bool             // it has been called, here
	early       bool             // it was written soon after its first call, or tried to be
	load        load             // what it computed at a look since the last call
	tomb        *Tombstone       // nil while it lives

	recordStays bool // it has ended, and its record stays for the next call
	lastUsed    time.Time
	use         uint64             // order of the last use among all boxes
	calls       int                // under way, those that wait included
	pins        []*pin             // of callers that are about to call, the oldest first
	stopping    int                // callers of Stop that wait for calls to end
	stopped     chan struct{}      // not nil while stopping; closed when calls is 0
	kernels     map[string]*kernel // by language
}

// kernel is the host's view of one interpreter in a box.
type kernel struct {
	runs *callQueue  // one run at a time
	ran  atomic.Bool // something ran, so that there is state to lose; set inside gate
}

var (
	errDead      = errors.New("the box has ended")
	errAbandoned = errors.New("nobody waits for it any more")
)

// ID returns the id of the session or context.
func (s *Box) ID() string { return s.key.id }

// Info describes the box now.
func (s *Box) Info() Info {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.infoLocked()
}

func (s *Box) infoLocked() Info {
	return Info{
		ID: s.key.id, Kind: s.key.kind, Owner: s.key.owner, Name: s.name, Description: s.desc,
		Template: s.template, Language: s.template.Language(), Flavor: s.flavor,
		State: s.stateLocked(), Created: s.created, LastUsed: s.lastUsed, Source: s.source,
	}
}

func (s *Box) stateLocked() State {
	switch {
	case s.tomb != nil:
		switch s.tomb.Reason {
		case ReasonOOM, ReasonCrashed, ReasonExited:
			return StateError
		}
		return StateStopped
	case s.machine == nil:
		return StateCreating
	case s.calls > 0:
		return StateRunning
	case s.paused:
		return StatePaused
	}
	return StateReady
}

func (s *Box) touchLocked() {
	s.m.uses++
	s.use = s.m.uses
	s.lastUsed = s.m.now()
}

// busyLocked reports whether the box is in use, so that it must not be taken
// away.
func (s *Box) busyLocked() bool {
	return s.machine == nil || s.calls > 0 || len(s.pins) > 0 || s.stopping > 0
}

// pin keeps a box from being evicted until its caller's first call.
type pin struct {
	s    *Box
	done bool        // guarded by m.mu
	stop func() bool // of the AfterFunc that releases
}

func (m *Manager) pinLocked(ctx context.Context, s *Box) *pin {
	h := &pin{s: s}
	s.pins = append(s.pins, h)
	s.touchLocked()
	h.stop = context.AfterFunc(ctx, h.release)
	return h
}

func (h *pin) release() {
	m := h.s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	h.releaseLocked()
}

func (h *pin) releaseLocked() {
	if h.done {
		return
	}
	h.done = true
	h.stop()
	s := h.s
	s.pins = slices.DeleteFunc(s.pins, func(o *pin) bool { return o == h })
	if s.m.boxes[s.key] == s && s.machine == nil && len(s.pins) == 0 {
		// From now on it is not found, so that nobody joins a start that ends.
		delete(s.m.boxes, s.key)
		s.m.leaving[s] = struct{}{}
		s.cancelBoot(errAbandoned)
	}
	s.m.signalDrainedLocked()
}

// begin counts a call into the box and sees to it that the box runs. The caller
// must call end once if it gets no error.
func (s *Box) begin(ctx context.Context, op string) (end func(), err error) {
	end, paused, err := s.count(ctx, op)
	if err == nil && paused {
		if err = s.resume(ctx, op); err != nil {
			end()
			return nil, err
		}
	}
	return end, err
}

// count counts a call and reports whether the box has to be resumed.
func (s *Box) count(ctx context.Context, op string) (end func(), paused bool, err error) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil, false, s.cancelled(op, context.Cause(ctx))
	}
	if s.tomb != nil {
		return nil, false, s.gone(op, s.tomb)
	}
	if s.stopping > 0 {
		return nil, false, s.error(CodeBusy, op, fmt.Sprintf("The %s %s is being stopped", s.key.kind, s.key.id), "Create a new one.", nil)
	}
	if !(m.phase == phaseDraining && len(s.pins) > 0) {
		if err := m.openLocked(op); err != nil {
			return nil, false, err
		}
	}
	s.calls++
	s.called, s.load = true, load{}
	s.touchLocked()
	if len(s.pins) > 0 {
		s.pins[0].releaseLocked()
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.calls--
		s.touchLocked()
		if !s.early {
			m.checkIdleInLocked(saveGap)
		}
		if s.calls == 0 && s.stopped != nil {
			close(s.stopped)
			s.stopped = nil
		}
		m.signalDrainedLocked()
	}, s.paused, nil
}

// slot is begin for a call beside the kernels: at most Config.ParallelCalls run
// at once.
func (s *Box) slot(ctx context.Context, op string) (end func(), err error) {
	ended, err := s.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := s.slots.enter(ctx, s.terminated); err != nil {
		ended()
		return nil, s.queueError(op, err)
	}
	if err := s.callLock.Acquire(ctx, 1); err != nil {
		s.slots.leave()
		ended()
		return nil, s.cancelled(op, context.Cause(ctx))
	}
	return func() { s.callLock.Release(1); s.slots.leave(); ended() }, nil
}

// allCalls is more calls than a box can have under way.
const allCalls = 1 << 20

// still calls do with the box's machine when no call is under way in it, and
// holds new ones up meanwhile.
func (s *Box) still(ctx context.Context, op string, do func(context.Context, *machine.Machine) error) error {
	end, err := s.begin(ctx, op)
	if err != nil {
		return err
	}
	defer end()
	if err := s.callLock.Acquire(ctx, allCalls); err != nil {
		return s.cancelled(op, context.Cause(ctx))
	}
	defer s.callLock.Release(allCalls)
	return do(ctx, s.machine)
}

// kernel returns the host's view of a language's interpreter.
func (s *Box) kernel(language string) *kernel {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	k := s.kernels[language]
	if k == nil {
		k = &kernel{runs: newCallQueue(1, s.m.cfg().QueueLen)}
		k.ran.Store(s.origin.ran && language == s.template.Language())
		s.kernels[language] = k
	}
	return k
}

// ranLocked reports whether code has run in the box's own interpreter, here or
// before it came here, whose loss nobody has been told of.
func (s *Box) ranLocked() bool {
	if k := s.kernels[s.template.Language()]; k != nil {
		return k.ran.Load()
	}
	return s.origin.ran
}
