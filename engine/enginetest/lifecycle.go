package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func lifecycleTests() []test {
	return append([]test{
		{"created-guest-answers", testCreated},
		{"id-is-free-after-destroy", testIDFree},
		{"id-is-free-after-the-agent-has-ended", testIDFreeAfterExit},
		{"exists-leaves-the-first-unharmed", testExists},
		{"one-of-many-creates-of-an-id-wins", testExistsAtOnce},
		{"spec-is-not-kept", testSpecNotKept},
		{"image-is-unpacked", testImage},
		{"image-that-cannot-be-unpacked", testImageBroken},
		{"volume-of-the-platform", testPlatformVolume},
		{"create-with-ended-context-is-its-cause", testCreateEnded},
		{"cancelled-create-leaves-nothing", testCreateCancelled},
		{"create-context-does-not-bind-the-guest", testContextNotKept},
		{"destroy-frees-everything-before-it-returns", testDestroySynchronous},
		{"destroy-may-be-repeated", testDestroyTwice},
		{"destroy-may-be-called-at-once", testDestroyAtOnce},
		{"destroy-while-busy", testDestroyBusy},
		{"destroy-ends-processes-that-hide", testDestroyOrphans},
		{"destroy-ends-processes-that-multiply", testDestroyStorm},
		{"destroy-context-bounds-the-waiting-only", testDestroyEnded},
		{"destroy-ends-open-streams", testDestroyEndsStream},
		{"dial-after-destroy-is-gone", testDialAfterDestroy},
		{"wait-ends-with-its-context", testWaitContext},
		{"wait-gives-all-the-same-answer", testWaitSame},
		{"exit-of-the-agent-is-reported", testAgentExit},
		{"exit-stays-what-it-was-after-destroy", testExitStays},
		{"death-of-the-agent-is-reported", testAgentDies},
		{"close-destroys-all-guests", testClose},
		{"close-while-creating", testCloseCreating},
		{"many-guests-at-once", testMany},
		{"guests-come-and-go", testChurn},
	}, invalidTests()...)
}

func testCreated(t *tester) {
	b := t.create(t.spec()).talk()
	b.ping()
	t.destroy(b)
	if exit := t.exit(b); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit of a destroyed guest is %+v", exit)
	}
}

func testIDFree(t *tester) {
	id := newID()
	for range 3 {
		t.destroy(t.createAs(id, t.probeSpec("echo")))
	}
}

func testIDFreeAfterExit(t *tester) {
	id := newID()
	b := t.createAs(id, t.probeSpec("exit", "0"))
	b.end()
	t.createAs(id, t.probeSpec("echo")).echoes()
}

// end sends the byte that a probe agent waits for, and waits for the guest.
func (b *box) end() engine.Exit {
	b.t.Helper()
	conn := b.dial()
	defer b.t.close(conn)
	if _, err := conn.Write([]byte{1}); err != nil {
		b.t.Fatalf("write to agent: %v", err)
	}
	return b.t.exit(b)
}

// echoes checks that the echo agent returns its input.
func (b *box) echoes() {
	b.t.Helper()
	conn := b.dial()
	defer b.t.close(conn)
	b.t.roundTrip(conn, []byte("is anybody there?"))
}

// roundTrip sends p to an echo agent and checks the answer.
func (t *tester) roundTrip(conn io.ReadWriter, p []byte) {
	t.Helper()
	t.inTime("echo", t.h.Timeout, func() {
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(p)
			sent <- err
		}()
		got := make([]byte, len(p))
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Errorf("read echo: %v", err)
		} else if !bytes.Equal(got, p) {
			t.Errorf("echo of %d bytes differs from %d on", len(p), mismatch(got, p))
		}
		if err := <-sent; err != nil {
			t.Errorf("write: %v", err)
		}
	})
}

// mismatch returns the first index where a and b differ.
func mismatch(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func testExists(t *tester) {
	first := t.create(t.probeSpec("echo"))
	err := t.call("create", func(ctx context.Context) error {
		g, err := t.e.Create(ctx, first.ID(), t.probeSpec("echo"))
		if err == nil {
			t.own(g)
		}
		return err
	})
	t.wantErr("create with a taken id", err, engine.ErrExists)
	first.echoes()
}

func testExistsAtOnce(t *tester) {
	const n = 8
	id := newID()
	guests, errs := make([]engine.Guest, n), make([]error, n)
	spec := t.probeSpec("echo")
	t.call("creates", func(ctx context.Context) error {
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() { guests[i], errs[i] = t.e.Create(ctx, id, spec) })
		}
		wait.Wait()
		return nil
	})
	won := 0
	for i, g := range guests {
		if errs[i] == nil {
			won++
			t.own(g).echoes()
		} else {
			t.wantErr("create at once", errs[i], engine.ErrExists)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d creates of one id at once succeeded, want 1", won, n)
	}
}

