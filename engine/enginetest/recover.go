package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
)

func recoverTests() []test {
	return []test{
		{"detached-guest-outlives-its-engine", needs[engine.Recoverer](testRecover)},
		{"link-resumes-after-recover", needs[engine.Recoverer](testRecoverLink)},
		{"list-has-all-living-guests", needs[engine.Recoverer](testRecoverList)},
		{"detached-guest-is-gone-for-its-holder", needs[engine.Recoverer](testDetachedGone)},
		{"id-of-a-detached-guest-is-taken", needs[engine.Recoverer](testDetachedID)},
		{"exit-of-a-recovered-guest-is-reported", needs[engine.Recoverer](testRecoveredExit)},
		{"recover-refuses-what-is-held-gone-or-malformed", needs[engine.Recoverer](testRecoverRefused)},
	}
}

// detach returns the state of a guest and detaches it from e.
func (t *tester) detach(e engine.Engine, id string) engine.GuestState {
	t.Helper()
	r, _ := engine.As[engine.Recoverer](e)
	var state engine.GuestState
	t.must("detach "+id, t.call("detach", func(ctx context.Context) (err error) {
		if state, err = r.State(ctx, id); err != nil {
			return err
		}
		return r.Detach(ctx, id)
	}))
	return state
}

func (t *tester) tryRecover(state engine.GuestState) (engine.Guest, error) {
	t.Helper()
	var g engine.Guest
	err := t.call("recover", func(ctx context.Context) (err error) {
		g, err = ability[engine.Recoverer](t).Recover(ctx, state)
		return err
	})
	return g, err
}

// recover adopts a guest and destroys it at the end of the test.
func (t *tester) recover(state engine.GuestState) *box {
	t.Helper()
	g, err := t.tryRecover(state)
	t.must("recover "+state.ID, err)
	if g.ID() != state.ID {
		t.Errorf("recovered guest %s has the id %s", state.ID, g.ID())
	}
	return t.own(g)
}

// elsewhere runs f with another engine on the same state, whose guests the test
// does not destroy, and closes that engine.
func (t *tester) elsewhere(f func(other *tester)) {
	t.Helper()
	e := t.h.Open(t.TB)
	closing := func() {
		t.must("close the other engine", t.call("close", func(context.Context) error { return e.Close() }))
	}
	t.Cleanup(closing) // if f ends the test
	f(newTester(t.TB, t.h, e, t.probe))
	closing()
}

// detached returns the state of a guest that an engine has created and left behind.
func (t *tester) detached(spec *engine.Spec, use func(b *box)) engine.GuestState {
	t.Helper()
	var state engine.GuestState
	t.elsewhere(func(other *tester) {
		b := other.create(spec)
		if use != nil {
			use(b)
		}
		state = t.detach(other.e, b.ID())
		b.unlink()
	})
	return state
}

func (t *tester) list() []string {
	t.Helper()
	var ids []string
	t.must("list", t.call("list", func(ctx context.Context) error {
		states, err := ability[engine.Recoverer](t).List(ctx)
		for _, s := range states {
			ids = append(ids, s.ID)
		}
		return err
	}))
	if !slices.IsSorted(ids) {
		t.Errorf("List is not sorted: %q", ids)
	}
	return ids
}

func testRecover(t *tester) {
	state := t.detached(t.probeSpec("echo"), func(b *box) { b.echoes() })
	if len(state.Data) > 64<<10 {
		t.Errorf("state has %d bytes, more than 64 KiB", len(state.Data))
	}
	if ids := t.list(); !slices.Contains(ids, state.ID) {
		t.Errorf("List does not contain detached guest %s: %q", state.ID, ids)
	}
	b := t.recover(state)
	b.echoes()
	var again engine.GuestState
	t.must("state", t.call("state", func(ctx context.Context) (err error) {
		again, err = ability[engine.Recoverer](t).State(ctx, b.ID())
		return err
	}))
	if again.ID != state.ID || again.Version != state.Version || !bytes.Equal(again.Data, state.Data) {
		t.Errorf("state was %+v and is %+v after Recover", state, again)
	}
	t.destroy(b)
	if exit := t.exit(b); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit of a destroyed guest is %+v", exit)
	}
	if ids := t.list(); slices.Contains(ids, state.ID) {
		t.Errorf("List contains destroyed guest %s", state.ID)
	}
}

