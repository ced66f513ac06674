// Package podlink carries a byte stream in each direction between an engine and a box
// over connections that break: a new connection continues where the last one ended, and
// no byte is lost or comes twice. Both ends hold at most [Window] bytes that the other
// has not read, so that what lies between them need not be bounded.
//
// One end opens a connection with a [Hello], the other answers with a [Reply]. Then each
// sends frames: bytes of the stream, and how many bytes its reader has taken. The package
// imports the standard library only.
package podlink

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

const (
	// Window is how many bytes one end sends before the other end's reader has taken
	// the first of them.
	Window = 1 << 20
	// tellEvery is how many bytes a reader takes before it tells the other end, unless it has
	// something to send anyway: a writer waits for a Window, and each message takes its
	// time on the way.
	tellEvery = Window / 8
	// maxFrame bounds the bytes of the stream in one frame.
	maxFrame = 32 << 10
)

// Frames begin with their kind.
const (
	frameData = 'D' // uint32 length, and as many bytes
	frameRead = 'R' // uint64: how many bytes the sender's reader has taken since the start
)

var (
	// ErrFrame is wrapped by every error about bytes that are no frame of the protocol.
	ErrFrame = errors.New("malformed frame")
	// ErrSuperseded means that a newer session has replaced this one.
	ErrSuperseded = errors.New("superseded by a newer session")
	errReplaced   = errors.New("replaced by a newer connection")
)

// Session is one end of the stream. Create one with NewSession. It outlives its
// connections; its Read and Write wait for the next one. All methods may be called
// concurrently.
type Session struct {
	mu      sync.Mutex
	changed *sync.Cond // of everything below; its lock is mu

	out  []byte // sent or to be sent; the other end's reader has not taken them
	base uint64 // number of out[0] in the stream
	sent uint64 // number of the next byte to send on the current connection

	in       []byte // received, not read
	received uint64
	read     uint64
	told     uint64 // the read count that the other end was told on this connection

	generation uint64    // counts connections; frames of earlier ones are not accepted
	conn       io.Closer // the current connection; nil: none
	err        error     // why the session has ended; nil: it has not
}

// NewSession returns a session without a connection.
func NewSession() *Session {
	s := new(Session)
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Read reads from the stream. After Close it returns the error given there, at once.
func (s *Session) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.in) == 0 && s.err == nil && len(p) > 0 {
		s.changed.Wait()
	}
	if s.err != nil {
		return 0, s.err
	}
	n := copy(p, s.in)
	s.in = s.in[n:]
	s.read += uint64(n)
	s.changed.Broadcast()
	return n, nil
}

// Write adds to the stream and returns when at most Window bytes wait for the other
// end's reader. After Close it returns the error given there.
func (s *Session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for {
		for len(s.out) >= Window && s.err == nil {
			s.changed.Wait()
		}
		if s.err != nil {
			return n, s.err
		}
		part := p[n:min(len(p), n+Window-len(s.out))]
		s.out = append(s.out, part...)
		n += len(part)
		s.changed.Broadcast()
		if n == len(p) {
			return n, nil
		}
	}
}

