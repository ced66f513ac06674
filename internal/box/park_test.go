package box

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// parkingCalls parks each call until the test releases it.
type parkingCalls struct {
	parallel int32 // calls are parked when so many have arrived: a box that is paused makes no more
	arrived  atomic.Int32
	all      chan struct{} // closed when they have arrived
	parked   chan struct{} // gets a value when a call is parked
	release  chan struct{} // closed, or gets a value for each call
}

func newParkingCalls(parallel int32) *parkingCalls {
	return &parkingCalls{parallel: parallel, all: make(chan struct{}), parked: make(chan struct{}, 100), release: make(chan struct{})}
}

func (c *parkingCalls) Call(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	if c.arrived.Add(1) == c.parallel {
		close(c.all)
	}
	<-c.all
	unpark := Park(ctx)
	defer unpark()
	c.parked <- struct{}{}
	select {
	case <-c.release:
		return []byte(`{"value":1}`), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (*parkingCalls) Changed() string { return "" }

func (c *parkingCalls) Displays() []protocol.Display { return nil }
func (c *parkingCalls) End()                         {}

type runAnswer struct {
	res *RunResult
	err error
}

// startRun runs code in the background.
func startRun(ctx context.Context, b *Box, req RunRequest) <-chan runAnswer {
	done := make(chan runAnswer, 1)
	go func() {
		res, err := b.Run(ctx, req)
		done <- runAnswer{res, err}
	}()
	return done
}

// TestPark checks that a parked run uses neither CPU nor its timeout, that other calls
// of the box work meanwhile, and that the box is paused again after them.
func TestPark(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	wantOut(t, b, "n = 0", "")
	calls := newParkingCalls(3)
	const timeout = 2 * time.Second
	begun := time.Now()
	done := startRun(t.Context(), b, RunRequest{Timeout: timeout, ToolCalls: calls, Code: `import threading, time
def count():
    global n
    while n >= 0:
        n += 1
threading.Thread(target=count, daemon=True).start()
with __import__('concurrent.futures').futures.ThreadPoolExecutor() as pool:
    print(sum(pool.map(lambda i: tools.s.t(i=i), range(3))))
n = -1000`})
	for range 3 {
		<-calls.parked
	}
	eventually(t, "the box is paused", b.power.isPaused)
	if res, err := b.Exec(t.Context(), ExecRequest{Shell: "echo hello"}); err != nil || res.Stdout != "hello\n" {
		t.Errorf("a command beside the parked run: got %+v, %v", res, err)
	}
	eventually(t, "the box is paused again", b.power.isPaused)
	if state := f.stateOf(b); state != stateRunning {
		t.Errorf("the box is %v", state)
	}
	before, err := b.machine.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(begun.Add(timeout + time.Second))) // the timeout is about wall time
	after, err := b.machine.Stats(t.Context())
	if err != nil || after.CPU-before.CPU > 10*time.Millisecond {
		t.Errorf("the parked box used %v of CPU time, %v", after.CPU-before.CPU, err)
	}
	close(calls.release)
	a := <-done
	if a.err != nil || !a.res.Success || a.res.Stdout != "3\n" {
		t.Fatalf("got %+v, %v", a.res, a.err)
	}
	if a.res.Duration >= timeout {
		t.Errorf("the result counts the parked time: %v", a.res.Duration)
	}
	if b.power.isPaused() || b.parked.Load() != 0 || b.activeCalls.Load() != 0 {
		t.Errorf("paused %t, %d parked of %d", b.power.isPaused(), b.parked.Load(), b.activeCalls.Load())
	}
}

// TestPark_timeout checks that the timeout of a run that may call is still enforced,
// before and after it was parked, and that the interpreter survives.
func TestPark_timeout(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	wantOut(t, b, "", "") // starts the interpreter
	calls := newParkingCalls(1)
	close(calls.release)
	for _, code := range []string{"x = 1\nwhile True: pass", "tools.s.t()\nwhile True: pass"} {
		res := runReq(t, b, RunRequest{Code: code, Timeout: time.Second, ToolCalls: calls})
		if !res.TimedOut || res.Lost != "" || len(res.Notes) == 0 || res.Notes[0] != "Code execution timed out after 1 second and was interrupted; variables are kept." {
			t.Errorf("%q: got %+v", code, res)
		}
	}
	wantOut(t, b, "print(x)", "1\n")
	res, err := b.Exec(t.Context(), ExecRequest{Shell: "glovebox-tool s.t && sleep 60", Timeout: time.Second, ToolCalls: calls})
	if err != nil || !res.TimedOut || res.Stdout != "1\n" {
		t.Errorf("a command: got %+v, %v", res, err)
	}
}

// TestPark_cancel checks that parked code can be cancelled, without the loss of the box,
// and that it counts as cancelled although its call fails, and so it may, at the same time.
func TestPark_cancel(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	wantOut(t, b, "x = 1", "")
	for range 20 {
		calls := newParkingCalls(1)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := startRun(ctx, b, RunRequest{Code: "tools.s.t()", ToolCalls: calls})
		<-calls.parked
		eventually(t, "the box is paused", b.power.isPaused)
		cancel(errors.New("as the test wants"))
		a := <-done
		wantCode(t, a.err, CodeCancelled)
	}
	for range 20 {
		calls := newParkingCalls(1)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := b.Exec(ctx, ExecRequest{Shell: "glovebox-tool s.t", ToolCalls: calls})
			done <- err
		}()
		<-calls.parked
		cancel(errors.New("as the test wants"))
		wantCode(t, <-done, CodeCancelled)
	}
	wantOut(t, b, "print(x)", "1\n")
}

