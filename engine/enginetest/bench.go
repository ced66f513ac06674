package enginetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Bench measures the operations of the contract. Times are comparable between engines on
// one machine.
func Bench(b *testing.B, h Harness) {
	h = h.withDefaults(b)
	probe := Probe(b)
	e := h.Open(b)
	defer func() {
		if err := e.Close(); err != nil {
			b.Errorf("close engine: %v", err)
		}
	}()
	run := func(name string, f func(b *testing.B, t *tester)) {
		b.Run(name, func(b *testing.B) {
			t := newTester(b, h, e, probe)
			defer t.cleanUp()
			f(b, t)
		})
	}
	run("create", benchCreate)
	run("dial-and-ping", benchDial)
	run("ping", func(b *testing.B, t *tester) {
		guest := t.create(t.spec()).talk()
		for b.Loop() {
			guest.ping()
		}
	})
	run("exec-true", func(b *testing.B, t *tester) {
		guest := t.create(t.spec()).talk()
		for b.Loop() {
			guest.output(protocol.Exec{Argv: []string{"true"}})
		}
	})
	run("output-64MiB", benchOutput)
}

// benchCreate measures Create up to the agent's first answer, and Destroy.
func benchCreate(b *testing.B, t *tester) {
	for b.Loop() {
		guest := t.create(t.spec()).talk()
		guest.ping()
		t.destroy(guest)
		t.cleanUp()
	}
}

// benchDial measures a new connection to a running guest.
func benchDial(b *testing.B, t *tester) {
	guest := t.create(t.spec()).talk()
	for b.Loop() {
		guest.talk()
		guest.ping()
	}
}

func benchOutput(b *testing.B, t *tester) {
	const mib = 64
	guest := t.create(t.spec()).talk().install()
	b.SetBytes(mib << 20)
	for b.Loop() {
		var got atomic.Int64
		_, err := guest.l.Exec(context.Background(), protocol.Exec{Argv: []string{guest.probe, "pour", fmt.Sprint(mib)}}, nil, counter{n: &got})
		if err != nil || got.Load() != mib<<20 {
			b.Fatalf("%d bytes of output, %v", got.Load(), err)
		}
	}
}