func testSpecNotKept(t *tester) {
	spec := t.probeSpec("echo")
	b := t.create(spec)
	for i := range spec.Agent.Args {
		spec.Agent.Args[i] = "changed"
	}
	if tree := spec.Root.Tree; tree != nil {
		for i := range tree.Binds {
			tree.Binds[i] = engine.Mount{}
		}
		*tree = engine.Tree{}
	}
	*spec = engine.Spec{}
	b.echoes()
	t.create(t.probeSpec("echo")).echoes()
}

func testCreateEnded(t *tester) {
	id := newID()
	err := t.call("create", func(ctx context.Context) error {
		g, err := t.e.Create(ended(ctx), id, t.probeSpec("echo"))
		if err == nil {
			t.own(g)
		}
		return err
	})
	if !errors.Is(err, errStop) {
		t.Errorf("create with an ended context: got error %v, want its cause", err)
	}
	t.createAs(id, t.probeSpec("echo"))
}

// testCreateCancelled cancels Create at many stages.
func testCreateCancelled(t *tester) {
	const rounds = 30
	start := time.Now()
	t.destroy(t.create(t.probeSpec("echo")))
	// Follows the duration of Create, so that some cancels are early and some late.
	usual := time.Since(start)

	id := newID()
	for range rounds {
		delay := time.Duration(rand.Int64N(int64(usual)))
		err := t.call("cancelled create", func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			timer := time.AfterFunc(delay, func() { cancel(errStop) })
			defer timer.Stop()
			g, err := t.e.Create(ctx, id, t.probeSpec("echo"))
			if err == nil {
				err = g.Destroy(context.Background())
			}
			return err
		})
		if err != nil {
			if !errors.Is(err, errStop) {
				t.Fatalf("create cancelled after %v: got error %v, want the cause", delay, err)
			}
			usual += usual / 8
		} else {
			usual = max(usual*3/4, 20*time.Microsecond)
		}
		if t.Failed() {
			return
		}
	}
	t.createAs(id, t.probeSpec("echo")).echoes()
}

func testContextNotKept(t *tester) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialling, cancelDial := context.WithCancel(t.Context())
	defer cancelDial()
	var b *box
	var conn io.ReadWriteCloser
	t.inTime("create and dial", t.h.Timeout, func() {
		g, err := t.e.Create(ctx, newID(), t.probeSpec("echo"))
		if err == nil {
			b = t.own(g)
			conn, err = g.Dial(dialling)
		}
		if err != nil {
			t.Errorf("create and dial: %v", err)
		}
	})
	if t.Failed() {
		return
	}
	cancel()
	cancelDial()
	// An engine that has kept a context reacts to its end at some time: check repeatedly
	// for a while.
	for range 10 {
		t.roundTrip(conn, []byte("still there?"))
		time.Sleep(sampleEvery)
	}
	t.close(conn)
	b.echoes()
}

// heldNow samples the resources held, without those that may lag.
func (t *tester) heldNow() []string {
	return slices.DeleteFunc(t.h.sample(t), func(s string) bool { return strings.HasPrefix(s, "goroutine") })
}

func testDestroySynchronous(t *tester) {
	for range 5 {
		t.h.settled(t)
		before := t.heldNow()
		b := t.create(t.probeSpec("orphans", "5"))
		conn := b.dial()
		t.must("read from agent", t.call("read", func(context.Context) error {
			_, err := io.ReadFull(conn, make([]byte, len("ready\n")))
			return err
		}))
		during := t.heldNow()
		t.destroy(b)
		if more, less := difference(before, t.heldNow()); len(more)+len(less) > 0 {
			t.Fatalf("held when destroy has returned and not before create: %q; before and not then: %q", more, less)
		}
		if slices.Equal(before, during) {
			t.Fatal("a living guest holds nothing: Harness.Held does not see guests")
		}
	}
}

func testDestroyTwice(t *tester) {
	b := t.create(t.probeSpec("echo"))
	for range 3 {
		t.destroy(b)
	}
}

func testDestroyAtOnce(t *tester) {
	const n = 8
	t.h.settled(t)
	before := t.heldNow()
	b := t.create(t.probeSpec("orphans", "3"))
	held := make([][]string, n)
	errs := make([]error, n)
	t.call("destroys", func(ctx context.Context) error {
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() {
				errs[i] = b.Destroy(ctx)
				held[i] = t.heldNow()
			})
		}
		wait.Wait()
		return nil
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("destroy: %v", err)
		}
		// Sampling itself holds a few descriptors, so only processes count.
		more, _ := difference(before, held[i])
		more = slices.DeleteFunc(more, func(s string) bool { return !strings.HasPrefix(s, "process") })
		if len(more) > 0 {
			t.Errorf("one of %d destroys at once has returned while there was %q", n, more)
		}
	}
}

func testDestroyBusy(t *tester) {
	b := t.create(t.spec()).talk()
	for range 3 {
		b.start(protocol.Exec{Shell: "while :; do echo busy; done"})
	}
	b.start(protocol.Exec{Shell: "sleep 1000 & sleep 1000 & wait"})
	b.start(protocol.Exec{Shell: "exec 3>&-; trap '' TERM INT HUP; echo deaf; while :; do sleep 1; done"}).says("deaf")
	t.destroy(b)
	if exit := t.exit(b); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit of a guest destroyed while busy is %+v", exit)
	}
}

