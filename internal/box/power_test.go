package box

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// sleeper is an engine that pauses guests and does not resume them, or says that it failed
// to pause them although they are paused.
type sleeper struct {
	engine.Engine
	pauseErr error
	hang     bool        // Resume waits for ctx
	resuming atomic.Bool // Resume waits so
}

// Unwrap returns the engine that pauses as it should.
func (e *sleeper) Unwrap() engine.Engine { return e.Engine }

func (e *sleeper) Pause(ctx context.Context, id string) error {
	p, _ := engine.As[engine.Pauser](e.Engine)
	return errors.Join(p.Pause(ctx, id), e.pauseErr)
}

func (e *sleeper) Resume(ctx context.Context, id string) error {
	if e.hang {
		e.resuming.Store(true)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	p, _ := engine.As[engine.Pauser](e.Engine)
	return p.Resume(ctx, id)
}

func newSleeper(t *testing.T) (*fixture, *sleeper) {
	e := &sleeper{}
	f := newFixtureWith(t, neverIdle, func(_ *fixture, parts *Parts) {
		e.Engine = parts.Machines.Engine
		parts.Machines.Engine = e
	})
	return f, e
}

// pauseNow pauses an idle box.
func (f *fixture) pauseNow(t *testing.T, b *Box) error {
	t.Helper()
	f.reg.mu.Lock()
	seq := b.use.seq
	f.reg.mu.Unlock()
	return b.pause(t.Context(), seq)
}

// A machine whose pausing has failed may be paused nevertheless, as when the call was given
// up and took effect later. The next call resumes it.
func TestPause_ThatFailedAfterItsEffect(t *testing.T) {
	f, e := newSleeper(t)
	b := f.session(t, "bob", "x")
	wantOut(t, b, "x = 41; print(x)", "41\n")
	e.pauseErr = errors.New("as the test wants")
	if err := f.pauseNow(t, b); err == nil {
		t.Fatal("the box was paused without an error")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res, err := b.Run(ctx, RunRequest{Code: "print(x + 1)"})
	if err != nil || res.Stdout != "42\n" {
		t.Errorf("the next call: got %+v, %v", res, err)
	}
}

// A box whose machine does not resume ends, so that its owner can go on.
func TestResume_WithoutAnswerEndsTheBox(t *testing.T) {
	f, e := newSleeper(t)
	f.env.resumeTimeout = 100 * time.Millisecond
	b := f.session(t, "bob", "x")
	run(t, b, "x = 41")
	if err := f.pauseNow(t, b); err != nil {
		t.Fatal(err)
	}
	e.hang = true
	_, err := b.Run(t.Context(), RunRequest{Code: "print(x)"})
	wantCode(t, err, CodeGone, "did not resume")
	b, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || !hold.Created || hold.Lost == nil || hold.Lost.Reason != ReasonCrashed {
		t.Fatalf("the next call: got %+v, %v; want a new box that says how the earlier one ended", hold, err)
	}
	hold.Release()
	wantOut(t, b, "print(1)", "1\n")
}
