package redact

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sink records what is written, and when.
type sink struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	flushes int
	err     error
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	return s.buf.Write(p)
}

func (s *sink) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushes++
	return nil
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func TestWriter_PassesOnAtOnceAndAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out sink
		w := newSet(t, token).NewWriter(&out, out.flush)
		defer w.Abort()
		io.WriteString(w, "event\n\n")
		if got := out.String(); got != "event\n\n" {
			t.Fatalf("after an event: %q, want it at once", got)
		}
		io.WriteString(w, "ping g") // the value begins with g
		if got := out.String(); got != "event\n\nping " {
			t.Fatalf("after what may begin a value: %q", got)
		}
		time.Sleep(2 * HoldBack)
		synctest.Wait()
		if got := out.String(); got != "event\n\nping g" || out.flushes != 1 {
			t.Fatalf("after a pause: %q, %d flushes, want all and one", got, out.flushes)
		}
		io.WriteString(w, token[1:10]) // a server that pauses within the value
		time.Sleep(2 * HoldBack)
		io.WriteString(w, token[10:])
		io.WriteString(w, ".")
		got := strings.TrimPrefix(out.String(), "event\n\nping g")
		if len(got) != len(token) || !strings.HasSuffix(got, "*.") || strings.Contains(got, "0123") || strings.Contains(got, "abc") {
			t.Fatalf("a value with pauses = %q, want a mask", got)
		}
	})
}

func TestWriter_CloseWritesTheRest(t *testing.T) {
	var out sink
	w := newSet(t, token).NewWriter(&out, nil)
	io.WriteString(w, strings.Repeat("x", 2*piece)+token+"gh")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); len(got) != 2*piece+len(token)+2 || !strings.HasSuffix(got, "*gh") || w.Matches() != 1 {
		t.Errorf("%d bytes ending in %q and %d matches, want %d, the rest, and 1", len(got), got[len(got)-5:], w.Matches(), 2*piece+len(token)+2)
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after Close: %v, want %v", err, io.ErrClosedPipe)
	}
}

func TestWriter_KeepsTheError(t *testing.T) {
	broken := errors.New("broken")
	out := sink{err: broken}
	w := newSet(t, token).NewWriter(&out, nil)
	if _, err := io.WriteString(w, "x"); !errors.Is(err, broken) {
		t.Errorf("Write: %v, want %v", err, broken)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Errorf("Close: %v, want %v", err, broken)
	}
}
