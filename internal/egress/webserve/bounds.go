package webserve

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Bounds limit the time that a program may take over one request and its answer. The zero
// Bounds are invalid; use [Default].
type Bounds struct {
	// Stall is how long the program may take to send the next 4 KiB of a body, or its
	// rest, and to read what was written.
	Stall time.Duration
	// Drain is how long the server reads on what is left of a body once the request is
	// answered.
	Drain time.Duration
}

// Default are the bounds for programs in boxes. Stall is that of an idle connection.
var Default = Bounds{Stall: 10 * time.Minute, Drain: 5 * time.Second}

// progress is how many bytes of a body have to arrive within Stall.
const progress = 4 << 10

// Begin returns the request with a bounded body, and leaves r as it is: the server looks at
// the body of r. The handler calls done when it has answered.
func (b Bounds) Begin(w http.ResponseWriter, r *http.Request) (bounded *http.Request, done func()) {
	ctl := http.NewResponseController(w)
	if r.Body == nil || r.Body == http.NoBody {
		return r, func() { _ = ctl.SetWriteDeadline(time.Now().Add(b.Stall)) }
	}
	body := &body{ReadCloser: r.Body, ctl: ctl, stall: b.Stall}
	body.renew() // an error of setting a deadline means that the program has left
	bounded = r.WithContext(r.Context())
	bounded.Body = body
	return bounded, func() {
		_ = ctl.SetWriteDeadline(time.Now().Add(b.Stall)) // for what is still buffered
		body.mu.Lock()
		defer body.mu.Unlock()
		if !body.ended {
			body.ended = true
			_ = ctl.SetReadDeadline(time.Now().Add(b.Drain))
		}
	}
}

// A body is that of a request. Reading it fails if too little arrives in time.
type body struct {
	io.ReadCloser
	ctl   *http.ResponseController
	stall time.Duration
	began time.Time // when the deadline was set
	read  int       // bytes since then

	// A transport may read the body while the handler returns, after which ctl must not be used.
	mu    sync.Mutex
	ended bool // guarded by mu: the body was read, or the request is answered
}

func (b *body) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.began, b.read = time.Now(), 0
	_ = b.ctl.SetReadDeadline(b.began.Add(b.stall))
}

func (b *body) Read(p []byte) (int, error) {
	// Setting a deadline for every piece of a large body would cost more than reading it.
	if b.read >= progress && time.Since(b.began) > b.stall/10 {
		b.renew()
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	if err == io.EOF {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.ended {
			b.ended = true
			_ = b.ctl.SetReadDeadline(time.Time{}) // the server now waits for the end of the connection
		}
	}
	return n, err
}

// Writer returns a writer to w each Write and Flush of which must succeed within Stall.
// HTTP/2 needs it: there a program that grants no window delays one stream, and not the
// connection.
func (b Bounds) Writer(w http.ResponseWriter) *Writer {
	return &Writer{w: w, ctl: http.NewResponseController(w), stall: b.Stall}
}

// A Writer writes an answer. Its methods must not be called concurrently.
type Writer struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	stall time.Duration
}

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	defer w.bound()()
	return w.w.Write(p)
}

// Flush sends what is buffered.
func (w *Writer) Flush() error {
	defer w.bound()()
	return w.ctl.Flush()
}

// bound sets a deadline, and returns a function that removes it: in HTTP/2, a deadline ends
// the stream even if nothing is being written, such as during a long upload.
func (w *Writer) bound() (done func()) {
	_ = w.ctl.SetWriteDeadline(time.Now().Add(w.stall))
	return func() { _ = w.ctl.SetWriteDeadline(time.Time{}) }
}
