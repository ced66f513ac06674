package kernel

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestInterrupt_LateSignal delays a SIGINT until after the command that announces
// it, as a busy machine does, and runs the next cell at once: the signal must not
// end that one.
func TestInterrupt_LateSignal(t *testing.T) {
	for _, c := range []struct {
		name, code string
		signals    int           // sent in time, each followed by its announcement
		late       time.Duration // delay of one more
	}{
		{"first interrupt of a waiting cell", "console.log('begun'); await new Promise(() => {})", 0, 500 * time.Millisecond},
		{"second interrupt of a computing cell", "console.log('begun'); while (true);", 1, 100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := start(t, JavaScript, nodes(t)[0])
			sink := &firstOutput{begun: make(chan struct{})}
			ended := make(chan Result, 1)
			go func() {
				res, _ := k.Run(t.Context(), Request{Code: []byte(c.code), Timeout: 20 * time.Second}, sink)
				ended <- res
			}()
			<-sink.begun
			announce := func(signals byte) {
				t.Helper()
				if _, err := k.in.Write(command(cmdInterrupts, binary.BigEndian.AppendUint32(nil, 1), []byte{signals})); err != nil {
					t.Fatal(err)
				}
			}
			for i := range c.signals {
				k.signal(unix.SIGINT)
				announce(byte(i + 1))
			}
			announce(byte(c.signals + 1))
			sent := time.AfterFunc(c.late, func() { k.signal(unix.SIGINT) })
			defer sent.Stop()
			if res := <-ended; res.Error == nil || res.Error.Name != "Interrupted" {
				t.Fatalf("interrupted cell: got %+v, error %+v", res, res.Error)
			}
			res, rec := run(t, k, "{ const end = Date.now() + 1000; while (Date.now() < end); } 'whole'")
			if !res.OK || rec.value() != "'whole'" {
				t.Errorf("next cell: got %+v, error %+v, %q", res, res.Error, rec.all.String())
			}
		})
	}
}

// firstOutput closes begun at the first output of a run.
type firstOutput struct{ begun chan struct{} }

func (f *firstOutput) Output(protocol.Channel, []byte) {
	select {
	case <-f.begun:
	default:
		close(f.begun)
	}
}
func (f *firstOutput) Display([]byte) {}

// TestInterrupt_NextCell stops cells at about the moment at which they end by
// themselves, and runs another cell at once, which no interrupt may reach.
func TestInterrupt_NextCell(t *testing.T) {
	cells := map[string][]string{
		Python: {"time.sleep(0.012)", "end = time.monotonic() + 0.012\nwhile time.monotonic() < end: pass", "await asyncio.sleep(0.012)", "os.system('sleep 0.012')"},
		JavaScript: {"{ const end = Date.now() + 12; while (Date.now() < end); }", "await new Promise((r) => setTimeout(r, 12))",
			"cp.execSync('sleep 0.012')", "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 12)"},
	}
	next := map[string]string{
		Python:     "end = time.monotonic() + 0.01\nwhile time.monotonic() < end: pass\n'whole'",
		JavaScript: "{ const end = Date.now() + 10; while (Date.now() < end); } 'whole'",
	}
	each(t, func(t *testing.T, language string, k *Kernel) {
		run(t, k, map[string]string{Python: "import asyncio, os, time", JavaScript: "const cp = require('child_process')"}[language])
		stopped := 0
		for i := range 30 * len(cells[language]) {
			code := cells[language][i%len(cells[language])]
			timeout := 11*time.Millisecond + rand.N(4*time.Millisecond)
			res, _ := runWith(t, k, Request{Code: []byte(code), Timeout: timeout, Grace: 10 * time.Second})
			if res.Lost != "" {
				t.Fatalf("%s: lost %+v", code, res)
			}
			if res.Stopped != "" {
				stopped++
			}
			res, rec := run(t, k, next[language])
			if !res.OK || rec.value() != "'whole'" {
				t.Fatalf("cell after %q with time-out %v: got %+v, error %+v", code, timeout, res, res.Error)
			}
		}
		if stopped == 0 {
			t.Error(fmt.Sprint("no cell of ", language, " reached its time-out"))
		}
	})
}
