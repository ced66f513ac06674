package box

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// cutOffCall runs code that calls tools, and cancels it.
func cutOffCall(t *testing.T, f *fixture, changed string) {
	t.Helper()
	b, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	ctx, cancel := context.WithCancel(t.Context())
	calls := &testCalls{changed: changed}
	ended := make(chan error, 1)
	started := make(chan struct{}, 1)
	go func() {
		_, err := b.Run(ctx, RunRequest{Code: "print('half', flush=True)\nimport time\ntime.sleep(100)", ToolCalls: calls, Progress: func(Chunk) {
			select {
			case started <- struct{}{}:
			default:
			}
		}})
		ended <- err
	}()
	<-started
	cancel()
	err = <-ended
	wantCode(t, err, CodeCancelled, "Cancelled: run code")
	if e := err.(*Error); e.Partial == nil || !strings.Contains(e.Partial.Stdout, "half") {
		t.Errorf("the error has the partial output %+v", e.Partial)
	}
}

// undelivered acquires the session and returns what it reports; deliver says whether the answer
// arrives.
func undelivered(t *testing.T, f *fixture, deliver bool) string {
	t.Helper()
	_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Release()
	i := hold.Undelivered()
	hold.Settle(deliver)
	if i == nil {
		return ""
	}
	return i.Changed
}

// TestUndelivered_ReportedOnce: what a cancelled call did is reported by the first answer that
// arrives, and only then.
func TestUndelivered_ReportedOnce(t *testing.T) {
	f := newFixture(t, nil)
	cutOffCall(t, f, "")
	if got := undelivered(t, f, true); got != "" {
		t.Errorf("a call that changed nothing: got %q", got)
	}
	cutOffCall(t, f, "files.write (2)")
	cutOffCall(t, f, "db.insert")
	for range 2 {
		if got, want := undelivered(t, f, false), "db.insert, files.write (2)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	cutOffCall(t, f, strings.Repeat("a.b, ", 200))
	if got := undelivered(t, f, true); !strings.HasPrefix(got, "a.b, a.b, ") || len(got) > maxChanged+len("…") {
		t.Errorf("got %q", got)
	}
	if got := undelivered(t, f, true); got != "" {
		t.Errorf("once more: got %q", got)
	}
}

// TestUndelivered_SurvivesHibernation: a box that is hibernated, as at the end of a server, keeps
// what a cut-off call did.
func TestUndelivered_SurvivesHibernation(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	cutOffCall(t, f, "files.write")
	for _, deliver := range []bool{false, true} {
		f.evict(t, f.boxOf("bob", "x"))
		if got := undelivered(t, f, deliver); got != "files.write" {
			t.Errorf("after a hibernation: got %q", got)
		}
	}
	f.evict(t, f.boxOf("bob", "x"))
	if got := undelivered(t, f, true); got != "" {
		t.Errorf("after it was reported: got %q", got)
	}
	// Before the answer of the call that reports it is delivered.
	cutOffCall(t, f, "files.write")
	_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
	if err != nil || hold.Undelivered() == nil {
		t.Fatalf("got no report; error %v", err)
	}
	f.evict(t, f.boxOf("bob", "x"))
	hold.Settle(false)
	hold.Release()
	if got := undelivered(t, f, true); got != "files.write" {
		t.Errorf("after an answer that did not arrive, and a hibernation: got %q", got)
	}
}

// TestUndelivered_SurvivesRollback: a rollback does not undo calls of tools.
func TestUndelivered_SurvivesRollback(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	f.session(t, "bob", "x")
	saved, hold, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "x", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hold.Release()
	cutOffCall(t, f, "mail.send")
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{Into: "x"}); err != nil {
		t.Fatal(err)
	}
	if got := undelivered(t, f, true); got != "mail.send" {
		t.Errorf("after a rollback: got %q", got)
	}
}

// stoppingCalls are the calls of a program during whose last step the server stops.
type stoppingCalls struct {
	testCalls
	stop context.CancelCauseFunc
}

func (c *stoppingCalls) Displays() []protocol.Display {
	c.stop(ErrStopping)
	return nil
}

// TestUndelivered_Stopped: the stop of the server is reported for a call that it has cut off, not
// for one that has ended just before, nor after a rollback, which undoes what the call did.
func TestUndelivered_Stopped(t *testing.T) {
	f, _ := newSnapFixture(t, neverIdle)
	b := f.session(t, "bob", "x")
	ctx, stop := context.WithCancelCause(t.Context())
	if _, err := b.Run(ctx, RunRequest{Code: "x = 1", ToolCalls: &stoppingCalls{stop: stop}}); err != nil {
		t.Fatal(err)
	}
	stopped := func() *Undelivered {
		_, hold, err := f.Session(t.Context(), "bob", SessionOptions{ID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		defer hold.Release()
		return hold.Undelivered()
	}
	if i := stopped(); i != nil {
		t.Errorf("a call that has ended: got %+v", i)
	}
	cutOff := func() {
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		var once sync.Once
		_, err := b.Run(ctx, RunRequest{Code: "print('half', flush=True)\nimport time\ntime.sleep(100)", Progress: func(Chunk) {
			once.Do(func() { stop(ErrStopping) })
		}})
		wantCode(t, err, CodeCancelled, "Cancelled: run code")
	}
	cutOff()
	if i := stopped(); i == nil || !i.Stopped {
		t.Errorf("a call that was cut off: got %+v", i)
	}
	saved, hold, err := f.SaveSnapshot(t.Context(), "bob", KindSession, "x", SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hold.Release()
	cutOff()
	if _, err := f.Restore(t.Context(), "bob", KindSession, saved.ID, RestoreOptions{Into: "x"}); err != nil {
		t.Fatal(err)
	}
	if i := stopped(); i != nil {
		t.Errorf("after a rollback: got %+v", i)
	}
}
