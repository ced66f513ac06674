//go:build linux

package snapshot

import (
	"os"
	"testing"
)

// TestStill_UntilTheBoxContinues: the data of an idle box are its latest state until the
// box continues, is woken, or the host restarts.
func TestStill_UntilTheBoxContinues(t *testing.T) {
	s := open(t, Config{})
	m := box("1")
	m.Stale = true
	c, err := s.Create(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetQuiescent(); err != nil { // without data
		t.Fatal(err)
	}
	write(t, c, m, "data")
	next := func(want bool, when string) { // the process dies, and another one acquires the record
		t.Helper()
		if err := c.Release(); err != nil {
			t.Fatal(err)
		}
		if c, err = s.Acquire(c.ID()); err != nil {
			t.Fatal(err)
		}
		if got := c.Meta().Stale; got != want {
			t.Errorf("%s: got Stale %v, want %v", when, got, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	next(true, "no note")
	must(c.SetQuiescent())
	next(false, "a note")
	next(false, "a note and a box that was not woken")
	must(c.Update(m))
	next(true, "a note and a box that was woken")
	must(c.SetQuiescent())
	must(c.ClearQuiescent())
	must(c.ClearQuiescent())
	next(true, "a note that was cleared")
	must(c.SetQuiescent())
	write(t, c, m, "other data")
	next(true, "a note from before the data")
	must(c.SetQuiescent())
	f, err := c.dir.OpenFile(quiescentName, os.O_WRONLY|os.O_TRUNC, 0)
	must(err)
	_, err = f.WriteString("another start of the host")
	must(err)
	must(f.Close())
	next(true, "a note from before a restart of the host")
	must(c.Release())
	if err := c.SetQuiescent(); err == nil {
		t.Error("a note in a released record: got no error")
	}
}
