package guests

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/glovebox-dev/glovebox/engine"
)

// stub is a guest whose end is up to the test.
type stub struct {
	id      string
	end     *End
	once    sync.Once
	release func()
}

func (s *stub) ID() string                                       { return s.id }
func (s *stub) Dial(context.Context) (io.ReadWriteCloser, error) { return nil, engine.ErrUnsupported }
func (s *stub) Wait(ctx context.Context) (engine.Exit, error)    { return s.end.Wait(ctx) }
func (s *stub) Destroy(ctx context.Context) error {
	s.once.Do(func() {
		s.release()
		s.end.Reach(engine.Exit{Reason: engine.ExitDestroyed})
	})
	return nil
}

func booted(id string) func(context.Context, func()) (*stub, error) {
	return func(_ context.Context, release func()) (*stub, error) {
		return &stub{id: id, end: NewEnd(), release: release}, nil
	}
}

func TestSetCreate_RejectsTakenID(t *testing.T) {
	s := NewSet[*stub]()
	g, err := s.Create(t.Context(), "a", booted("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "a", booted("a")); !errors.Is(err, engine.ErrExists) {
		t.Errorf("create with a taken id: got %v, want ErrExists", err)
	}
	if got, err := s.Get("a"); got != g || err != nil {
		t.Errorf("get: %v, %v", got, err)
	}
	g.Destroy(t.Context())
	if _, err := s.Get("a"); !errors.Is(err, engine.ErrGone) {
		t.Errorf("get after the end: got %v, want ErrGone", err)
	}
	second, err := s.Create(t.Context(), "a", booted("a"))
	if err != nil {
		t.Fatalf("create with a released id: %v", err)
	}
	g.release() // once more, by the first guest
	if got, err := s.Get("a"); got != second || err != nil {
		t.Errorf("the second release of the first guest has removed its successor: %v, %v", got, err)
	}
}

func TestSetCreate_ReleasesIDAfterError(t *testing.T) {
	s := NewSet[*stub]()
	broken := errors.New("broken")
	if _, err := s.Create(t.Context(), "a", func(context.Context, func()) (*stub, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of boot", err)
	}
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := s.Create(ctx, "a", func(context.Context, func()) (*stub, error) { cancel(cause); return nil, broken }); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	if _, err := s.Create(t.Context(), "a", booted("a")); err != nil {
		t.Error(err)
	}
}

func TestSetClose_CancelsCreatesAndDestroysGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet[*stub]()
		g, err := s.Create(t.Context(), "a", booted("a"))
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := s.Create(t.Context(), "b", func(ctx context.Context, _ func()) (*stub, error) {
				<-ctx.Done() // ended by Close
				return nil, errors.New("boot was cut short")
			})
			failed <- err
		}()
		synctest.Wait()
		if _, err := s.Get("b"); !errors.Is(err, engine.ErrGone) {
			t.Errorf("get of a guest that boots: got %v, want ErrGone", err)
		}
		s.Close()
		s.Close()
		if err := <-failed; !errors.Is(err, engine.ErrGone) {
			t.Errorf("create during close: got %v, want ErrGone", err)
		}
		if exit, err := g.Wait(t.Context()); err != nil || exit.Reason != engine.ExitDestroyed {
			t.Errorf("guest after close: %+v, %v", exit, err)
		}
		if _, err := s.Create(t.Context(), "c", booted("c")); !errors.Is(err, engine.ErrGone) {
			t.Errorf("create after close: got %v, want ErrGone", err)
		}
		<-s.Closing()
	})
}

// A guest may end before Create has returned.
func TestSetCreate_GuestHasEnded(t *testing.T) {
	s := NewSet[*stub]()
	g, err := s.Create(t.Context(), "a", func(_ context.Context, release func()) (*stub, error) {
		release()
		return &stub{id: "a", end: NewEnd(), release: release}, nil
	})
	if err != nil || g == nil {
		t.Fatal(err)
	}
	if _, err := s.Get("a"); !errors.Is(err, engine.ErrGone) {
		t.Errorf("get: got %v, want ErrGone", err)
	}
}

func TestEndWait_PrefersEndToContext(t *testing.T) {
	e := NewEnd()
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := e.Wait(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
	e.Reach(engine.Exit{Reason: engine.ExitOOM})
	if exit, err := e.Wait(ctx); err != nil || exit.Reason != engine.ExitOOM {
		t.Errorf("got %+v, %v", exit, err)
	}
}

// TestSet_StateAndDetach: both name the guest and say what failed; an unknown id is ErrGone.
func TestSet_StateAndDetach(t *testing.T) {
	s := NewSet[*stub]()
	if _, err := s.Create(t.Context(), "a", booted("a")); err != nil {
		t.Fatal(err)
	}
	state := func(g *stub) engine.GuestState { return engine.GuestState{ID: g.id, Version: 7} }
	if got, err := s.State("a", state); err != nil || got.ID != "a" || got.Version != 7 {
		t.Errorf("state: got %+v, %v", got, err)
	}
	if _, err := s.State("b", state); !errors.Is(err, engine.ErrGone) || err.Error() != `state of guest "b": `+engine.ErrGone.Error() {
		t.Errorf("state of an unknown guest: got %v, want ErrGone", err)
	}
	if err := s.Detach("a", func(g *stub) error { return nil }); err != nil {
		t.Errorf("detach: %v", err)
	}
	busy := errors.New("busy")
	if err := s.Detach("a", func(g *stub) error { return busy }); !errors.Is(err, busy) || err.Error() != `detach guest "a": busy` {
		t.Errorf("detach that fails: got %v", err)
	}
	if err := s.Detach("b", func(g *stub) error { t.Error("detached an unknown guest"); return nil }); !errors.Is(err, engine.ErrGone) {
		t.Errorf("detach of an unknown guest: got %v, want ErrGone", err)
	}
}
