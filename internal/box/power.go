package box

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// powerTimeout bounds the pausing and resuming of a machine, which take milliseconds.
const powerTimeout = 10 * time.Second

// errPowerTimeout is the error of a machine that did not resume in time.
var errPowerTimeout = errors.New("no answer in time")

// power pauses and resumes one machine, one step at a time. Its lock is taken before
// registry.mu.
type power struct {
	mu      sync.Mutex
	paused  bool // guarded by mu
	unknown bool // guarded by mu; pausing or resuming has failed, and may have had or still have an effect
}

// pause pauses the machine if wanted returns true, and then calls paused. Both are
// called with the lock.
func (p *power) pause(ctx context.Context, mach *machine.Machine, wanted func() bool, paused func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused || !wanted() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, powerTimeout)
	defer cancel()
	err := mach.Pause(ctx)
	p.unknown = err != nil
	if p.paused = err == nil; p.paused {
		paused()
	}
	return err
}

// resume resumes the machine if it is or may be paused, and reports whether it did. It
// calls before first, with the lock. The error is errPowerTimeout after timeout.
func (p *power) resume(ctx context.Context, mach *machine.Machine, timeout time.Duration, before func()) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paused && !p.unknown {
		return false, nil
	}
	before()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errPowerTimeout)
	defer cancel()
	err := mach.Resume(ctx)
	p.paused, p.unknown = false, err != nil
	return true, err
}

func (p *power) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// runs reports whether the machine is neither paused nor may be.
func (p *power) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.paused && !p.unknown
}

// pause pauses the machine of a ready box, unless a call has come since the use seq:
// also one that is over, since the disk does not have what it did.
func (b *Box) pause(ctx context.Context, seq uint64) error {
	err := b.power.pause(ctx, b.machine, func() bool {
		b.reg.mu.Lock()
		defer b.reg.mu.Unlock()
		if b.state != stateReady || len(b.use.pins) > 0 || b.use.seq != seq {
			return false
		}
		b.reg.setState(b, statePaused)
		return true
	}, func() { b.setQuiescent(); b.abandonFiles() })
	if err != nil {
		b.reg.mu.Lock()
		defer b.reg.mu.Unlock()
		if b.state == statePaused {
			b.reg.setState(b, stateReady)
		}
	}
	return err
}

// resume resumes the machine if it is paused. The caller has counted a call, so that
// it is not paused again. A machine that does not answer is hung, and its box ends.
func (b *Box) resume(ctx context.Context, op string) error {
	was, err := b.power.resume(ctx, b.machine, b.env.resumeTimeout, b.clearQuiescent)
	switch {
	case errors.Is(err, errPowerTimeout) && b.writing.TryLock(): // otherwise a write delays it
		b.writing.Unlock()
		b.life.terminate(b, ReasonCrashed, "its isolation did not resume it in time")
		return b.goneNow(op, err)
	case err != nil && b.ended():
		return b.goneNow(op, err)
	case err != nil && ctx.Err() != nil:
		return b.cancelled(op, context.Cause(ctx))
	case err != nil:
		return b.error(CodeInternal, op, "The box could not be resumed", "Try again.", err)
	case was:
		b.reg.mu.Lock()
		defer b.reg.mu.Unlock()
		b.idle.load = load{}
	}
	return nil
}

// setQuiescent notes in the record of a paused box that the disk has its latest state, so
// that a server that is killed meanwhile loses nothing of the box.
func (b *Box) setQuiescent() {
	b.reg.mu.Lock()
	record, saved := b.lease, b.disk.memorySeq == b.use.seq
	b.reg.mu.Unlock()
	if record == nil || !saved {
		return
	}
	if err := record.SetQuiescent(); err != nil && !b.ended() {
		b.env.log.Warn("paused box not marked as saved", logkey.Guest, b.guestID, logkey.Error, err)
	}
}

// abandonFiles ends the storing of the files of a box that was paused: its agent does not answer,
// and the box stores them after its next use.
func (b *Box) abandonFiles() {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if b.disk.abandon != nil {
		b.disk.abandon()
	}
}

// clearQuiescent undoes setQuiescent before the box continues.
func (b *Box) clearQuiescent() {
	b.reg.mu.Lock()
	record := b.lease
	b.reg.mu.Unlock()
	if record == nil {
		return
	}
	if err := record.ClearQuiescent(); err != nil && !b.ended() {
		b.env.log.Warn("resumed box still marked as saved", logkey.Guest, b.guestID, logkey.Error, err)
	}
}

// ended reports whether the box has left the registry.
func (b *Box) ended() bool {
	select {
	case <-b.aborted:
		return true
	default:
		return false
	}
}

// resumeForCall marks the beginning of a call's work in the box, after its wait in queues, and
// resumes the box if it is paused. The caller must call endWork if it gets no error.
func (b *Box) resumeForCall(ctx context.Context, op string) (endWork func(), err error) {
	b.activeCalls.Add(1) // before resume, so that the box is not paused again
	endWork = func() {
		if b.activeCalls.Add(-1); b.parked.Load() > 0 {
			b.pauseParked()
		}
	}
	if err := b.resume(ctx, op); err != nil {
		endWork()
		return nil, err
	}
	if err := b.network.refresh(ctx); err != nil {
		endWork()
		return nil, b.callError(ctx, op, err)
	}
	return endWork, nil
}
