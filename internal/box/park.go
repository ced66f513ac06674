package box

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/callqueue"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// maxParked bounds the time that one run may be parked in all. The agent's own timeout
// of a run that may call has this much slack, because only the host knows how long a run
// was parked.
const maxParked = time.Hour

// stoppedBeforeStart is why code or a command was stopped whose timeout passed before it began, for
// example while its interpreter started.
const stoppedBeforeStart = "timeout before it began"

func timedOut(stopped string) bool { return stopped == "timeout" || stopped == stoppedBeforeStart }

// errTimeLimit ends a run that may call when its timeout has passed.
var errTimeLimit = errors.New("the timeout has passed")

// A parker parks one call of code that may call the host. Its timeouts are suspended while
// the call is parked, and the box is paused, unless another call needs it.
type parker struct {
	box    *Box
	clocks []*deadline
	queue  *callqueue.Queue // that the call holds up while it is parked; nil: none

	mu    sync.Mutex
	parks int           // guarded by mu: Park calls in progress
	since time.Time     // guarded by mu: when parks rose from 0
	total time.Duration // guarded by mu: of earlier parks
}

type parkKey struct{}

// Park parks the run that made the call with the context ctx, see [ToolCalls], until the
// returned function is called, which the caller must do soon after the end of ctx. Parked
// time does not count against the timeout of the run, up to an hour in all. The box uses
// no CPU while all its calls are parked, if the engine can pause it. Park may be called
// concurrently for several calls of a run. Without a run it has no effect.
func Park(ctx context.Context) (unpark func()) {
	p, _ := ctx.Value(parkKey{}).(*parker)
	if p == nil {
		return func() {}
	}
	p.park()
	return sync.OnceFunc(p.unpark)
}

func (p *parker) park() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parks++; p.parks > 1 {
		return
	}
	p.since = time.Now()
	for _, c := range p.clocks {
		c.suspend(maxParked - p.total)
	}
	p.box.parked.Add(1)
	if p.queue != nil {
		p.queue.SetParked(true)
	}
	p.box.pauseParked()
}

func (p *parker) unpark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parks--; p.parks > 0 {
		return
	}
	p.box.parked.Add(-1)
	if p.queue != nil {
		p.queue.SetParked(false)
	}
	if err := p.box.resume(context.Background(), "continue code"); err != nil && !p.box.ended() {
		p.box.env.log.Warn("parked box not resumed", logkey.Guest, p.box.guestID, logkey.Error, err)
	}
	p.total = min(p.total+time.Since(p.since), maxParked)
	for _, c := range p.clocks {
		c.resume()
	}
}

// duration returns the time of a run without the time that it was parked.
func (p *parker) duration(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(d-p.total, 0)
}

// parkable runs code that may call the host, and therefore may be parked, within a
// timeout that the host enforces. queue is that whose other calls wait for this one; nil:
// none does. stopped is why the agent stopped the code, which do sets. It returns the time
// that the code took without the time that it was parked.
func (b *Box) parkable(ctx context.Context, queue *callqueue.Queue, timeout, slack time.Duration, stopped *string, do func(context.Context) error) (took time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun := time.Now()
	limit := newDeadline(timeout, func() { cancel(errTimeLimit) })
	defer limit.stop()
	clock, release := b.guard(ctx, timeout+slack)
	defer release()
	p := &parker{box: b, clocks: []*deadline{limit, clock}, queue: queue}
	err = do(context.WithValue(ctx, parkKey{}, p))
	switch {
	case *stopped == "cancelled" && errors.Is(context.Cause(ctx), errTimeLimit):
		*stopped = "timeout"
	case errors.Is(err, errTimeLimit) && !errors.Is(err, client.ErrNoAnswer):
		*stopped, err = stoppedBeforeStart, nil
	}
	return p.duration(time.Since(begun)), err
}

// pauseParked pauses the box if all calls that work in it are parked.
func (b *Box) pauseParked() {
	if !b.env.parts.Machines.Pauses() {
		return
	}
	err := b.power.pause(b.env.base, b.machine, func() bool {
		parked := b.parked.Load()
		return parked > 0 && parked == b.activeCalls.Load() && !b.ended()
	}, b.abandonFiles)
	if err != nil && !b.ended() {
		b.env.log.Warn("parked box not paused", logkey.Guest, b.guestID, logkey.Error, err)
	}
}
