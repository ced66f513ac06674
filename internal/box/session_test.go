package box

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

func TestSession_Lifecycle(t *testing.T) {
	f := newFixture(t, nil)
	b, hold, err := f.Session(t.Context(), "", SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !hold.Created || hold.Lost != nil || len(b.ID()) != 36 {
		t.Errorf("new session: got %+v, id %q; want created, a uuid", hold, b.ID())
	}
	wantOut(t, b, "print(sum(range(10)))", "45\n")
	run(t, b, "x = 7")
	again, hold, err := f.Session(t.Context(), "", SessionOptions{ID: b.ID()})
	if err != nil || again != b || hold.Created {
		t.Fatalf("known session: got %v, %+v, %v; want the same box", again, hold, err)
	}
	wantOut(t, again, "x * 6", "42\n")
	other := f.session(t, "", "other")
	if res := run(t, other, "x"); res.Success || res.Error == nil || res.Error.Name != "NameError" {
		t.Errorf("another session: got %+v, want a NameError", res)
	}

	info := b.Info()
	if info.ID != b.ID() || info.Kind != KindSession || info.Interpreter != InterpreterPython || info.Language != Python ||
		info.Flavor != FlavorSmall || info.State != StateReady || info.Created != f.clock.Now() {
		t.Errorf("info: got %+v", info)
	}

	found, err := f.Stop(t.Context(), "", KindSession, b.ID())
	if !found || err != nil {
		t.Fatalf("stop: got %t, %v; want true", found, err)
	}
	if found, err = f.Stop(t.Context(), "", KindSession, b.ID()); found || err != nil {
		t.Errorf("stop again: got %t, %v; want false", found, err)
	}
	if found, err = f.Stop(t.Context(), "", KindSession, "never"); found || err != nil {
		t.Errorf("stop an unknown session: got %t, %v; want false", found, err)
	}
	if ids := f.ids(""); ids[b.ID()] || !ids["other"] {
		t.Errorf("sessions after stop: got %v", ids)
	}
	if b.Info().State != StateStopped {
		t.Errorf("state after stop: got %q", b.Info().State)
	}
	_, err = b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeGone, "was stopped")

	f.clock.add(3 * time.Minute)
	s2, hold, err := f.Session(t.Context(), "", SessionOptions{ID: b.ID()})
	if err != nil {
		t.Fatal(err)
	}
	if !hold.Created || hold.Lost == nil || hold.Lost.Reason != ReasonStopped {
		t.Errorf("stopped session: got %+v, want created with what was lost", hold)
	} else if got := hold.Lost.Explain(f.clock.Now()); got != "it was stopped 3 minutes ago" {
		t.Errorf("explain: got %q", got)
	}
	wantOut(t, s2, "'x' in dir()", "False\n")
	if _, hold, _ = f.Session(t.Context(), "", SessionOptions{ID: b.ID()}); hold.Lost != nil {
		t.Errorf("reused: got %+v, want nothing lost", hold)
	}
}

func TestSession_InvalidOptions(t *testing.T) {
	f := newFixture(t, nil)
	for _, id := range []string{"a b", "ü", "a/b", "..\n", strings.Repeat("x", 129), "\x00"} {
		_, _, err := f.Session(t.Context(), "", SessionOptions{ID: id})
		wantCode(t, err, CodeInvalid, "Invalid session id")
	}
	_, _, err := f.Session(t.Context(), "", SessionOptions{Interpreter: "ruby"})
	wantCode(t, err, CodeUnsupportedLanguage, "Unsupported language: ruby")
	_, _, err = f.Session(t.Context(), "", SessionOptions{Flavor: "huge"})
	wantCode(t, err, CodeInvalid, "huge")

	b, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "Mine_1.x-y", Flavor: FlavorMedium})
	if err != nil || b.ID() != "Mine_1.x-y" || !hold.Created {
		t.Fatalf("unknown id: got %v, %+v, %v; want a new session with it", b, hold, err)
	}
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: b.ID(), Interpreter: InterpreterNode})
	wantCode(t, err, CodeInvalid, "language 'python', not 'javascript'")
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: b.ID(), Flavor: FlavorSmall})
	wantCode(t, err, CodeInvalid, "flavor 'medium', not 'small'")
	f.sessionOf(t, "", SessionOptions{ID: b.ID(), Interpreter: InterpreterPython, Flavor: FlavorMedium})
	if created, _, _ := f.engine.counts(); created != 1 {
		t.Errorf("boxes created: got %d, want 1", created)
	}
}

