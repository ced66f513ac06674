// Package stdiolink turns the two pipes of a guest's first process into the one
// stream that engine.Guest.Dial hands out: a new Dial supersedes the earlier
// one, and closing a connection leaves the pipes open for the next.
//
// It knows nothing of what is said over the stream.
package stdiolink

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// past is a deadline that makes pending reads and writes of a pipe return.
var past = time.Unix(1, 0)

// Stream owns the host's ends of a guest's standard input and output. All
// methods may be called concurrently.
type Stream struct {
	r, w *os.File

	mu     sync.Mutex
	cur    *conn // guarded by mu
	closed bool  // guarded by mu

	gate    sync.Mutex
	held    chan struct{} // guarded by gate; not nil while held, closed at the release
	writing int           // guarded by gate; writes under way
}

// New returns the stream that reads from r and writes to w and owns both from
// then on. They must support deadlines, as both ends of os.Pipe and non-blocking
// descriptors given to os.NewFile do; Dial fails otherwise.
func New(r, w *os.File) *Stream {
	return &Stream{r: r, w: w}
}

// Dial supersedes the earlier connection, whose reads and writes then fail with
// os.ErrClosed, and returns a new one. After Close it returns os.ErrClosed.
func (s *Stream) Dial() (io.ReadWriteCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	if err := s.endLocked(); err != nil {
		return nil, err
	}
	s.cur = &conn{s: s, done: make(chan struct{})}
	return s.cur, nil
}

// Close ends the connection there is and closes the pipes. It may be called
// again.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.cur != nil {
		s.cur.shut()
		s.cur = nil
	}
	errR, errW := s.r.Close(), s.w.Close()
	if errR != nil {
		return fmt.Errorf("close the guest's output: %w", errR)
	}
	if errW != nil {
		return fmt.Errorf("close the guest's input: %w", errW)
	}
	return nil
}

// Hold keeps writes from beginning until release is called, which the caller
// must do once; they wait. Hold returns when the guest has read all that was
// written before or, since a guest need not read, after settle. One caller at a
// time may hold.
func (s *Stream) Hold(settle time.Duration) (release func()) {
	held := make(chan struct{})
	s.gate.Lock()
	s.held = held
	s.gate.Unlock()
	for end := time.Now().Add(settle); !s.settled() && time.Now().Before(end); {
		time.Sleep(look)
	}
	return func() {
		s.gate.Lock()
		s.held = nil
		s.gate.Unlock()
		close(held)
	}
}

// look is between two looks whether the guest has read its input, which takes it
// some 50 µs.
const look = 100 * time.Microsecond

// settled reports whether the guest has read all that was written.
func (s *Stream) settled() bool {
	s.gate.Lock()
	defer s.gate.Unlock()
	return s.writing == 0 && unread(s.w) == 0
}

// begin waits until nobody holds the stream, and counts a write. It reports
// whether there was none to wait for, or the wait ended before done did.
func (s *Stream) begin(done <-chan struct{}) bool {
	for {
		s.gate.Lock()
		held := s.held
		if held == nil {
			s.writing++
			s.gate.Unlock()
			return true
		}
		s.gate.Unlock()
		select {
		case <-held:
		case <-done:
			return false
		}
	}
}

func (s *Stream) end() {
	s.gate.Lock()
	s.writing--
	s.gate.Unlock()
}

// endLocked ends the current connection and returns when none of its calls is
// under way, so that no byte of the next connection can go to an earlier one.
// The wait is short: with the deadline in the past the calls return at once.
func (s *Stream) endLocked() error {
	c := s.cur
	if c != nil {
		c.shut()
		if err := s.setDeadlines(past); err != nil {
			return err
		}
		c.calls.Wait()
		s.cur = nil
	}
	return s.setDeadlines(time.Time{})
}

func (s *Stream) setDeadlines(t time.Time) error {
	if err := s.r.SetReadDeadline(t); err != nil {
		return fmt.Errorf("set deadline of the guest's output: %w", err)
	}
	if err := s.w.SetWriteDeadline(t); err != nil {
		return fmt.Errorf("set deadline of the guest's input: %w", err)
	}
	return nil
}

// conn is one connection: valid until it is closed or superseded.
type conn struct {
	s    *Stream
	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	ended bool           // guarded by mu
	calls sync.WaitGroup // reads and writes under way; Add under mu, never after ended
}

// Read reads what the guest has written.
func (c *conn) Read(p []byte) (int, error) {
	if !c.enter() {
		return 0, os.ErrClosed
	}
	defer c.calls.Done()
	n, err := c.s.r.Read(p)
	return n, c.cause(err)
}

// Write writes to the guest and blocks while the guest does not read.
func (c *conn) Write(p []byte) (int, error) {
	if !c.enter() {
		return 0, os.ErrClosed
	}
	defer c.calls.Done()
	if !c.s.begin(c.done) {
		return 0, os.ErrClosed
	}
	defer c.s.end()
	n, err := c.s.w.Write(p)
	return n, c.cause(err)
}

// Close ends the connection; its reads and writes fail with os.ErrClosed. The
// pipes stay open. It may be called again.
func (c *conn) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.cur != c || c.s.closed {
		return nil
	}
	return c.s.endLocked()
}

// enter reports whether the connection is valid, and if so registers a call.
func (c *conn) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.calls.Add(1)
	return true
}

func (c *conn) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		close(c.done)
	}
}

// cause replaces the error of a call that the end of the connection has cut
// short. The end of the guest (io.EOF, a broken pipe) is told as it is.
func (c *conn) cause(err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return os.ErrClosed
	}
	return err
}
