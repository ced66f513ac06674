package podlink

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
)

// FuzzSession receives frames that a hostile other end might send. The
// session holds a bounded number of bytes, and both ends' counts stay consistent.
func FuzzSession(f *testing.F) {
	f.Add([]byte("D\x00\x00\x00\x02hiR\x00\x00\x00\x00\x00\x00\x00\x03"))
	f.Add([]byte("R\x00\x00\x00\x00\x00\x00\x00\x05R\x00\x00\x00\x00\x00\x00\x00\x04"))
	f.Add([]byte("D\xff\xff\xff\xff"))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewSession()
		if _, err := s.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		gen, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		s.sent = 5 // as after a connection that has sent all of it
		err = s.receive(gen, bufio.NewReader(bytes.NewReader(b)))
		if !errors.Is(err, ErrFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("receive ended with %v", err)
		}
		if len(s.in) > Window || s.received != uint64(len(s.in)) || s.base+uint64(len(s.out)) != 5 {
			t.Fatalf("%d bytes received, %d kept; %d of 5 read and %d kept", s.received, len(s.in), s.base, len(s.out))
		}
	})
}

// FuzzReadHello reads the first messages of connections.
func FuzzReadHello(f *testing.F) {
	var hello, reply bytes.Buffer
	if err := errors.Join(Hello{Session: NewSessionID(), Resume: true, Received: 7}.Write(&hello), Reply{Received: 7}.Write(&reply)); err != nil {
		f.Fatal(err)
	}
	f.Add(hello.Bytes())
	f.Add(reply.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var again bytes.Buffer
		if h, err := ReadHello(bytes.NewReader(b)); err == nil {
			if err := h.Write(&again); err != nil || !bytes.HasPrefix(b, again.Bytes()) {
				t.Errorf("%x is read as %+v, which is written as %x, %v", b, h, again.Bytes(), err)
			}
		}
		again.Reset()
		if p, err := ReadReply(bytes.NewReader(b)); err == nil {
			if err := p.Write(&again); err != nil || !bytes.HasPrefix(b, again.Bytes()) {
				t.Errorf("%x is read as %+v, which is written as %x, %v", b, p, again.Bytes(), err)
			}
		}
	})
}
