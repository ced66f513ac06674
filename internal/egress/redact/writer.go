package redact

import (
	"io"
	"sync"
	"time"
)

// HoldBack is how long a [Writer] keeps bytes that may begin a value when nothing
// follows them.
const HoldBack = 50 * time.Millisecond

// piece bounds how much a Writer masks at once.
const piece = 32 << 10

// Writer masks what is written through it. Its methods may be called concurrently; it
// never uses the writer below it concurrently.
type Writer struct {
	mu     sync.Mutex
	w      io.Writer
	flush  func() error
	stream *Stream
	buf    []byte
	timer  *time.Timer
	err    error
	closed bool
}

// NewWriter returns a Writer to w. Its owner must call Close or Abort. Bytes that the
// stream holds back are written after [HoldBack] at the latest, from another goroutine,
// which then calls flush unless that is nil.
func (s *Set) NewWriter(w io.Writer, flush func() error) *Writer {
	return &Writer{w: w, flush: flush, stream: s.Stream()}
}

// Write writes p, masked, except for what may begin a value. It returns len(p) unless
// writing fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	n := 0
	for n < len(p) {
		part := p[n:min(n+piece, len(p))]
		w.buf = w.stream.Append(w.buf[:0], part)
		if !w.writeLocked() {
			return n, w.err
		}
		n += len(part)
	}
	if w.stream.Holds() {
		if w.timer == nil {
			w.timer = time.AfterFunc(HoldBack, w.yield)
		} else {
			w.timer.Reset(HoldBack)
		}
	}
	return n, w.err
}

// Do calls f while nothing is being written.
func (w *Writer) Do(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

// yield writes what has been held back for too long.
func (w *Writer) yield() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.stream.Holds() {
		return
	}
	w.buf = w.stream.Yield(w.buf[:0])
	if w.writeLocked() && w.flush != nil {
		w.err = w.flush()
	}
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
	if w.timer != nil {
		w.timer.Stop()
	}
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
