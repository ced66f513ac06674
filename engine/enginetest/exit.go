package enginetest

import (
	"context"
	"errors"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
)

func testWaitContext(t *tester) {
	b := t.create(t.probeSpec("echo"))
	var err error
	t.inTime("wait with an ended context", t.h.Timeout, func() { _, err = b.Wait(ended(t.Context())) })
	if !errors.Is(err, errStop) {
		t.Errorf("wait with an ended context: got error %v, want its cause", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Wait(ctx)
		done <- err
	}()
	cancel(errStop)
	t.inTime("wait whose context ends", t.h.Timeout, func() { err = <-done })
	if !errors.Is(err, errStop) {
		t.Errorf("wait whose context ends: got error %v, want its cause", err)
	}
	b.echoes()
}

func testWaitSame(t *tester) {
	const n = 8
	b := t.create(t.probeSpec("exit", "41"))
	exits := make(chan engine.Exit, n)
	for range n {
		go func() {
			exit, err := b.Wait(t.Context())
			if err != nil {
				t.Errorf("wait: %v", err)
			}
			exits <- exit
		}()
	}
	want := b.end()
	for range n {
		t.inTime("wait", t.h.Timeout, func() {
			if exit := <-exits; exit != want {
				t.Errorf("waiters were told %+v and %+v", want, exit)
			}
		})
	}
	if exit := t.exit(b); exit != want {
		t.Errorf("a waiter was told %+v and a later one %+v", want, exit)
	}
}

func testAgentExit(t *tester) {
	for _, code := range []string{"0", "7"} {
		b := t.create(t.probeSpec("exit", code))
		exit := b.end()
		if exit.Reason != engine.ExitExited || exit.Code != int(code[0]-'0') {
			t.Errorf("exit of an agent that returned %s is %+v", code, exit)
		}
		if strings.ContainsAny(exit.Detail, "\n\x1b") {
			t.Errorf("detail %q is not a line of text", exit.Detail)
		}
		conn, err := b.tryDial()
		if err == nil {
			conn.Close()
		}
		t.wantErr("dial after the agent has returned", err, engine.ErrGone)
	}
}

func testExitStays(t *tester) {
	b := t.create(t.probeSpec("exit", "5"))
	before := b.end()
	t.destroy(b)
	if after := t.exit(b); after != before {
		t.Errorf("exit was %+v and is %+v after destroy", before, after)
	}
}

func testAgentDies(t *tester) {
	b := t.create(t.probeSpec("die", "9"))
	exit := b.end()
	switch {
	case exit.Reason == engine.ExitExited && (exit.Code == 128+9 || exit.Code == 99): // 99: it could not
	case exit.Reason == engine.ExitCrashed:
	default:
		t.Errorf("exit of an agent that killed itself is %+v, want exited with 137, or crashed", exit)
	}
}
