package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

// helper is the other end: what runs in a guest, with the protocol of internal/guest/pod and
// the given life of each connection.
type helper struct {
	session  *podlink.Session
	connects atomic.Int64
	lasts    time.Duration // of a connection; 0: for ever
	fail     atomic.Pointer[error]
	before   atomic.Pointer[string] // what a connection carries before the Reply; nil: nothing
	after    atomic.Pointer[string] // what it carries after the Reply in place of frames; nil: frames
	lost     atomic.Pointer[error]
}

func (h *helper) route() Route {
	return Route{Connect: h.connect, Lost: func() error { return value(&h.lost) }, AttemptTimeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}
}

func value(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

func (h *helper) connect(context.Context, bool) (io.ReadWriteCloser, error) {
	h.connects.Add(1)
	if err := value(&h.fail); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		hello, err := podlink.ReadHello(theirs)
		if err != nil {
			return
		}
		if text := h.before.Swap(nil); text != nil {
			io.WriteString(theirs, *text)
			return
		}
		gen, err := h.session.Begin()
		if text := h.after.Load(); err == nil && text != nil {
			if (podlink.Reply{Received: gen.Received}).Write(theirs) == nil {
				io.WriteString(theirs, *text)
			}
			return
		}
		if err != nil || (podlink.Reply{Received: gen.Received}).Write(theirs) != nil {
			return
		}
		if h.lasts > 0 {
			timer := time.AfterFunc(h.lasts, func() { theirs.Close() })
			defer timer.Stop()
		}
		h.session.Run(gen, theirs, hello.Received)
	}()
	return ours, nil
}

// open opens a stream to h.
func open(t *testing.T, h *helper) *Stream {
	h.session = podlink.NewSession()
	s, err := Open(t.Context(), h.route())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.session.Close(nil)
		s.Close()
	})
	return s
}

func TestStream_SurvivesItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &helper{lasts: 7 * time.Second}
		s := open(t, h)
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			for piece := range bytesOf(want, 1<<16) {
				time.Sleep(2 * time.Second)
				h.session.Write(piece)
			}
		}()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read: %v; the same bytes: %v", err, bytes.Equal(got, want))
		}
		if n := h.connects.Load(); n < 3 {
			t.Errorf("%d connections: the test shows nothing", n)
		}
	})
}

// bytesOf yields b in pieces.
func bytesOf(b []byte, size int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(size, len(b))
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

func TestStream_ConnectionsThatBreakAtOnceAreTriedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &helper{lasts: time.Millisecond}
		open(t, h)
		time.Sleep(time.Minute)
		if n := h.connects.Load(); n < 20 || n > 40 {
			t.Errorf("%d connections in a minute, want one in two seconds", n)
		}
	})
}

// TestStream_EndsAfterGarbage: a helper that sends what is no frame gets no further connection.
func TestStream_EndsAfterGarbage(t *testing.T) {
	for _, garbage := range []string{"garbage", "D\xff\xff\xff\xff", "R\x00\x00\x00\x00\x00\x00\x00\x09"} {
		synctest.Test(t, func(t *testing.T) {
			h := &helper{}
			h.after.Store(&garbage)
			s := open(t, h)
			// Without the end, reads wait while connections follow each other.
			timer := time.AfterFunc(time.Hour, func() { s.Close() })
			defer timer.Stop()
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, podlink.ErrFrame) {
				t.Errorf("read after %q: got %v, want ErrFrame", garbage, err)
			}
			if n := h.connects.Load(); n != 1 {
				t.Errorf("%d connections to a helper that sent %q, want 1", n, garbage)
			}
		})
	}
}

// TestStream_ToleratesTextBeforeTheReply: a program between may say something of its own on a
// connection, which fails, and the next one goes on.
func TestStream_ToleratesTextBeforeTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &helper{lasts: time.Second}
		s := open(t, h)
		text := "error: the sandbox is busy\n"
		h.before.Store(&text)
		time.Sleep(5 * time.Second)
		if h.before.Load() != nil {
			t.Fatal("no connection carried the text: the test shows nothing")
		}
		go h.session.Write([]byte("x"))
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Errorf("read after a connection that carried a text: %v", err)
		}
	})
}

func TestStream_EndsWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &helper{lasts: time.Second}
		refused := errors.New("refused by the test")
		s := open(t, h)
		h.fail.Store(&refused)
		began := time.Now()
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, refused) {
			t.Errorf("read: got %v, want the error of the last attempt", err)
		}
		if took := time.Since(began); took < redialFor || took > redialFor+10*time.Second {
			t.Errorf("the stream has ended after %v, want %v", took, redialFor)
		}
	})
}

func TestStream_WaitsForPausedGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &helper{lasts: time.Second}
		s := open(t, h)
		err := error(ErrPaused)
		h.fail.Store(&err)
		time.Sleep(time.Hour)
		h.fail.Store(nil)
		go h.session.Write([]byte("x"))
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Errorf("read after an hour's pause: %v", err)
		}
	})
}

func TestDial_EndsTheStreamBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &helper{session: podlink.NewSession()}
		d := NewDialer(h.route().Lost)
		dial := func() (*Stream, error) {
			return d.Dial(t.Context(), nil, func(ctx context.Context) (*Stream, error) { return Open(ctx, h.route()) })
		}
		first, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dial(); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Write([]byte("x")); err == nil {
			t.Error("the stream before still takes bytes")
		}
		gone := error(engine.ErrGone)
		h.lost.Store(&gone)
		if _, err := dial(); !errors.Is(err, engine.ErrGone) {
			t.Errorf("dial a guest that has ended: got %v, want ErrGone", err)
		}
		d.HangUp()
		h.session.Close(nil)
	})
}

func TestDial_EndOfTheGuestEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		d := NewDialer(func() error { return nil })
		time.AfterFunc(time.Second, func() { close(end) })
		_, err := d.Dial(t.Context(), []<-chan struct{}{end}, func(ctx context.Context) (*Stream, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if !errors.Is(err, engine.ErrGone) {
			t.Errorf("got %v, want ErrGone", err)
		}
	})
}

func TestWait_OfDetachedGuest(t *testing.T) {
	detached := make(chan struct{})
	close(detached)
	if _, err := Wait(t.Context(), "a", guests.NewEnd(), detached, func() error { return engine.ErrGone }); !errors.Is(err, engine.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
}