func TestSession_OwnersAreSeparate(t *testing.T) {
	f := newFixture(t, nil)
	a := f.session(t, "alice", "shared-id")
	run(t, a, "secret = 1")
	b := f.session(t, "bob", "shared-id")
	if a == b {
		t.Fatal("two owners share a box")
	}
	wantOut(t, b, "'secret' in dir()", "False\n")
	only := f.session(t, "alice", "only-alice")
	if found, err := f.Stop(t.Context(), "bob", KindSession, only.ID()); found || err != nil {
		t.Errorf("stop another owner's session: got %t, %v; want false", found, err)
	}
	c := f.context(t, "alice", "work")
	for _, id := range []string{c.ID(), "work"} {
		_, _, err := f.Context(t.Context(), "bob", id)
		wantCode(t, err, CodeNotFound, "Context not found: "+id)
		if found, _ := f.Stop(t.Context(), "bob", KindContext, id); found {
			t.Errorf("stop another owner's context %q: found", id)
		}
	}
	f.Stop(t.Context(), "alice", KindContext, "work")
	_, _, err := f.Context(t.Context(), "bob", c.ID())
	if strings.Contains(err.Error(), "stopped") {
		t.Errorf("another owner's tombstone is reported: %v", err)
	}
	if got := f.List("bob", ""); len(got) != 1 || got[0].Owner != "bob" {
		t.Errorf("bob's boxes: got %+v", got)
	}
	if got := f.List("", ""); len(got) != 0 {
		t.Errorf("the local user's boxes: got %+v", got)
	}
	var client Client // one that changes its owner
	d1, _, err1 := f.DefaultContext(t.Context(), "alice", &client)
	d2, _, err2 := f.DefaultContext(t.Context(), "bob", &client)
	if err1 != nil || err2 != nil || d1 == d2 {
		t.Errorf("default contexts of two owners: got %v, %v, %v, %v", d1, err1, d2, err2)
	}
}

func TestSession_ConcurrentCallsShareOneStart(t *testing.T) {
	f := newFixture(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	boxes, created := map[*Box]int{}, 0
	for range 20 {
		wg.Go(func() {
			b, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "one"})
			if err != nil {
				t.Error(err)
				return
			}
			defer hold.Release()
			mu.Lock()
			defer mu.Unlock()
			boxes[b]++
			if hold.Created {
				created++
			}
		})
	}
	wg.Wait()
	if n, _, _ := f.engine.counts(); len(boxes) != 1 || created != 1 || n != 1 {
		t.Errorf("20 callers of one id: got %d boxes, %d created, %d guests; want 1 each", len(boxes), created, n)
	}
}

func TestSession_CallersLeaveDuringStart(t *testing.T) {
	f := newFixture(t, nil)
	gate := make(chan struct{})
	f.engine.set(nil, gate)
	type answer struct {
		s    *Box
		hold Hold
		err  error
	}
	ask := func(ctx context.Context) chan answer {
		c := make(chan answer, 1)
		before := f.pins("x")
		go func() {
			b, hold, err := f.Session(ctx, "", SessionOptions{ID: "x"})
			c <- answer{b, hold, err}
		}()
		eventually(t, "the caller waits", func() bool { return f.pins("x") > before })
		return c
	}

	ctx1, leave1 := context.WithCancelCause(t.Context())
	first, second := ask(ctx1), ask(t.Context())
	if got := f.List("", "")[0].State; got != StateCreating {
		t.Errorf("state: got %q, want creating", got)
	}
	leave1(errors.New("bored"))
	wantCode(t, (<-first).err, CodeCancelled, "bored")
	close(gate)
	if a := <-second; a.err != nil {
		t.Fatalf("the caller that stayed: %v", a.err)
	}
	f.Stop(t.Context(), "", KindSession, "x")

	// Nobody stays: nothing is left, and nothing is remembered.
	f.engine.set(nil, make(chan struct{}))
	ctx1, leave1 = context.WithCancelCause(t.Context())
	ctx2, leave2 := context.WithCancel(t.Context())
	first, second = ask(ctx1), ask(ctx2)
	leave1(errors.New("bored"))
	leave2()
	wantCode(t, (<-first).err, CodeCancelled)
	wantCode(t, (<-second).err, CodeCancelled)
	eventually(t, "the start is abandoned", func() bool { return len(f.ids("")) == 0 })

	// A caller that comes while the start is being abandoned gets a new session.
	hold := make(chan struct{})
	f.engine.set(nil, hold)
	ctx1, leave1 = context.WithCancelCause(t.Context())
	first = ask(ctx1)
	leave1(errors.New("bored"))
	f.engine.set(nil, nil)
	wantCode(t, (<-first).err, CodeCancelled)
	if _, hold, err := f.Session(t.Context(), "", SessionOptions{ID: "x"}); err != nil || !hold.Created {
		t.Errorf("after a caller left: got %+v, %v", hold, err)
	}
	f.Stop(t.Context(), "", KindSession, "x")
	f.engine.set(nil, make(chan struct{}))

	// Stopped while starting.
	third := ask(t.Context())
	if found, err := f.Stop(t.Context(), "", KindSession, "x"); !found || err != nil {
		t.Errorf("stop while starting: got %t, %v", found, err)
	}
	wantCode(t, (<-third).err, CodeGone, "was stopped")
	f.engine.set(nil, nil)
	if created, live, _ := f.engine.counts(); created != 2 || live != 0 {
		t.Errorf("got %d guests created, %d live; want 2, 0", created, live)
	}
}

