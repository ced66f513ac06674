package stdiolink

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
)

// newPair returns a stream and the guest's ends of its pipes.
func newPair(t *testing.T) (s *Stream, guestIn, guestOut *os.File) {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s = New(outR, inW)
	t.Cleanup(func() {
		s.Close()
		inR.Close()
		outW.Close()
	})
	return s, inR, outW
}

func dial(t *testing.T, s *Stream) io.ReadWriteCloser {
	t.Helper()
	c, err := s.Dial()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLink_CarriesBothDirections(t *testing.T) {
	s, in, out := newPair(t)
	c := dial(t, s)
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(in, b); err != nil || string(b) != "ping" {
		t.Fatalf("guest read %q, %v", b, err)
	}
	if _, err := out.Write([]byte("pong")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "pong" {
		t.Fatalf("host read %q, %v", b, err)
	}
}

func TestDial_SupersedesEarlierStream(t *testing.T) {
	s, in, out := newPair(t)
	first := dial(t, s)
	errs := make(chan error, 2)
	go func() {
		_, err := first.Read(make([]byte, 1))
		errs <- err
	}()
	go func() {
		_, err := first.Write(make([]byte, 4<<20)) // more than a pipe holds
		errs <- err
	}()
	second := dial(t, s)
	for range 2 {
		if err := <-errs; !errors.Is(err, os.ErrClosed) {
			t.Errorf("pending call of a superseded connection: %v, want os.ErrClosed", err)
		}
	}
	if _, err := first.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write on a superseded connection: %v, want os.ErrClosed", err)
	}
	first.Close() // must not harm the second
	if _, err := out.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := second.Read(b); err != nil || b[0] != 'y' {
		t.Errorf("second connection read %q, %v", b, err)
	}
	go io.Copy(io.Discard, in)
	if _, err := second.Write(bytes.Repeat([]byte("z"), 1<<20)); err != nil {
		t.Errorf("write on the second connection: %v", err)
	}
}

func TestClose_LeavesThePipes(t *testing.T) {
	s, in, _ := newPair(t)
	c := dial(t, s)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after close: %v, want os.ErrClosed", err)
	}
	c = dial(t, s)
	if _, err := c.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := in.Read(b); err != nil || b[0] != 'a' {
		t.Errorf("guest read %q, %v", b, err)
	}
}

func TestLink_GuestEnds(t *testing.T) {
	s, in, out := newPair(t)
	c := dial(t, s)
	in.Close()
	out.Close()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v, want io.EOF", err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("write to a guest that has ended succeeded")
	}
}

func TestClose_OfStream(t *testing.T) {
	s, _, _ := newPair(t)
	c := dial(t, s)
	done := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		done <- err
	}()
	s.Close()
	s.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("pending read: %v, want os.ErrClosed", err)
	}
	if _, err := s.Dial(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("dial: %v, want os.ErrClosed", err)
	}
}
