package webserve

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// slowDeadlines is a ResponseWriter whose read deadlines take until proceed is closed.
type slowDeadlines struct {
	http.ResponseWriter
	setting  chan struct{}
	proceed  chan struct{}
	returned atomic.Bool // the handler has
	late     atomic.Bool
}

func (w *slowDeadlines) SetReadDeadline(d time.Time) error {
	if d.IsZero() { // at the end of the body
		w.setting <- struct{}{}
		<-w.proceed
	}
	if w.returned.Load() {
		w.late.Store(true)
	}
	return nil
}

func (w *slowDeadlines) SetWriteDeadline(time.Time) error { return nil }

// TestBegin_NoDeadlineAfterTheHandler: a transport that reads a body sets no deadline once done has returned:
// in HTTP/2, the handler's writer is gone then, and using it panics.
func TestBegin_NoDeadlineAfterTheHandler(t *testing.T) {
	w := &slowDeadlines{setting: make(chan struct{}, 1), proceed: make(chan struct{})}
	req, _ := http.NewRequest("POST", "https://example.com/", io.NopCloser(strings.NewReader("x")))
	bounded, done := Default.Begin(w, req)
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(io.Discard, bounded.Body)
	}()
	<-w.setting
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done()
		w.returned.Store(true)
	}()
	select {
	case <-ended:
		t.Error("done returns while a deadline is set")
	case <-time.After(50 * time.Millisecond):
	}
	close(w.proceed)
	<-read
	<-ended
	if w.late.Load() {
		t.Error("a deadline was set after done had returned")
	}

	w = &slowDeadlines{setting: make(chan struct{}, 1), proceed: make(chan struct{})}
	close(w.proceed)
	req, _ = http.NewRequest("POST", "https://example.com/", io.NopCloser(strings.NewReader("x")))
	bounded, done = Default.Begin(w, req)
	done()
	w.returned.Store(true)
	if io.Copy(io.Discard, bounded.Body); w.late.Load() {
		t.Error("the end of a body sets a deadline after done has returned")
	}
}