// TestPark_end checks that a box that ends while it is parked ends its calls.
func TestPark_end(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.StopWait = 50 * time.Millisecond })
	b := f.context(t, "", "x")
	calls := newParkingCalls(1)
	done := startRun(t.Context(), b, RunRequest{Code: "tools.s.t()", ToolCalls: calls})
	<-calls.parked
	eventually(t, "the box is paused", b.power.isPaused)
	f.life.terminate(b, ReasonCrashed, "as the test wants")
	a := <-done
	wantCode(t, a.err, CodeGone)
}

// TestPark_both checks that runs of both interpreters are parked independently.
func TestPark_both(t *testing.T) {
	f := newFixture(t, nil)
	if interpreters()[JavaScript] == "" {
		t.Skip("no node on this machine")
	}
	b := f.session(t, "", "x")
	python, node := newParkingCalls(1), newParkingCalls(1)
	one := startRun(t.Context(), b, RunRequest{Code: "print(tools.s.t())", ToolCalls: python})
	<-python.parked
	two := startRun(t.Context(), b, RunRequest{Language: JavaScript, Code: "console.log(await tools.s.t())", ToolCalls: node})
	<-node.parked
	eventually(t, "the box is paused", b.power.isPaused)
	close(python.release)
	if a := <-one; a.err != nil || a.res.Stdout != "1\n" {
		t.Errorf("got %+v, %v", a.res, a.err)
	}
	eventually(t, "the box is paused for the other run", b.power.isPaused)
	close(node.release)
	if a := <-two; a.err != nil || a.res.Stdout != "1\n" {
		t.Errorf("got %+v, %v", a.res, a.err)
	}
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var mu sync.Mutex
		var fired time.Duration
		d := newDeadline(10*time.Second, func() {
			mu.Lock()
			defer mu.Unlock()
			fired = time.Since(begun)
		})
		step := func(d time.Duration) time.Duration {
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return fired
		}
		step(4 * time.Second)
		d.suspend(time.Hour)
		step(time.Minute)
		d.resume()
		if got := step(5 * time.Second); got != 0 {
			t.Errorf("fired after %v", got)
		}
		d.suspend(30 * time.Second)
		if got := step(40 * time.Second); got != 100*time.Second {
			t.Errorf("a hold that is too long: fired after %v, want 1m40s", got)
		}
		e := newDeadline(time.Second, func() { t.Error("fired after stop") })
		e.suspend(time.Minute)
		e.set(2 * time.Second)
		e.resume() // of the hold that set has ended
		step(time.Second)
		e.stop()
		e.resume()
		step(time.Hour)
	})
}

// TestPark_others checks that other runs of the interpreter do not wait for a parked one, whether
// they came before or after it was parked, and that a short wait is none.
func TestPark_others(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	parked := func(a runAnswer) {
		t.Helper()
		wantCode(t, a.err, CodeBusy)
		if e := (*Error)(nil); !errors.As(a.err, &e) || e.Context["reason"] != ReasonParked {
			t.Errorf("got %+v", a.err)
		}
	}
	calls := newParkingCalls(1)
	first := startRun(t.Context(), b, RunRequest{Code: "import os, time\nopen('began', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\ntools.s.t()", ToolCalls: calls})
	eventually(t, "the run begins", func() bool {
		res, err := b.Exec(t.Context(), ExecRequest{Shell: "test -e began"})
		return err == nil && res.ExitCode == 0
	})
	before := startRun(t.Context(), b, RunRequest{Code: "print(1)"})
	eventually(t, "a run waits", func() bool { return b.kernel("python").runs.Waiting() == 1 })
	if _, err := b.Exec(t.Context(), ExecRequest{Shell: "touch go"}); err != nil {
		t.Fatal(err)
	}
	<-calls.parked
	parked(<-before)
	parked(<-startRun(t.Context(), b, RunRequest{Code: "print(2)"}))
	close(calls.release)
	if a := <-first; a.err != nil || !a.res.Success {
		t.Errorf("the parked run: got %+v, %v", a.res, a.err)
	}
	wantOut(t, b, "print(3)", "3\n")
}
