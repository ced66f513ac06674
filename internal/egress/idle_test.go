package egress

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestGate_IdleConnectionEnds: a connection ends after ten minutes in which no byte moved in either
// direction, and its record says so.
func TestGate_IdleConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{}, []string{"tcp://a.example.org:7"})
		program, server, spliced := w.piped(t)
		pass := func(from io.Writer, to io.Reader) {
			t.Helper()
			if _, err := from.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10*time.Minute - time.Second)
		pass(program, server)
		time.Sleep(10*time.Minute - time.Second)
		pass(server, program)
		time.Sleep(10*time.Minute - time.Second)
		synctest.Wait()
		if got := w.recorded(); len(got) != 0 || !w.n.Connected() {
			t.Fatalf("before ten idle minutes: %+v", got)
		}
		time.Sleep(time.Second)
		<-spliced
		if n, err := program.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the program reads %d bytes, %v, want the end", n, err)
		}
		if n, err := server.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the server reads %d bytes, %v, want the end", n, err)
		}
		synctest.Wait() // another goroutine than splice's may record the end
		got := w.recorded()
		if len(got) != 1 || got[0].Outcome != Idle || got[0].Sent != 1 || got[0].Received != 1 || got[0].Duration != 30*time.Minute-2*time.Second {
			t.Errorf("records: %+v", got)
		}
		if w.n.Connected() || w.g.Stats().Connections[Idle] != 1 {
			t.Errorf("connected: %t, ended: %v", w.n.Connected(), w.g.Stats().Connections)
		}
	})
}
