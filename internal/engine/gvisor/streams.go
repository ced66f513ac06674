//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// tailSize bounds what is kept of the agent's standard error.
const tailSize = 4 << 10

// tail keeps the end of what is written to a pipe.
type tail struct {
	r    *os.File
	done chan struct{}

	mu  sync.Mutex
	buf []byte // guarded by mu; the last tailSize bytes
}

// newTail returns a tail and the end of its pipe to write to.
func newTail() (*tail, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	t := &tail{r: r, done: make(chan struct{})}
	go t.drain()
	return t, w, nil
}

// drain ends when all writers have closed or close is called.
func (t *tail) drain() {
	defer close(t.done)
	b := make([]byte, 4<<10)
	for {
		n, err := t.r.Read(b)
		t.mu.Lock()
		t.buf = append(t.buf, b[:n]...)
		if len(t.buf) > tailSize {
			t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailSize:]...)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// lastWait bounds the wait for what ended processes have written, which is in the
// pipe already.
const lastWait = time.Second

// lastLine returns the last line that was written, once all writers have closed or
// a moment has passed. It comes from the guest.
func (t *tail) lastLine() string {
	select {
	case <-t.done:
	case <-time.After(lastWait):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return clean(lastLine(string(t.buf)))
}

func (t *tail) close() {
	if t == nil {
		return
	}
	t.r.SetReadDeadline(time.Unix(1, 0))
	<-t.done
	t.r.Close()
}

// report is a pipe for the last words of gVisor's own processes. Nobody reads it
// while they live: what does not fit is dropped, since the writers never block.
type report struct{ r *os.File }

func newReport() (*report, *os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	r := &report{os.NewFile(uintptr(p[0]), "report")}
	resize(r.r, reportSize)
	// The descriptor must stay non-blocking, which it would not as a file that is
	// given to exec.Cmd if it had been registered with the poller.
	return r, os.NewFile(uintptr(p[1]), "report"), nil
}

// tail returns what was said, on one line, or "".
func (r *report) tail() string {
	if r == nil {
		return ""
	}
	b := make([]byte, reportSize)
	r.r.SetReadDeadline(time.Now().Add(time.Millisecond))
	n, _ := r.r.Read(b) // nothing is an answer too
	text := strings.TrimSpace(string(b[:n]))
	// The cause is in the first lines; stacks of goroutines follow.
	if head, _, ok := strings.Cut(text, "\ngoroutine "); ok {
		text = head
	}
	return clean(strings.Join(strings.Fields(text), " "))
}

func (r *report) close() {
	if r != nil {
		r.r.Close()
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// clean makes text from outside fit for one line of a log or a message.
func clean(s string) string {
	return truncate.Bytes(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")), 500)
}