func (f *fixture) pins(id string) int {
	f.reg.mu.Lock()
	defer f.reg.mu.Unlock()
	if b := f.reg.boxes[key{"", KindSession, id}]; b != nil {
		return len(b.use.pins)
	}
	return 0
}

func TestSession_FailedStart(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxSessions = 1; c.StartTimeout = 300 * time.Millisecond })
	f.engine.set(engine.ErrExhausted, nil)
	_, _, err := f.Session(t.Context(), "", SessionOptions{ID: "x"})
	wantCode(t, err, CodeStartFailed, "Failed to create python sandbox (small)")
	if e, _ := errors.AsType[*Error](err); !strings.Contains(e.Hint, "Insufficient resources") || !errors.Is(err, engine.ErrExhausted) {
		t.Errorf("got hint %q of %v", e.Hint, err)
	}
	f.engine.set(nil, make(chan struct{}))
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "slow"})
	wantCode(t, err, CodeStartFailed, "the box did not start within")

	f.engine.set(nil, nil)
	f.parts.Machines.Agent.Path = "/bin/cat" // answers, but not in the protocol
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: "x"})
	wantCode(t, err, CodeStartFailed)
	f.parts.Machines.Agent.Path = "/bin/false"
	_, _, err = f.Session(t.Context(), "", SessionOptions{ID: "x"})
	wantCode(t, err, CodeStartFailed)
	if _, live, _ := f.engine.counts(); live != 0 || len(f.ids("")) != 0 {
		t.Errorf("a failed start left %d guests and %v", live, f.ids(""))
	}
}

func TestSession_MissingInterpreter(t *testing.T) {
	f := newFixture(t, nil)
	f.parts.Machines.Interpreters = map[string]string{Python: "/nonexistent/python"}
	_, err := f.CreateContext(t.Context(), "", ContextOptions{Name: "js", Language: "javascript"})
	wantCode(t, err, CodeUnsupportedLanguage, "Unsupported language: javascript", "no interpreter")
	_, _, err = f.Session(t.Context(), "", SessionOptions{Interpreter: InterpreterNode})
	wantCode(t, err, CodeUnsupportedLanguage)
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "py"})
	wantCode(t, err, CodeStartFailed, "start python kernel")
	b := f.session(t, "", "lazy") // its kernel starts with the first run
	_, err = b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeExecFailed)
	_, err = b.Run(t.Context(), RunRequest{Code: "1", Language: "ruby"})
	wantCode(t, err, CodeUnsupportedLanguage, "Unsupported language: ruby. Must be 'python' or 'javascript'")
}

// TestSession_WithoutInterpreters: sessions of an image that has neither Python nor
// Node.js run commands, and say why they run no code.
func TestSession_WithoutInterpreters(t *testing.T) {
	f := newFixture(t, nil)
	f.parts.Machines.Interpreters = nil
	b := f.session(t, "", "commands")
	if res, err := b.Exec(t.Context(), ExecRequest{Shell: "echo done"}); err != nil || res.Stdout != "done\n" {
		t.Errorf("command: %+v, %v", res, err)
	}
	_, err := b.Run(t.Context(), RunRequest{Code: "1"})
	wantCode(t, err, CodeUnsupportedLanguage, "commands only")
	wantCode(t, noInterpreter("run code", Python, "template", nil), CodeUnsupportedLanguage, "The image of this template has neither Python nor Node.js")
	_, err = f.CreateContext(t.Context(), "", ContextOptions{Name: "none"})
	wantCode(t, err, CodeUnsupportedLanguage, "commands only")
}

// TestSession_UsualLanguage: a session for which no language was asked has one that the
// image has.
func TestSession_UsualLanguage(t *testing.T) {
	f := newFixture(t, nil)
	have := f.parts.Machines.Interpreters
	f.parts.Machines.Interpreters = map[string]string{JavaScript: "/nonexistent/node"}
	if b := f.session(t, "", "node"); b.interpreter != InterpreterNode {
		t.Errorf("without Python: template %s", b.interpreter)
	}
	f.parts.Machines.Interpreters = have
	if b := f.session(t, "", "python"); b.interpreter != InterpreterPython {
		t.Errorf("with Python: template %s", b.interpreter)
	}
}
