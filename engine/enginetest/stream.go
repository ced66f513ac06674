package enginetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// bulk is how much the tests send at once: more than all buffers on the way.
const bulk = 4 << 20

// maxGrowth is how much of the host's memory a guest may make anyone hold that
// does not read, or reads nonsense.
const maxGrowth = 16 << 20

func streamTests() []test {
	return []test{
		{"bytes-arrive-as-they-were", testStreamBytes},
		{"dial-supersedes", testDialSupersedes},
		{"dial-supersedes-a-link", testDialSupersedesLink},
		{"dials-at-once-leave-one", testDialAtOnce},
		{"dial-with-ended-context-is-its-cause", testDialEnded},
		{"close-leaves-the-guest", testStreamClose},
		{"close-unblocks-its-calls", testStreamCloseUnblocks},
		{"link-resumes-on-a-new-stream", testResume},
		{"unread-stream-holds-the-guest-up", testStreamUnread},
		{"every-byte-through-a-command", testBytesThroughCommand},
		{"slow-reader-does-not-grow-the-host", testSlowReader},
	}
}

// everyByte returns n bytes with every value in every neighbourhood.
func everyByte(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		if i%512 < 256 {
			b[i] = byte(i)
			continue
		}
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func testStreamBytes(t *tester) {
	conn := t.create(t.probeSpec("echo")).dial()
	defer t.close(conn)
	t.roundTrip(conn, []byte{0})
	t.roundTrip(conn, everyByte(bulk))
}

func testDialSupersedes(t *tester) {
	b := t.create(t.probeSpec("echo"))
	first := b.dial()
	t.roundTrip(first, []byte("first"))
	read := make(chan error, 1)
	go func() {
		_, err := first.Read(make([]byte, 1))
		read <- err
	}()
	second := b.dial()
	defer t.close(second)
	t.inTime("end of a superseded read", t.h.Timeout, func() {
		if err := <-read; err == nil {
			t.Error("a read on a superseded stream has succeeded")
		}
	})
	t.inTime("superseded calls", t.h.Timeout, func() {
		if _, err := first.Write([]byte("x")); err == nil {
			t.Error("a write on a superseded stream has succeeded")
		}
		if _, err := first.Read(make([]byte, 1)); err == nil {
			t.Error("a read on a superseded stream has succeeded")
		}
		first.Close() // must not harm the second
	})
	t.roundTrip(second, []byte("second"))
}

func testDialSupersedesLink(t *tester) {
	b := t.create(t.spec()).talk()
	busy := b.start(protocol.Exec{Shell: "while :; do echo busy; done"})
	busy.says("busy")
	old := b.l
	t.Cleanup(func() { t.inTime("close of a superseded link", t.h.Timeout, func() { old.Close() }) })
	b.l = nil
	t.must("resume link", t.call("resume link", func(ctx context.Context) (err error) {
		b.l, err = client.Resume(ctx, b.Guest, client.Options{Hello: b.hello()})
		return err
	}))
	if res := busy.wait(); res.err == nil {
		t.Errorf("command on a superseded link: %+v, want an error", res.ExecResult)
	}
	b.ping()
}

func testDialAtOnce(t *tester) {
	const n = 8
	b := t.create(t.probeSpec("echo"))
	conns := make([]io.ReadWriteCloser, n)
	errs := make([]error, n)
	t.call("dials", func(ctx context.Context) error {
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() { conns[i], errs[i] = b.Dial(ctx) })
		}
		wait.Wait()
		return nil
	})
	live := 0
	for i, conn := range conns {
		if errs[i] != nil {
			t.Errorf("dial at once: %v", errs[i])
			continue
		}
		defer t.close(conn)
		t.inTime("write", t.h.Timeout, func() {
			if _, err := conn.Write([]byte("x")); err == nil {
				live++
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					t.Errorf("read: %v", err)
				}
			}
		})
	}
	if live != 1 {
		t.Errorf("%d of %d streams dialled at once are live, want 1", live, n)
	}
	b.echoes()
}

func testDialEnded(t *tester) {
	b := t.create(t.probeSpec("echo"))
	conn := b.dial()
	defer t.close(conn)
	t.inTime("dial", t.h.Timeout, func() {
		if _, err := b.Dial(ended(t.Context())); !errors.Is(err, errStop) {
			t.Errorf("dial with an ended context: got error %v, want its cause", err)
		}
	})
	t.roundTrip(conn, []byte("not superseded"))
}

func testStreamClose(t *tester) {
	b := t.create(t.probeSpec("echo"))
	for range 3 {
		b.echoes()
	}
	conn := b.dial()
	t.inTime("calls on a closed stream", t.h.Timeout, func() {
		conn.Close()
		conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a read on a closed stream has succeeded")
		}
		if _, err := conn.Write(make([]byte, 1)); err == nil {
			t.Error("a write on a closed stream has succeeded")
		}
	})
	b.echoes()
}

