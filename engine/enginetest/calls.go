package enginetest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func callTests() []test {
	return []test{
		{"code-calls-the-host", testCalls},
		{"only-the-run-calls", testCallsOfRun},
		{"call-survives-pause", needs[engine.Pauser](testCallPause)},
		{"restored-call-is-interrupted", needs[engine.Snapshotter](testCallRestored)},
	}
}

// answers is a client.Host that answers each call with its arguments, once proceed is
// closed; nil means at once.
type answers struct {
	called  chan struct{} // receives an element for each call that waits
	proceed chan struct{}
}

func newAnswers() *answers {
	return &answers{called: make(chan struct{}, protocol.MaxCalls), proceed: make(chan struct{})}
}

// Call answers a call.
func (a *answers) Call(ctx context.Context, _ string, args []byte) ([]byte, error) {
	if a != nil {
		a.called <- struct{}{}
		select {
		case <-a.proceed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return fmt.Appendf(nil, `{"value":%s}`, args), nil
}

// runCalling runs code that may call and must succeed, and returns what it prints.
func (b *box) runCalling(language, code string, h client.Host) string {
	b.t.Helper()
	var s sink
	var res protocol.RunResult
	err := b.t.call("run", func(ctx context.Context) (err error) {
		res, err = b.l.RunWithCalls(ctx, protocol.Run{Kernel: language, Language: language}, []byte(code), &s, h)
		return err
	})
	if err != nil || !res.OK {
		b.t.Fatalf("run %q in %s: %+v, %v", code, b.ID(), res, err)
	}
	return strings.TrimSpace(s.stdout())
}

// shellCalling runs a line of shell that may call and must succeed.
func (b *box) shellCalling(line string) string {
	b.t.Helper()
	var s sink
	var res protocol.ExecResult
	err := b.t.call("exec", func(ctx context.Context) (err error) {
		res, err = b.l.ExecWithCalls(ctx, protocol.Exec{Shell: line}, nil, &s, (*answers)(nil))
		return err
	})
	if err != nil || res.Code != 0 {
		b.t.Fatalf("%q in %s: %+v, stderr %q, %v", line, b.ID(), res, s.err.String(), err)
	}
	return strings.TrimSpace(s.stdout())
}

func testCalls(t *tester) {
	b := t.create(t.spec()).talkWithKernels()
	const want = `{"arguments":{"a":1},"language":"shell","name":"s.t"}`
	for range 2 {
		if got := b.shellCalling(`echo '{"a":1}' | glovebox-tool s.t`); got != want {
			t.Errorf("the shell got %q, want %q", got, want)
		}
	}
	for _, l := range b.languages() {
		code := map[string]string{
			"python":     "import asyncio\nprint((await asyncio.gather(*[tools.s.t(a=i) for i in range(50)]))[49]['arguments'])",
			"javascript": "console.log((await Promise.all([...Array(50).keys()].map((a) => tools.s.t({a}))))[49].arguments)",
		}[l]
		if got := strings.ReplaceAll(b.runCalling(l, code, (*answers)(nil)), "'", ""); got != "{a: 49}" && got != "{ a: 49 }" {
			t.Errorf("%s got %q", l, got)
		}
	}
	b.ping()
}

// testCallsOfRun lets a process that a run left behind use the secret of the next run.
func testCallsOfRun(t *tester) {
	b := t.create(t.spec()).talk()
	b.shellCalling("(while [ ! -s token ]; do sleep 0.05; done; . ./token; glovebox-tool s.t > stolen 2>&1 < /dev/null; echo done >> stolen) > /dev/null 2>&1 &")
	got := b.shellCalling("echo \"GLOVEBOX_TOOLS_TOKEN=$GLOVEBOX_TOOLS_TOKEN\" > token.new; mv token.new token; " +
		"for i in $(seq 100); do if tail -n 1 stolen 2> /dev/null | grep -q done; then break; fi; sleep 0.05; done; cat stolen")
	if !strings.Contains(got, "may not call tools") {
		t.Errorf("a process of an earlier run got %q", got)
	}
}

// waiting is a run whose code waits for a call.
type waiting struct {
	out  sink
	done chan struct{}
	res  protocol.RunResult
	err  error
}

// startCalling runs code that calls, and returns when the host has the call.
func (b *box) startCalling(code string, a *answers) *waiting {
	b.t.Helper()
	w := &waiting{done: make(chan struct{})}
	l, ctx := b.l, b.t.Context()
	ctx, cancel := context.WithTimeout(ctx, 3*b.t.h.Timeout)
	go func() {
		defer close(w.done)
		defer cancel()
		w.res, w.err = l.RunWithCalls(ctx, protocol.Run{Kernel: "python", Language: "python"}, []byte(code), &w.out, a)
	}()
	b.t.Cleanup(func() {
		cancel()
		b.t.inTime("end of a run that calls", b.t.h.Timeout, func() { <-w.done })
	})
	b.t.inTime("call", b.t.h.Timeout, func() {
		select {
		case <-a.called:
		case <-w.done:
			b.t.Errorf("the run ended without a call: %+v, %v, %q", w.res, w.err, w.out.stdout())
		}
	})
	return w
}

// python skips the test if no Python kernel starts.
func (b *box) python() {
	b.t.Helper()
	for _, l := range b.languages() {
		if l == "python" {
			return
		}
	}
	b.t.Skip("no Python kernel starts in guests of this harness")
}

// testCallPause answers a call while the guest is paused.
func testCallPause(t *tester) {
	b := t.create(t.spec()).talkWithKernels()
	b.python()
	a := newAnswers()
	w := b.startCalling("print(tools.s.t(a=1)['arguments'])", a)
	b.pause()
	close(a.proceed)
	select {
	case <-w.done:
		t.Errorf("a run in a paused guest has ended: %+v, %v", w.res, w.err)
	case <-time.After(200 * time.Millisecond): // nothing must happen
	}
	b.resume()
	t.inTime("answer after the pause", t.h.Timeout, func() { <-w.done })
	if got := w.out.stdout(); w.err != nil || got != "{'a': 1}\n" {
		t.Errorf("after the pause the code got %q, %v", got, w.err)
	}
}

// testCallRestored takes a snapshot during a call. The original gets its answer; in the
// restored guest, which nobody will answer, the call fails and says why.
func testCallRestored(t *tester) {
	b := t.create(t.spec()).talkWithKernels()
	b.python()
	a := newAnswers()
	w := b.startCalling(`import threading
got = None
def f():
    global got
    try:
        got = tools.s.t(a=1)['arguments']
    except ToolError as e:
        got = e.code, e.message
thread = threading.Thread(target=f)
thread.start()
thread.join()
print(got)`, a)
	taken := b.snapshot()
	close(a.proceed)
	t.inTime("answer after the snapshot", t.h.Timeout, func() { <-w.done })
	if got := w.out.stdout(); w.err != nil || got != "{'a': 1}\n" {
		t.Errorf("after the snapshot the code got %q, %v", got, w.err)
	}
	r := t.restore(t.spec(), taken).wake()
	got := r.run("python", "thread.join()\nprint(*got)")
	if !strings.HasPrefix(got, "interrupted ") || !strings.Contains(got, "whether the tool ran is unknown") {
		t.Errorf("in the restored guest the code got %q", got)
	}
	if got := r.runCalling("python", "print(tools.s.t(a=2)['arguments'])", (*answers)(nil)); got != "{'a': 2}" {
		t.Errorf("a call of the restored guest got %q", got)
	}
}
