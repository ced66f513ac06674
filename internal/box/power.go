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
func (s *Box) pause(ctx context.Context, seq uint64) error {
	err := s.power.pause(ctx, s.machine, func() bool {
		s.reg.mu.Lock()
		defer s.reg.mu.Unlock()
		if s.state != stateReady || len(s.use.pins) > 0 || s.use.seq != seq {
			return false
		}
		s.reg.setState(s, statePaused)
		return true
	})
	if err != nil {
		s.reg.mu.Lock()
		defer s.reg.mu.Unlock()
		if s.state == statePaused {
			s.reg.setState(s, stateReady)
		}
	}
	return err
}

// resume resumes the machine if it is paused. The caller has counted a call, so that
// it is not paused again.
func (s *Box) resume(ctx context.Context, op string) error {
	was, err := s.power.resume(ctx, s.machine)
	switch {
	case err != nil && s.ended():
		return s.goneNow(op, err)
	case err != nil && ctx.Err() != nil:
		return s.cancelled(op, context.Cause(ctx))
	case err != nil:
		return s.error(CodeInternal, op, "The box could not be resumed", "Try again.", err)
	case was:
		s.reg.mu.Lock()
		defer s.reg.mu.Unlock()
		s.idle.load = load{}
	}
	return nil
}

// ended reports whether the box has left the registry.
func (s *Box) ended() bool {
	select {
	case <-s.terminated:
		return true
	default:
		return false
	}
}