func testStreamCloseUnblocks(t *tester) {
	conn := t.create(t.probeSpec("silent")).dial()
	errs := make(chan error, 2)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		errs <- err
	}()
	go func() {
		_, err := conn.Write(make([]byte, 2*bulk))
		errs <- err
	}()
	t.close(conn)
	for range 2 {
		t.inTime("end of a closed stream's call", t.h.Timeout, func() {
			if err := <-errs; err == nil {
				t.Error("a call on a closed stream has succeeded")
			}
		})
	}
}

// testResume cuts links off at several points of a transfer.
func testResume(t *tester) {
	b := t.create(t.spec()).talk()
	b.sh("echo kept > kept")
	for i := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		var got atomic.Int64
		done := make(chan struct{})
		l := b.l
		go func() {
			defer close(done)
			l.Exec(ctx, protocol.Exec{Argv: []string{"cat"}}, endless{}, counter{n: &got})
		}()
		t.eventually("transfer under way", func() bool { return got.Load() > int64(i)<<19 })
		b.talk() // closes the first link in the middle of what it does
		cancel()
		t.inTime("end of a command on a closed link", t.h.Timeout, func() { <-done })
		b.ping()
		if out := b.sh("cat kept"); out != "kept\n" {
			t.Errorf("after resumption %d the file holds %q", i+1, out)
		}
	}
}

// endless is a reader without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// counter is a client.Sink that counts and, if step is set, receives from it before
// each piece of output, so that it is as slow as its sender.
type counter struct {
	n    *atomic.Int64
	step <-chan struct{}
}

// Output counts.
func (c counter) Output(ch protocol.Channel, p []byte) {
	if c.step != nil {
		<-c.step
	}
	c.n.Add(int64(len(p)))
}

// Display is not called for commands.
func (counter) Display(protocol.Display) {}

// heap returns how much memory this process has in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// checkGrowth fails the test if f makes this process hold much more memory.
func (t *tester) checkGrowth(f func()) {
	t.Helper()
	before := heap()
	f()
	if grown := heap() - before; grown > maxGrowth {
		t.Errorf("memory of the host has grown by %d bytes, more than %d", grown, maxGrowth)
	}
}

func testStreamUnread(t *tester) {
	b := t.create(t.probeSpec("zeros"))
	conn := b.dial()
	t.checkGrowth(func() { time.Sleep(time.Second) }) // the guest has nothing to tell
	t.inTime("read", t.h.Timeout, func() {
		if _, err := io.ReadFull(conn, make([]byte, bulk)); err != nil {
			t.Errorf("read after a pause: %v", err)
		}
	})
	t.close(conn)
}

func testBytesThroughCommand(t *tester) {
	b := t.create(t.spec()).talk()
	in := everyByte(bulk)
	hashes := &hashing{h: sha256.New()}
	err := t.call("cat", func(ctx context.Context) error {
		res, err := b.l.Exec(ctx, protocol.Exec{Argv: []string{"cat"}}, bytes.NewReader(in), hashes)
		if err == nil && res.Code != 0 {
			err = fmt.Errorf("exit code %d", res.Code)
		}
		return err
	})
	t.must("cat", err)
	want := sha256.Sum256(in)
	if hashes.n != len(in) || !bytes.Equal(hashes.h.Sum(nil), want[:]) {
		t.Errorf("%d bytes were sent through cat, %d came back, or others", len(in), hashes.n)
	}
}

// hashing is a client.Sink that hashes output.
type hashing struct {
	h hash.Hash
	n int
}

// Output adds a piece of output.
func (h *hashing) Output(_ protocol.Channel, p []byte) {
	h.n += len(p)
	h.h.Write(p)
}

// Display is not called for commands.
func (*hashing) Display(protocol.Display) {}

func testSlowReader(t *tester) {
	b := t.create(t.spec()).talk().install()
	step := make(chan struct{})
	var got atomic.Int64
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := b.l.Exec(ctx, protocol.Exec{Argv: []string{b.probe, "pour", "64"}}, nil, counter{n: &got, step: step})
		done <- err
	}()
	step <- struct{}{} // output has begun
	t.checkGrowth(func() {
		b.ping() // others are not held up
		time.Sleep(300 * time.Millisecond)
	})
	close(step)
	t.inTime("the rest of the output", 3*t.h.Timeout, func() {
		if err := <-done; err != nil || got.Load() != 64<<20 {
			t.Errorf("%d bytes of output, %v; want %d", got.Load(), err, 64<<20)
		}
	})
}
