package box

import "testing"

// A box that ran a call since it was written to disk is not paused, since its latest
// state is not on disk.
func TestPause_RefusedAfterCall(t *testing.T) {
	f := newFixture(t, nil)
	b := f.context(t, "", "c")
	state := func() (use uint64, paused bool) {
		f.reg.mu.Lock()
		defer f.reg.mu.Unlock()
		return b.use.seq, b.state == statePaused
	}
	written, _ := state()
	wantOut(t, b, "x = 1; print(x)", "1\n")
	if err := b.pause(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	now, paused := state()
	if paused {
		t.Error("the box was paused after a call that is not on disk")
	}
	if err := b.pause(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if _, paused := state(); !paused {
		t.Error("the box was not paused although no call has come")
	}
	wantOut(t, b, "print(x)", "1\n")
}
