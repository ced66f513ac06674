package box

import (
	"context"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// powerTimeout bounds the pausing and resuming of a machine, which take milliseconds.
const powerTimeout = 10 * time.Second

// power pauses and resumes one machine, one step at a time. Its lock is taken before
// registry.mu.
type power struct {
	mu     sync.Mutex
	paused bool // guarded by mu
}

// pause pauses the machine if wanted, which is called with the lock, returns true.
func (p *power) pause(ctx context.Context, mach *machine.Machine, wanted func() bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused || !wanted() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, powerTimeout)
	defer cancel()
	err := mach.Pause(ctx)
	p.paused = err == nil
	return err
}

// resume resumes the machine if it is paused, and reports whether it was.
func (p *power) resume(ctx context.Context, mach *machine.Machine) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paused {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, powerTimeout)
	defer cancel()
	err := mach.Resume(ctx)
	p.paused = err != nil
	return true, err
}

func (p *power) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
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
	})
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
// it is not paused again.
func (b *Box) resume(ctx context.Context, op string) error {
	was, err := b.power.resume(ctx, b.machine)
	switch {
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

// ended reports whether the box has left the registry.
func (b *Box) ended() bool {
	select {
	case <-b.terminated:
		return true
	default:
		return false
	}
}
