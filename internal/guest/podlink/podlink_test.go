package podlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
)

// breaking is a connection that fails after a number of bytes.
type breaking struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	b.mu.Lock()
	b.left -= len(p)
	broken := b.left < 0
	b.mu.Unlock()
	if broken {
		b.Conn.Close()
		return 0, errors.New("broken by the test")
	}
	return b.Conn.Write(p)
}

// connect runs one connection between two sessions until it breaks.
func connect(t *testing.T, a, b *Session, left int) {
	ca, cb := net.Pipe()
	ta, errA := a.Begin()
	tb, errB := b.Begin()
	if errA != nil || errB != nil {
		ca.Close()
		cb.Close()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Run(tb, &breaking{Conn: cb, left: left}, ta.Received)
	}()
	a.Run(ta, &breaking{Conn: ca, left: left}, tb.Received)
	<-done
}

func TestSession_EveryByteOnceOverConnectionsThatBreak(t *testing.T) {
	a, b := NewSession(), NewSession()
	want := make([]byte, 6<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	stop := make(chan struct{})
	linked := make(chan struct{})
	go func() {
		defer close(linked)
		for {
			select {
			case <-stop:
				return
			default:
				connect(t, a, b, 1+rng.IntN(400<<10))
			}
		}
	}()
	var wait sync.WaitGroup
	for _, d := range []struct{ from, to *Session }{{a, b}, {b, a}} {
		wait.Go(func() {
			if _, err := d.from.Write(want); err != nil {
				t.Error(err)
			}
		})
		wait.Go(func() {
			got := make([]byte, len(want))
			if _, err := io.ReadFull(d.to, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the bytes differ, %v", err)
			}
		})
	}
	wait.Wait()
	close(stop)
	a.Close(nil)
	b.Close(nil)
	<-linked
}

func TestSession_WriterWaitsForReader(t *testing.T) {
	a, b := NewSession(), NewSession()
	ca, cb := net.Pipe()
	ta, _ := a.Begin()
	tb, _ := b.Begin()
	go a.Run(ta, ca, 0)
	go b.Run(tb, cb, 0)
	wrote := make(chan error, 1)
	// One window waits at the reader's end, unread, and none more is accepted.
	go func() {
		_, err := a.Write(make([]byte, Window+1))
		wrote <- err
	}()
	got := make([]byte, Window)
	b.mu.Lock()
	for len(b.in) < Window {
		b.changed.Wait()
	}
	b.mu.Unlock()
	select {
	case err := <-wrote:
		t.Fatalf("a write of more than the window has returned: %v", err)
	default:
	}
	if _, err := io.ReadFull(b, got); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	a.Close(nil)
	b.Close(nil)
}

// TestSession_TellsOfReadsSparingly: a message for each small read would cost more than the
// bytes where each passes through several programs.
func TestSession_TellsOfReadsSparingly(t *testing.T) {
	s := NewSession()
	ours, theirs := net.Pipe()
	gen, _ := s.Begin()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(gen, ours, 0) }()
	go func() {
		frame := append([]byte("D\x00\x00\x04\x00"), make([]byte, 1024)...)
		for range tellEvery / 1024 {
			if _, err := theirs.Write(frame); err != nil {
				return
			}
		}
	}()
	go func() {
		p := make([]byte, 1024)
		for range tellEvery / 1024 {
			if _, err := io.ReadFull(s, p); err != nil {
				return
			}
		}
	}()
	var told [9]byte
	if _, err := io.ReadFull(theirs, told[:]); err != nil {
		t.Fatal(err)
	}
	if n := binary.BigEndian.Uint64(told[1:]); told[0] != frameRead || n != tellEvery {
		t.Errorf("the first message is of kind %q and tells of %d bytes, want %q and %d", told[0], n, frameRead, tellEvery)
	}
	s.Close(nil)
	<-ended
}

func TestSessionClose_EndsCallsWithTheError(t *testing.T) {
	s := NewSession()
	errs := make(chan error, 2)
	go func() { _, err := s.Read(make([]byte, 1)); errs <- err }()
	go func() { _, err := s.Write(make([]byte, 2*Window)); errs <- err }()
	s.Close(nil)
	s.Close(io.ErrUnexpectedEOF)
	for range 2 {
		if err := <-errs; !errors.Is(err, os.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := s.Begin(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("begin: %v", err)
	}
}

func TestSessionRun_RejectsHostileFrames(t *testing.T) {
	for name, raw := range map[string]string{
		"kind":           "x",
		"length":         "D\xff\xff\xff\xff",
		"never sent":     "R\x00\x00\x00\x00\x00\x00\x00\x01",
		"beyond counter": "R\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		s := NewSession()
		gen, _ := s.Begin()
		ours, theirs := net.Pipe()
		go theirs.Write([]byte(raw))
		if err := s.Run(gen, ours, 0); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: got %v, want ErrFrame", name, err)
		}
	}
	s := NewSession()
	gen, _ := s.Begin()
	ours, theirs := net.Pipe()
	go func() { // more than the window
		frame := append([]byte("D\x00\x00\x80\x00"), make([]byte, maxFrame)...)
		for {
			if _, err := theirs.Write(frame); err != nil {
				return
			}
		}
	}()
	if err := s.Run(gen, ours, 0); !errors.Is(err, ErrFrame) {
		t.Errorf("more than the window: got %v, want ErrFrame", err)
	}
	gen, _ = s.Begin()
	ours, gone := net.Pipe()
	gone.Close()
	if err := s.Run(gen, ours, 1); !errors.Is(err, ErrFrame) {
		t.Errorf("received what was never sent: got %v, want ErrFrame", err)
	}
}

func TestHello_RoundTrip(t *testing.T) {
	want := Hello{Session: NewSessionID(), Resume: true, Received: 7}
	var b bytes.Buffer
	if err := want.Write(&b); err != nil {
		t.Fatal(err)
	}
	raw := b.Bytes()
	if got, err := ReadHello(bytes.NewReader(raw)); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for i := range 6 {
		spoilt := bytes.Clone(raw)
		spoilt[i] ^= 0x80
		if _, err := ReadHello(bytes.NewReader(spoilt)); !errors.Is(err, ErrFrame) {
			t.Errorf("byte %d changed: got %v", i, err)
		}
	}
	b.Reset()
	if err := (Reply{Received: 9}).Write(&b); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadReply(&b); err != nil || got.Received != 9 {
		t.Errorf("got %+v, %v", got, err)
	}
	(Reply{Superseded: true}).Write(&b)
	if _, err := ReadReply(&b); !errors.Is(err, ErrSuperseded) {
		t.Errorf("got %v", err)
	}
}
