// Package stdiolink makes the stream of engine.Guest.Dial from the two pipes of a
// guest's first process: a new Dial supersedes the previous one, and closing a
// connection leaves the pipes open for the next. It does not interpret the protocol.
package stdiolink

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// past is a deadline that makes pending reads and writes return.
var past = time.Unix(1, 0)

// Stream owns the host's ends of a guest's standard input and output. All
// methods may be called concurrently.
type Stream struct {
	r, w *os.File

	mu     sync.Mutex
	cur    *conn // guarded by mu
	closed bool  // guarded by mu

	holdMu  sync.Mutex
	held    chan struct{} // guarded by holdMu; not nil while held, closed by the release
	writing int           // guarded by holdMu; writes in progress
}

// New returns a stream that reads from r, writes to w, and owns both. They must
// support deadlines, as both ends of os.Pipe and non-blocking descriptors passed to
// os.NewFile do; otherwise Dial fails.
func New(r, w *os.File) *Stream {
	return &Stream{r: r, w: w}
}

// Dial supersedes the current connection, whose reads and writes then fail with
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

// Close ends the current connection and closes the pipes. It may be called
// repeatedly.
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

// Hold blocks new writes until the caller calls release, once, so that a snapshot of the
// guest contains whole messages only. It returns when the guest has read all earlier
// writes or, since a guest need not read, after settle. Only one caller may hold the
// stream at a time: a guest takes one snapshot at a time.
func (s *Stream) Hold(settle time.Duration) (release func()) {
	held := make(chan struct{})
	s.holdMu.Lock()
	s.held = held
	s.holdMu.Unlock()
	for end := time.Now().Add(settle); !s.settled() && time.Now().Before(end); {
		time.Sleep(pollEvery)
	}
	return func() {
		s.holdMu.Lock()
		s.held = nil
		s.holdMu.Unlock()
		close(held)
	}
}

// pollEvery is the interval between checks whether the guest has read its input,
// which takes it about 50 µs.
const pollEvery = 100 * time.Microsecond

// settled reports whether the guest has read all writes.
func (s *Stream) settled() bool {
	s.holdMu.Lock()
	defer s.holdMu.Unlock()
	return s.writing == 0 && unread(s.w) == 0
}

// begin waits until the stream is not held, and counts a write. It returns false if done
// closed first.
func (s *Stream) begin(done <-chan struct{}) bool {
	for {
		s.holdMu.Lock()
		held := s.held
		if held == nil {
			s.writing++
			s.holdMu.Unlock()
			return true
		}
		s.holdMu.Unlock()
		select {
		case <-held:
		case <-done:
			return false
		}
	}
}

func (s *Stream) end() {
	s.holdMu.Lock()
	s.writing--
	s.holdMu.Unlock()
}

// endLocked ends the current connection and returns when none of its calls is in
// progress, so that no byte of the next connection goes to an earlier one. The wait
// is short: with a deadline in the past the calls return at once.
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
	calls sync.WaitGroup // reads and writes in progress; Add under mu, never after ended
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

// cause returns os.ErrClosed if the connection has ended. Any other error, such as io.EOF
// at the guest's end, is returned unchanged.
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
