package box

import (
	"context"
	"fmt"
	"time"
)

const (
	// killGrace is between the interrupt and the kill of code that has run too
	// long: enough for a handler to clean up, short enough to wait for.
	killGrace = 2 * time.Second
	// answerGrace is how long after the timeout the agent must have answered: the
	// grace, and generously more, since a false alarm costs the whole box.
	answerGrace = killGrace + 5*time.Second
	// cancelBackstop is how long the agent has to answer a cancelled call, the
	// grace included. A second later guest/client would abandon the call, and its
	// kernel.
	cancelBackstop = 6 * time.Second
	// kernelStart bounds the start of an interpreter on a busy host.
	kernelStart = 30 * time.Second
)

// SessionTimeout is the default time limit of code and commands in a session, also for tools of
// sessions that are given a context.
func (b *Box) SessionTimeout() time.Duration { return b.env.cfg().ExecTimeout }

// timeout resolves the timeout of a call.
func (b *Box) timeout(op string, d time.Duration) (time.Duration, error) {
	c := b.env.cfg()
	switch {
	case d == 0 && b.key.kind == KindContext:
		return c.ContextTimeout, nil
	case d == 0:
		return c.ExecTimeout, nil
	case d < 0 || d > c.MaxTimeout:
		return 0, b.invalid(op, "timeout", "Invalid timeout: %s; it must be between 1 and %s, or 0 for the default", secs(d), secs(c.MaxTimeout))
	}
	return d, nil
}

// millis is a timeout for the agent, to which zero means none.
func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

// secs returns a duration in seconds: "1 second", "0.5 seconds".
func secs(d time.Duration) string {
	if d == time.Second {
		return "1 second"
	}
	return fmt.Sprint(d.Seconds()) + " seconds"
}

// guard ends the box if the call does not end within d, or soon after the end of ctx: an
// agent that does not even report a timeout is hung. It is the backstop of a
// cancellation, whose path docs/architecture.md describes below "Where to look". The
// caller must call release when the call has ended; clock is the timeout, which may be
// suspended before that.
func (b *Box) guard(ctx context.Context, d time.Duration) (clock *deadline, release func()) {
	clock = newDeadline(d+b.env.answerGrace, func() {
		b.life.terminate(b, ReasonCrashed, "its agent did not answer in time")
	})
	stop := context.AfterFunc(ctx, func() { clock.set(cancelBackstop) })
	return clock, func() {
		stop()
		clock.stop()
	}
}
