package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// tester is a testing.TB with an engine. It has cleanup functions of its own, which
// run before the check for leaks.
type tester struct {
	testing.TB
	h     Harness
	e     engine.Engine
	probe string

	cleanups []func()
}

func newTester(t testing.TB, h Harness, e engine.Engine, probe string) *tester {
	return &tester{TB: t, h: h, e: e, probe: probe}
}

// Cleanup registers f to run at the end of the test, the last one first. Only the
// test's goroutine may call it.
func (t *tester) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// cleanUp runs the functions, even if one of them ends the test.
func (t *tester) cleanUp() {
	if last := len(t.cleanups) - 1; last >= 0 {
		f := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		defer t.cleanUp()
		f()
	}
}

var ids atomic.Int64

// newID returns an id that no guest of this process has had.
func newID() string { return fmt.Sprintf("t-%d", ids.Add(1)) }

// spec returns a spec with the real agent. The caller may modify it.
func (t *tester) spec() *engine.Spec {
	s := *t.h.Spec(t.TB)
	if s.Root.Tree != nil {
		s.Root.Tree = &engine.Tree{Dir: s.Root.Tree.Dir, File: s.Root.Tree.File, Binds: slices.Clone(s.Root.Tree.Binds)}
	}
	return &s
}

// needs makes a test skip on engines without an ability.
func needs[T any](f func(t *tester)) func(t *tester) {
	return func(t *tester) {
		if _, ok := engine.As[T](t.e); !ok {
			t.Skipf("the engine is not an %v", reflect.TypeFor[T]())
		}
		f(t)
	}
}

// ability returns an ability of the engine.
func ability[T any](t *tester) T {
	t.Helper()
	a, ok := engine.As[T](t.e)
	if !ok {
		t.Fatalf("the engine is not an %v", reflect.TypeFor[T]())
	}
	return a
}

// probeSpec returns a spec whose agent is the probe program with arguments.
func (t *tester) probeSpec(args ...string) *engine.Spec {
	s := t.spec()
	s.Agent = t.h.Program(t.TB, t.probe, append([]string{"probe", "agent"}, args...))
	return s
}

// grace is how much later than its timeout a call may return, because guests load
// the machine.
const grace = 2 * time.Second

// call runs f, which makes one call to the engine, and fails the test if it does not
// return in time. Its context ends at the timeout.
func (t *tester) call(what string, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), t.h.Timeout)
	defer cancel()
	var err error
	t.inTime(what, t.h.Timeout+grace, func() { err = f(ctx) })
	return err
}

// inTime runs f and fails the test if it does not return within d.
func (t *tester) inTime(what string, d time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("%s: no answer within %v", what, d)
	}
}

// close closes a stream.
func (t *tester) close(conn io.Closer) {
	t.Helper()
	t.inTime("close of a stream", t.h.Timeout, func() { conn.Close() }) // its error does not matter
}

// eventually fails the test if cond does not become true within the timeout.
func (t *tester) eventually(what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(t.h.Timeout)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after %v", what, t.h.Timeout)
		}
		time.Sleep(sampleEvery)
	}
}

// must fails the test on an error.
func (t *tester) must(what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// create boots a guest and destroys it at the end of the test.
func (t *tester) create(spec *engine.Spec) *box {
	t.Helper()
	return t.createAs(newID(), spec)
}

func (t *tester) createAs(id string, spec *engine.Spec) *box {
	t.Helper()
	var g engine.Guest
	err := t.call("create", func(ctx context.Context) (err error) {
		g, err = t.e.Create(ctx, id, spec)
		return err
	})
	t.must("create "+id, err)
	return t.own(g)
}

// own destroys g at the end of the test.
func (t *tester) own(g engine.Guest) *box {
	b := &box{Guest: g, t: t}
	t.Cleanup(func() {
		if err := t.call("destroy", g.Destroy); err != nil {
			t.Errorf("destroy %s: %v", g.ID(), err)
		}
		b.unlink()
	})
	return b
}

// destroy destroys g now.
func (t *tester) destroy(g engine.Guest) {
	t.Helper()
	t.must("destroy "+g.ID(), t.call("destroy", g.Destroy))
}

// exit returns why g has ended.
func (t *tester) exit(g engine.Guest) engine.Exit {
	t.Helper()
	var exit engine.Exit
	err := t.call("wait", func(ctx context.Context) (err error) {
		exit, err = g.Wait(ctx)
		return err
	})
	t.must("wait for "+g.ID(), err)
	return exit
}

// sentinels names the sentinels of the contract.
var sentinels = map[error]string{
	engine.ErrExists: "ErrExists", engine.ErrInvalid: "ErrInvalid",
	engine.ErrUnsupported: "ErrUnsupported", engine.ErrUnavailable: "ErrUnavailable",
	engine.ErrExhausted: "ErrExhausted", engine.ErrGone: "ErrGone",
}

// wantErr checks that err is the wanted sentinel and no other.
func (t *tester) wantErr(what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %s", what, err, sentinels[want])
		return
	}
	for other, name := range sentinels {
		if other != want && errors.Is(err, other) {
			t.Errorf("%s: error %v is %s as well as %s", what, err, name, sentinels[want])
		}
	}
}

// errStop is the cause with which the suite ends contexts; engines must return it.
var errStop = errors.New("stopped by the suite")

// ended returns a context that has ended with errStop.
func ended(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	cancel(errStop)
	return ctx
}

// withTimeout returns a context of the test that ends after d.
func withTimeout(t *tester, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
