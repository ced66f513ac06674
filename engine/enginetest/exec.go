package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func execTests() []test {
	var tests []test
	for _, c := range execTable {
		tests = append(tests, test{c.name, func(t *tester) {
			b := t.create(t.spec()).talk()
			r := b.exec(c.cmd, c.stdin())
			if r.err != nil {
				t.Fatalf("exec: %v", r.err)
			}
			if r.stdout != c.stdout || r.stderr != c.stderr || r.Code != c.code {
				t.Errorf("stdout %q, stderr %q, exit code %d; want %q, %q, %d",
					r.stdout, r.stderr, r.Code, c.stdout, c.stderr, c.code)
			}
		}})
	}
	return append(tests, []test{
		{"directory-is-home", testExecHome},
		{"environment-is-not-the-agents", testExecEnvironment},
		{"missing-program-is-127", testExecMissing},
		{"end-by-signal-is-told", testExecSignal},
		{"background-child-does-not-hold-the-call", testExecBackgroundChild},
		{"cancel-ends-the-process-not-the-guest", testExecCancel},
		{"cancel-ends-its-children-too", testExecCancelChildren},
		{"commands-at-once", testExecAtOnce},
	}...)
}

// execCase is a command with its expected outcome.
type execCase struct {
	name           string
	cmd            protocol.Exec
	in             string
	hasIn          bool
	stdout, stderr string
	code           int
}

func (c execCase) stdin() io.Reader {
	if !c.hasIn {
		return nil
	}
	return strings.NewReader(c.in)
}

var execTable = []execCase{
	{name: "no-output", cmd: protocol.Exec{Argv: []string{"true"}}},
	{name: "stdout", cmd: protocol.Exec{Argv: []string{"echo", "a  b", "$HOME"}}, stdout: "a  b $HOME\n"},
	{name: "stderr", cmd: protocol.Exec{Shell: "echo oops >&2"}, stderr: "oops\n"},
	{name: "both-and-code", cmd: protocol.Exec{Shell: "echo out; echo err >&2; exit 3"}, stdout: "out\n", stderr: "err\n", code: 3},
	{name: "code-255", cmd: protocol.Exec{Shell: "exit 255"}, code: 255},
	{name: "no-newline", cmd: protocol.Exec{Shell: "printf x"}, stdout: "x"},
	{name: "stdin", cmd: protocol.Exec{Argv: []string{"cat"}}, in: "a\nb", hasIn: true, stdout: "a\nb"},
	{name: "stdin-empty", cmd: protocol.Exec{Argv: []string{"cat"}}, hasIn: true},
	{name: "stdin-none", cmd: protocol.Exec{Argv: []string{"cat"}}},
	{name: "stdin-not-read", cmd: protocol.Exec{Argv: []string{"true"}}, in: strings.Repeat("x", 1<<20), hasIn: true},
	{name: "stdin-of-every-line-kind", cmd: protocol.Exec{Argv: []string{"cat"}}, in: "\x00\r\n\xff", hasIn: true, stdout: "\x00\r\n\xff"},
	{name: "environment", cmd: protocol.Exec{Shell: `echo "$GREETING"`, Env: []string{"GREETING=a=b c"}}, stdout: "a=b c\n"},
	{name: "directory", cmd: protocol.Exec{Argv: []string{"pwd"}, Dir: "/"}, stdout: "/\n"},
}

func testExecHome(t *tester) {
	b := t.create(t.spec()).talk()
	if got, want := b.sh("pwd"), b.user.Home+"\n"; got != want {
		t.Errorf("commands start in %q, want %q", got, want)
	}
}

func testExecEnvironment(t *tester) {
	const secret = "of-the-host-only"
	t.Setenv("ENGINETEST_SECRET", secret)
	b := t.create(t.spec()).talk()
	if out := b.sh("env"); strings.Contains(out, secret) || !strings.Contains(out, "HOME="+b.user.Home) {
		t.Errorf("environment of a command is %q", out)
	}
}

func testExecMissing(t *tester) {
	b := t.create(t.spec()).talk()
	for _, cmd := range []protocol.Exec{{Argv: []string{"no-such-program"}}, {Argv: []string{"/no/such/program"}}, {Shell: "no-such-program"}} {
		if r := b.exec(cmd, nil); r.err != nil || r.Code != 127 {
			t.Errorf("%q %s: exit code %d, %v; want 127", cmd.Argv, cmd.Shell, r.Code, r.err)
		}
	}
}

func testExecSignal(t *tester) {
	b := t.create(t.spec()).talk()
	if r := b.exec(protocol.Exec{Shell: "kill -TERM $$"}, nil); r.err != nil || r.Code != 128+15 || r.Signal == "" {
		t.Errorf("command that killed itself: exit code %d, signal %q, %v; want 143 and a signal", r.Code, r.Signal, r.err)
	}
}

func testExecBackgroundChild(t *tester) {
	b := t.create(t.spec()).talk()
	start := time.Now()
	if r := b.exec(protocol.Exec{Shell: "sleep 1000 & echo started"}, nil); r.err != nil || r.stdout != "started\n" {
		t.Errorf("stdout %q, %v", r.stdout, r.err)
	}
	if took := time.Since(start); took > t.h.Timeout/2 {
		t.Errorf("a background child has held the call for %v", took)
	}
}

func testExecCancel(t *tester) {
	b := t.create(t.spec()).talk()
	r := b.start(protocol.Exec{Shell: "echo begun; exec sleep 1000"})
	r.says("begun")
	r.stop(errStop)
	if res := r.wait(); res.err == nil && res.Stopped != "cancelled" {
		t.Errorf("a cancelled command ended with %+v", res.ExecResult)
	} else if res.err != nil && !errors.Is(res.err, errStop) {
		t.Errorf("a cancelled command ended with error %v", res.err)
	}
	b.ping()
	if out := b.sh("echo alive"); out != "alive\n" {
		t.Errorf("after a cancelled command the guest says %q", out)
	}
}

func testExecCancelChildren(t *tester) {
	b := t.create(t.spec()).talk()
	r := b.start(protocol.Exec{Shell: "(trap '' TERM; while :; do date +%s%N > tick; sleep 0.02; done) & echo begun; wait", GraceMS: 200})
	r.says("begun")
	t.eventually("child at work", func() bool { return b.exec(protocol.Exec{Argv: []string{"cat", "tick"}}, nil).Code == 0 })
	r.stop(errStop)
	r.wait()
	last := b.sh("cat tick")
	t.eventually("end of the child", func() bool {
		now := b.sh("sleep 0.2; cat tick")
		same := now == last
		last = now
		return same
	})
}

func testExecAtOnce(t *tester) {
	const n = 20
	b := t.create(t.spec()).talk()
	results := make([]result, n)
	t.call("commands", func(ctx context.Context) error {
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() {
				results[i] = b.execContext(ctx, protocol.Exec{Argv: []string{"cat"}}, strings.NewReader(fmt.Sprintln("command", i)))
			})
		}
		wait.Wait()
		return nil
	})
	for i, r := range results {
		if want := fmt.Sprintln("command", i); r.err != nil || r.stdout != want {
			t.Errorf("stdout %q, %v; want %q", r.stdout, r.err, want)
		}
	}
}
