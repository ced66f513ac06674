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
	m.Live = true
	c, err := s.Create(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetStill(); err != nil { // without data
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
		if got := c.Meta().Live; got != want {
			t.Errorf("%s: got Live %v, want %v", when, got, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	next(true, "no note")
	must(c.SetStill())
	next(false, "a note")
	next(false, "a note and a box that was not woken")
	must(c.Update(m))
	next(true, "a note and a box that was woken")
	must(c.SetStill())
	must(c.ClearStill())
	must(c.ClearStill())
	next(true, "a note that was cleared")
	must(c.SetStill())
	write(t, c, m, "other data")
	next(true, "a note from before the data")
	must(c.SetStill())
	f, err := c.dir.OpenFile(stillName, os.O_WRONLY|os.O_TRUNC, 0)
	must(err)
	_, err = f.WriteString("another start of the host")
	must(err)
	must(f.Close())
	next(true, "a note from before a restart of the host")
	must(c.Release())
	if err := c.SetStill(); err == nil {
		t.Error("a note in a released record: got no error")
	}
}
