//go:build linux

package nsengine

import (
	"os"
	"sync"
	"time"
)

// stream makes one stream at a time of the agent's standard input and output.
type stream struct {
	r, w *os.File // the host's ends

	mu      sync.Mutex
	current *conn // guarded by mu
	closed  bool  // guarded by mu
}

// newStream also returns the agent's ends, which the caller closes.
func newStream() (s *stream, stdin, stdout *os.File, err error) {
	stdin, w, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	r, stdout, err := os.Pipe()
	if err != nil {
		stdin.Close()
		w.Close()
		return nil, nil, nil, err
	}
	return &stream{r: r, w: w}, stdin, stdout, nil
}

// dial ends the current connection and returns a new one.
func (s *stream) dial() (*conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	s.endCurrentLocked()
	s.current = &conn{s: s}
	return s.current, nil
}

// endCurrentLocked returns when no call on the current connection is in progress,
// so that no byte of the next one goes to it.
func (s *stream) endCurrentLocked() {
	c := s.current
	if c == nil {
		return
	}
	c.end()
	s.setDeadlines(time.Unix(1, 0)) // makes pending calls return
	c.calls.Wait()
	s.setDeadlines(time.Time{})
	s.current = nil
}

func (s *stream) setDeadlines(t time.Time) {
	s.r.SetReadDeadline(t)
	s.w.SetWriteDeadline(t)
}

// close ends the stream with its guest.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.current != nil {
		s.current.end()
		s.current = nil
	}
	s.r.Close()
	s.w.Close()
}

// conn is a connection until it is closed or superseded.
type conn struct {
	s *stream

	mu    sync.Mutex
	ended bool           // guarded by mu
	calls sync.WaitGroup // reads and writes in progress; Add under mu while not ended
}

// Read reads from the agent.
func (c *conn) Read(p []byte) (int, error) { return c.call(c.s.r.Read, p) }

// Write writes to the agent.
func (c *conn) Write(p []byte) (int, error) { return c.call(c.s.w.Write, p) }

func (c *conn) call(f func([]byte) (int, error), p []byte) (int, error) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return 0, os.ErrClosed
	}
	c.calls.Add(1)
	c.mu.Unlock()
	defer c.calls.Done()
	return f(p)
}

// Close ends the connection; the guest keeps running.
func (c *conn) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.current == c {
		c.s.endCurrentLocked()
	}
	return nil
}

func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}