func testDestroyOrphans(t *tester) {
	b := t.create(t.probeSpec("orphans", "10"))
	conn := b.dial()
	t.must("read from agent", t.call("read", func(context.Context) error {
		_, err := io.ReadFull(conn, make([]byte, len("ready\n")))
		return err
	}))
}

func testDestroyStorm(t *tester) {
	b := t.create(t.probeSpec("storm"))
	b.dial()
	time.Sleep(200 * time.Millisecond) // let it grow: there is nothing to wait for
	t.destroy(b)
}

func testDestroyEnded(t *tester) {
	b := t.create(t.probeSpec("orphans", "3"))
	err := t.call("destroy", func(ctx context.Context) error { return b.Destroy(ended(ctx)) })
	if err != nil && !errors.Is(err, errStop) {
		t.Errorf("destroy with an ended context: got error %v, want none or its cause", err)
	}
	if exit := t.exit(b); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit is %+v after a destroy with an ended context", exit)
	}
}

func testDestroyEndsStream(t *tester) {
	b := t.create(t.probeSpec("silent"))
	conn := b.dial()
	errs := make(chan error, 2)
	go func() {
		_, err := io.ReadFull(conn, make([]byte, 1))
		errs <- err
	}()
	go func() {
		_, err := conn.Write(make([]byte, 8<<20)) // more than any buffer on the way
		errs <- err
	}()
	t.destroy(b)
	for range 2 {
		t.inTime("end of a stream's call after destroy", t.h.Timeout, func() {
			if err := <-errs; err == nil {
				t.Error("a call on the stream of a destroyed guest has succeeded")
			}
		})
	}
	t.close(conn)
}

func testDialAfterDestroy(t *tester) {
	b := t.create(t.probeSpec("echo"))
	t.destroy(b)
	conn, err := b.tryDial()
	if err == nil {
		conn.Close()
	}
	t.wantErr("dial after destroy", err, engine.ErrGone)
}

func testClose(t *tester) {
	before := t.h.settled(t)
	e := t.h.Open(t)
	inner := newTester(t, t.h, e, t.probe)
	var boxes []*box
	for range 3 {
		boxes = append(boxes, inner.create(inner.probeSpec("orphans", "2")))
	}
	for range 2 {
		t.must("close", t.call("close", func(context.Context) error { return e.Close() }))
	}
	for _, b := range boxes {
		if exit := inner.exit(b); exit.Reason != engine.ExitDestroyed {
			t.Errorf("exit of a guest after the engine was closed is %+v", exit)
		}
	}
	_, err := e.Create(t.Context(), newID(), t.probeSpec("echo"))
	t.wantErr("create after close", err, engine.ErrGone)
	inner.cleanUp() // destroying what is gone must not fail
	t.h.checkHeld(t, before)
}

func testCloseCreating(t *tester) {
	const n = 4
	e := t.h.Open(t)
	type answer struct {
		g   engine.Guest
		err error
	}
	answers := make(chan answer, n)
	for range n {
		spec := t.probeSpec("echo")
		go func() {
			g, err := e.Create(t.Context(), newID(), spec)
			answers <- answer{g, err}
		}()
	}
	time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond)))) // somewhere on their way
	t.must("close", t.call("close", func(context.Context) error { return e.Close() }))
	for range n {
		t.inTime("create while the engine closes", t.h.Timeout, func() {
			a := <-answers
			if a.err != nil {
				t.wantErr("create while the engine closes", a.err, engine.ErrGone)
				return
			}
			if exit, err := a.g.Wait(t.Context()); err != nil || exit.Reason != engine.ExitDestroyed {
				t.Errorf("guest created while the engine closed: exit %+v, %v", exit, err)
			}
		})
	}
}

func testMany(t *tester) {
	boxes := make([]*box, t.h.Many)
	errs := make([]error, t.h.Many)
	spec := t.spec()
	ctx, cancel := context.WithTimeout(t.Context(), 3*t.h.Timeout)
	defer cancel()
	t.inTime("many creates", 3*t.h.Timeout+grace, func() {
		var wait sync.WaitGroup
		for i := range boxes {
			wait.Go(func() {
				g, err := t.e.Create(ctx, newID(), spec)
				boxes[i], errs[i] = &box{Guest: g, t: t}, err
			})
		}
		wait.Wait()
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("create one of %d: %v", len(errs), err)
			continue
		}
		boxes[i] = t.own(boxes[i].Guest)
	}
	if t.Failed() {
		return
	}
	for _, b := range boxes {
		b.talk()
	}
	for _, b := range boxes {
		b.ping()
		if out := b.sh("echo $((6*7))"); out != "42\n" {
			t.Errorf("%s said %q", b.ID(), out)
		}
	}
}

func testChurn(t *tester) {
	for range 10 {
		b := t.create(t.spec()).talk()
		b.ping()
		t.destroy(b)
	}
}
