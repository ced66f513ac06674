package enginetest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func pauseTests() []test {
	return []test{
		{"paused-guest-runs-nothing", needs[engine.Pauser](testPauseStops)},
		{"streams-survive", needs[engine.Pauser](testPauseStreams)},
		{"pause-and-resume-may-be-repeated", needs[engine.Pauser](testPauseTwice)},
		{"pauses-and-resumes-at-once", needs[engine.Pauser](testPauseAtOnce)},
		{"paused-guest-can-be-destroyed", needs[engine.Pauser](testPauseDestroy)},
		{"paused-guest-can-be-destroyed-at-once", needs[engine.Pauser](testPauseWhileDestroyed)},
		{"pause-with-ended-context-is-its-cause", needs[engine.Pauser](testPauseEnded)},
		{"pause-after-destroy-is-gone", needs[engine.Pauser](testPauseGone)},
	}
}

func (b *box) pause() {
	b.t.Helper()
	b.t.must("pause", b.tryPause())
}

func (b *box) tryPause() error {
	b.t.Helper()
	p := ability[engine.Pauser](b.t)
	return b.t.call("pause", func(ctx context.Context) error { return p.Pause(ctx, b.ID()) })
}

func (b *box) resume() {
	b.t.Helper()
	b.t.must("resume", b.tryResume())
}

func (b *box) tryResume() error {
	b.t.Helper()
	p := ability[engine.Pauser](b.t)
	return b.t.call("resume", func(ctx context.Context) error { return p.Resume(ctx, b.ID()) })
}

// last returns the last complete number that a counting command has printed.
func (r *running) last() int {
	out := r.sink.stdout()
	lines := strings.Split(out[:strings.LastIndexByte(out, '\n')+1], "\n")
	if len(lines) < 2 {
		return 0
	}
	n, err := strconv.Atoi(lines[len(lines)-2])
	if err != nil {
		r.b.t.Fatalf("command that counts said %q", lines[len(lines)-2])
	}
	return n
}

// testPauseStops runs a counting command, and another one in the background, and checks
// that they do not advance during a pause.
func testPauseStops(t *tester) {
	b := t.create(t.spec()).talk().install()
	b.exec(protocol.Exec{Shell: b.probe + " count > numbers &"}, nil)
	r := b.startProbe("count")
	t.eventually("command counts", func() bool { return r.last() > 20 })
	count := "tail -n 2 numbers | head -n 1"
	t.eventually("command in the background counts", func() bool { return b.sh(count) != "" })

	from, start := r.last(), time.Now()
	t.eventually("command goes on counting", func() bool { return r.last() > from+100 })
	perSecond := float64(r.last()-from) / time.Since(start).Seconds()
	// Long enough for 400 numbers without a pause.
	length := time.Duration(min(max(0.4, 400/perSecond), 3) * float64(time.Second))
	for range 3 {
		b.pause()
		at, paused := r.last(), time.Now()
		time.Sleep(length) // nothing must happen
		moved := r.last() - at
		if moved > 50 { // those that were on their way may still arrive
			t.Errorf("a paused guest has counted from %d by %d", at, moved)
		}
		resumed := time.Now()
		b.resume()
		t.eventually("command goes on counting", func() bool { return r.last() > at+moved+20 })
		// A process that was not paused is ahead of one that was.
		n, most := float64(r.last()-at), perSecond*(time.Since(resumed)+resumed.Sub(paused)/2).Seconds()+50
		if n > most {
			t.Errorf("a guest paused for %v has counted by %.0f in the pause and %v after it, more than %.0f", length, n, time.Since(resumed), most)
		}
		b.ping()
	}
	first := b.sh(count)
	t.eventually("command in the background goes on counting", func() bool { return b.sh(count) != first })
}

func testPauseStreams(t *tester) {
	b := t.create(t.probeSpec("echo"))
	conn := b.dial()
	defer t.close(conn)
	t.roundTrip(conn, []byte("before"))
	b.pause()
	read := make(chan error, 1)
	const during = "written during the pause"
	got := make([]byte, len(during))
	go func() {
		_, err := io.ReadFull(conn, got)
		read <- err
	}()
	t.inTime("write to a paused guest", t.h.Timeout, func() { // it fits any buffer
		if _, err := conn.Write([]byte(during)); err != nil {
			t.Errorf("write to a paused guest: %v", err)
		}
	})
	select {
	case err := <-read:
		t.Errorf("a paused guest has answered %q, %v", got, err)
		return
	case <-time.After(200 * time.Millisecond): // nothing must happen
	}
	b.resume()
	t.inTime("answer after the pause", t.h.Timeout, func() {
		if err := <-read; err != nil || string(got) != during {
			t.Errorf("after the pause the guest answered %q, %v; want %q", got, err, during)
		}
	})
	t.roundTrip(conn, everyByte(bulk))
}

func testPauseTwice(t *tester) {
	b := t.create(t.probeSpec("echo"))
	b.resume()
	b.echoes()
	b.pause()
	b.pause()
	b.resume()
	b.echoes()
	b.resume()
	b.echoes()
}

func testPauseAtOnce(t *tester) {
	b := t.create(t.probeSpec("echo"))
	p := ability[engine.Pauser](t)
	errs := make(chan error)
	for i := range 8 {
		go func() {
			if i%2 == 0 {
				errs <- p.Pause(t.Context(), b.ID())
			} else {
				errs <- p.Resume(t.Context(), b.ID())
			}
		}()
	}
	for range 8 {
		t.inTime("pause and resume at once", t.h.Timeout, func() {
			if err := <-errs; err != nil {
				t.Errorf("pause and resume at once: %v", err)
			}
		})
	}
	b.resume()
	b.echoes()
}

func testPauseDestroy(t *tester) {
	b := t.create(t.probeSpec("orphans", "2"))
	b.pause()
	t.destroy(b)
	if exit := t.exit(b); exit.Reason != engine.ExitDestroyed {
		t.Errorf("exit of a guest destroyed while paused is %+v", exit)
	}
}

func testPauseWhileDestroyed(t *tester) {
	for range 5 {
		b := t.create(t.probeSpec("echo"))
		done := make(chan error, 1)
		p := ability[engine.Pauser](t)
		go func() { done <- p.Pause(t.Context(), b.ID()) }()
		t.destroy(b)
		t.inTime("pause while the guest is destroyed", t.h.Timeout, func() {
			if err := <-done; err != nil {
				t.wantErr("pause while the guest is destroyed", err, engine.ErrGone)
			}
		})
	}
}

func testPauseEnded(t *tester) {
	b := t.create(t.probeSpec("echo"))
	p := ability[engine.Pauser](t)
	err := t.call("pause", func(ctx context.Context) error { return p.Pause(ended(ctx), b.ID()) })
	if err != nil && !errors.Is(err, errStop) {
		t.Errorf("pause with an ended context: got error %v, want none or its cause", err)
	}
	b.resume()
	b.echoes()
}

func testPauseGone(t *tester) {
	b := t.create(t.probeSpec("echo"))
	t.destroy(b)
	t.wantErr("pause after destroy", b.tryPause(), engine.ErrGone)
	t.wantErr("resume after destroy", b.tryResume(), engine.ErrGone)
}