// Close ends the session with an error for its Read and Write, nil meaning
// os.ErrClosed, and closes its connection. Later calls do nothing.
func (s *Session) Close(err error) {
	if err == nil {
		err = os.ErrClosed
	}
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	conn := s.conn
	s.conn = nil
	s.generation++
	s.in, s.out = nil, nil
	s.changed.Broadcast()
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// Generation identifies one connection of a session. Only the one that Begin returned last
// can run.
type Generation struct {
	n        uint64
	Received uint64 // bytes that this end has received before: what Hello and Reply tell
}

// Begin closes the current connection and returns the generation of the next.
func (s *Session) Begin() (Generation, error) {
	s.mu.Lock()
	conn := s.conn
	s.conn = nil
	s.generation++
	s.changed.Broadcast()
	gen, err := Generation{n: s.generation, Received: s.received}, s.err
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	return gen, err
}

// Run exchanges frames over conn, whose other end has received a number of bytes of this
// end before. It returns why that ended and has closed conn: the connection failed,
// another generation began, or the session ended. A Write of conn must return when conn is
// closed.
func (s *Session) Run(t Generation, conn io.ReadWriteCloser, otherReceived uint64) error {
	if err := s.attach(t, conn, otherReceived); err != nil {
		conn.Close()
		return err
	}
	sent := make(chan error, 1)
	go func() {
		sent <- s.send(t, conn)
		conn.Close()
	}()
	err := s.receive(t, bufio.NewReaderSize(conn, maxFrame+16))
	conn.Close()
	s.mu.Lock()
	if s.generation == t.n {
		s.generation++
		s.conn = nil
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	<-sent
	return err
}

func (s *Session) attach(t Generation, conn io.Closer, otherReceived uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.generation != t.n:
		return errReplaced
	case otherReceived < s.base || otherReceived > s.base+uint64(len(s.out)):
		return fmt.Errorf("%w: the other end has %d bytes, this end has sent %d to %d", ErrFrame, otherReceived, s.base, s.base+uint64(len(s.out)))
	}
	s.conn, s.sent, s.told = conn, otherReceived, 0
	s.changed.Broadcast()
	return nil
}

// send writes what is new until the generation ends.
func (s *Session) send(t Generation, w io.Writer) error {
	b := make([]byte, 0, maxFrame+32)
	for {
		s.mu.Lock()
		for s.generation == t.n && s.read-s.told < tellEvery && s.sent == s.base+uint64(len(s.out)) {
			s.changed.Wait()
		}
		if s.generation != t.n {
			s.mu.Unlock()
			return errReplaced
		}
		b = b[:0]
		if s.read != s.told {
			b = binary.BigEndian.AppendUint64(append(b, frameRead), s.read)
			s.told = s.read
		}
		rest := s.out[s.sent-s.base:]
		if part := rest[:min(len(rest), maxFrame)]; len(part) > 0 {
			b = binary.BigEndian.AppendUint32(append(b, frameData), uint32(len(part)))
			b = append(b, part...)
			s.sent += uint64(len(part))
		}
		s.mu.Unlock()
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
}

// receive reads frames until the connection fails or the generation ends.
func (s *Session) receive(t Generation, r *bufio.Reader) error {
	var head [9]byte
	data := make([]byte, maxFrame)
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return err
		}
		switch kind {
		case frameData:
			if _, err := io.ReadFull(r, head[:4]); err != nil {
				return err
			}
			n := binary.BigEndian.Uint32(head[:4])
			if n > maxFrame {
				return fmt.Errorf("%w: %d bytes, more than %d", ErrFrame, n, maxFrame)
			}
			if _, err := io.ReadFull(r, data[:n]); err != nil {
				return err
			}
			err = s.take(t, data[:n])
		case frameRead:
			if _, err := io.ReadFull(r, head[:8]); err != nil {
				return err
			}
			err = s.free(t, binary.BigEndian.Uint64(head[:8]))
		default:
			err = fmt.Errorf("%w: kind %#x", ErrFrame, kind)
		}
		if err != nil {
			return err
		}
	}
}

// take adds received bytes.
func (s *Session) take(t Generation, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != t.n {
		return errReplaced
	}
	if len(s.in)+len(p) > Window {
		return fmt.Errorf("%w: more than %d bytes that were not read", ErrFrame, Window)
	}
	s.in = append(s.in, p...)
	s.received += uint64(len(p))
	s.changed.Broadcast()
	return nil
}

// free forgets the bytes before number n, which the other end's reader has taken.
func (s *Session) free(t Generation, n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != t.n {
		return errReplaced
	}
	if n < s.base || n > s.sent {
		return fmt.Errorf("%w: %d bytes read, but %d to %d are under way", ErrFrame, n, s.base, s.sent)
	}
	s.out = s.out[n-s.base:]
	s.base = n
	s.changed.Broadcast()
	return nil
}
