package redact

import (
	"io"
	"sync"
)

// piece bounds how much a Writer masks at once.
const piece = 32 << 10

// Writer masks what is written through it. It passes on what no longer depends on later bytes, and
// all up to the end of a line. No time matters: a reader could make the source pause in the middle of a
// value. Its methods may be called concurrently; it never uses the writer below it concurrently.
type Writer struct {
	mu     sync.Mutex
	w      io.Writer
	stream *Stream
	lines  lines
	turn   sync.Locker
	buf    []byte
	err    error
	closed bool
}

// NewWriter returns a Writer to w. It holds turn, unless that is nil, while it masks a piece, so that
// the writers that share it take one processor. Its owner must call Close or Abort.
func (s *Set) NewWriter(w io.Writer, turn sync.Locker) *Writer {
	return &Writer{w: w, stream: s.Stream(), turn: turn}
}

// Write writes p, masked, except for the last bytes if no line ends with them. It returns len(p)
// unless writing fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	n := 0
	for n < len(p) {
		part := p[n:min(n+piece, len(p))]
		w.maskLocked(part, w.lines.end(part))
		if !w.writeLocked() {
			return n, w.err
		}
		n += len(part)
	}
	return n, w.err
}

// maskLocked puts into buf what can be passed on after part: all of its first bytes, up to end, if
// that is not 0.
func (w *Writer) maskLocked(part []byte, end int) {
	if w.turn != nil {
		w.turn.Lock()
		defer w.turn.Unlock()
	}
	w.buf = w.buf[:0]
	if end > 0 {
		w.buf = w.stream.Yield(w.stream.Append(w.buf, part[:end]))
	}
	w.buf = w.stream.Append(w.buf, part[end:])
}

// Do calls f, such as a flush, while nothing is being written.
func (w *Writer) Do(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return io.ErrClosedPipe
	}
	return f()
}

// Holds reports whether the writer holds bytes back: not if a line ended with the last write.
func (w *Writer) Holds() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream.Holds()
}

// Close writes what is held back. It does not close the writer below. Afterwards nothing
// uses that writer any more.
func (w *Writer) Close() error { return w.end(true) }

// Abort discards what is held back. Afterwards nothing uses the writer below any more.
func (w *Writer) Abort() { w.end(false) }

func (w *Writer) end(write bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if write {
		w.buf = w.stream.Yield(w.buf[:0])
		w.writeLocked()
	}
	return w.err
}

// writeLocked writes buf and reports whether the writer still works.
func (w *Writer) writeLocked() bool {
	if w.err == nil && len(w.buf) > 0 {
		_, w.err = w.w.Write(w.buf)
	}
	return w.err == nil
}

// Matches returns how many occurrences of values were masked so far.
func (w *Writer) Matches() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream.Matches()
}