// testRecoverLink replaces an engine while a command runs.
func testRecoverLink(t *tester) {
	state := t.detached(t.spec(), func(b *box) {
		b.talk().sh("echo kept > kept")
	})
	b := t.recover(state)
	hello := b.hello()
	hello.Entropy = make([]byte, 32)
	t.must("resume link", b.tryResumeLink(hello))
	if got := b.sh("cat kept"); got != "kept\n" {
		t.Errorf("the file of a recovered guest is %q", got)
	}
}

func testRecoverList(t *tester) {
	before := t.list()
	held := t.create(t.probeSpec("echo"))
	t.elsewhere(func(other *tester) {
		foreign := other.create(t.probeSpec("echo"))
		ids := t.list()
		for _, id := range append(before, held.ID(), foreign.ID()) {
			if !slices.Contains(ids, id) {
				t.Errorf("List %q does not contain living guest %s", ids, id)
			}
		}
		other.cleanUp()
		if ids := t.list(); slices.Contains(ids, foreign.ID()) {
			t.Errorf("List %q contains destroyed guest %s", ids, foreign.ID())
		}
	})
}

func testDetachedGone(t *tester) {
	t.elsewhere(func(other *tester) {
		b := other.create(t.probeSpec("echo"))
		conn := b.dial()
		ctx, cancel := withTimeout(t, t.h.Timeout/2)
		defer cancel()
		waited := make(chan error, 1)
		go func() {
			_, err := b.Wait(ctx)
			waited <- err
		}()
		state := t.detach(other.e, b.ID())
		t.wantErr("wait for a detached guest", <-waited, engine.ErrGone)
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(conn, make([]byte, 1))
			read <- err
		}()
		select {
		case err := <-read:
			if err == nil {
				t.Error("the stream of a detached guest still delivers bytes")
			}
		case <-ctx.Done():
			t.Error("a read on the stream of a detached guest does not return")
		}
		t.close(conn)
		_, err := b.tryDial()
		t.wantErr("dial a detached guest", err, engine.ErrGone)
		t.wantErr("destroy a detached guest", t.call("destroy", b.Destroy), engine.ErrGone)
		r, _ := engine.As[engine.Recoverer](other.e)
		err = t.call("detach", func(ctx context.Context) error { return r.Detach(ctx, b.ID()) })
		t.wantErr("detach a detached guest", err, engine.ErrGone)
		t.recover(state).echoes()
	})
}

func testDetachedID(t *tester) {
	state := t.detached(t.probeSpec("echo"), nil)
	err := t.call("create", func(ctx context.Context) error {
		g, err := t.e.Create(ctx, state.ID, t.probeSpec("echo"))
		if err == nil {
			t.own(g)
		}
		return err
	})
	t.wantErr("create with the id of a detached guest", err, engine.ErrExists)
	t.recover(state).echoes()
}

func testRecoveredExit(t *tester) {
	b := t.recover(t.detached(t.probeSpec("exit", "7"), nil))
	if exit := b.end(); exit.Reason != engine.ExitExited || exit.Code != 7 {
		t.Errorf("exit of a recovered guest is %+v, want exited with 7", exit)
	}
}

func testRecoverRefused(t *tester) {
	refused := func(what string, state engine.GuestState, want ...error) {
		t.Helper()
		g, err := t.tryRecover(state)
		if err == nil {
			t.own(g)
		}
		if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
			t.Errorf("recover %s: got error %v, want one of %v", what, err, want)
		}
	}
	state := t.detached(t.probeSpec("echo"), nil)
	change := func(f func(s *engine.GuestState)) engine.GuestState {
		s := engine.GuestState{ID: state.ID, Version: state.Version, Data: bytes.Clone(state.Data)}
		f(&s)
		return s
	}
	refused("with an unknown version", change(func(s *engine.GuestState) { s.Version += 1000 }), engine.ErrInvalid)
	refused("with a malformed id", change(func(s *engine.GuestState) { s.ID = "../x" }), engine.ErrInvalid)
	refused("with truncated data", change(func(s *engine.GuestState) { s.Data = s.Data[:len(s.Data)/2] }), engine.ErrInvalid, engine.ErrGone)
	refused("under an unknown id", change(func(s *engine.GuestState) { s.ID = newID() }), engine.ErrInvalid, engine.ErrGone)
	b := t.recover(state)
	refused("a guest of this engine", state, engine.ErrExists)
	t.destroy(b)
	refused("a destroyed guest", state, engine.ErrGone)
}
