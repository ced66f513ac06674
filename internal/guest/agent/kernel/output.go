package kernel

import (
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// rawPipe is the pipe behind descriptor 1 or 2 of user code. Its bytes have their place
// among the events: the Python kernel sends marks, which say how much had been written
// to the raw pipes by then. Only the agent reads these pipes, so a position means the
// same on both sides. Node.js cannot query how much a pipe holds; its kernel reads what
// is there and sends it as an event.
type rawPipe struct {
	file *os.File
	fd   int // of file; -1 once closed
	ch   protocol.Channel
	at   uint32 // bytes read so far, modulo 2^31, as in the event buffer
	buf  []byte // allocated at first use: most kernels print nothing here
	rest []byte // of buf: read and not delivered; empty while nobody holds outMu
	held []byte // printed between two runs
}

// watch collects output of children, during runs and between them.
func (k *Kernel) watch(r *rawPipe) {
	rc, err := r.file.SyscallConn()
	if err != nil {
		return
	}
	rc.Read(func(uintptr) bool {
		for {
			k.outMu.Lock()
			if r.fd < 0 {
				k.outMu.Unlock()
				return true
			}
			n, err := k.drainRawLocked(r, readSize)
			k.outMu.Unlock()
			switch {
			case err == unix.EAGAIN:
				return false
			case n <= 0:
				return true
			}
		}
	})
}

// drainRawLocked reads at most max bytes from a raw pipe in one read, and delivers what
// the kernel printed before them.
func (k *Kernel) drainRawLocked(r *rawPipe, max int) (int, error) {
	if r.fd < 0 {
		return 0, io.EOF
	}
	if !k.marks() {
		// The kernel printed this before it started the child.
		k.drainEventsLocked(drainSize)
	}
	n, err := k.readRawLocked(r, max)
	if n <= 0 {
		return n, err
	}
	if k.marks() {
		// Everything printed before these bytes has arrived, and marks say how many of
		// the bytes come before it.
		k.drainEventsLocked(drainSize)
	}
	k.deliverRawLocked(r, len(r.rest))
	return n, nil
}

// marks reports whether the kernel sends marks.
func (k *Kernel) marks() bool { return k.language == Python }

// readRawLocked reads at most max bytes into r.rest, which must be empty.
func (k *Kernel) readRawLocked(r *rawPipe, max int) (int, error) {
	if r.buf == nil {
		r.buf = make([]byte, readSize)
	}
	k.eventBuf.position(r.ch, r.at, true)
	n, err := retry(func() (int, error) { return unix.Read(r.fd, r.buf[:min(max, len(r.buf))]) })
	if n > 0 {
		r.at += uint32(n)
		r.rest = r.buf[:n]
	}
	k.eventBuf.position(r.ch, r.at, false)
	return n, err
}

// deliverRawLocked delivers the first n bytes of r.rest.
func (k *Kernel) deliverRawLocked(r *rawPipe, n int) {
	p := r.rest[:n]
	r.rest = r.rest[n:]
	if k.sink != nil {
		k.sink.Output(r.ch, p)
	} else if room := maxHeld - len(r.held); room > 0 {
		r.held = append(r.held, p[:min(room, len(p))]...)
	}
}

// markLocked delivers the bytes written to the raw pipes before a mark.
func (k *Kernel) markLocked(p []byte) {
	for i, r := range k.raw {
		// Correct while the two positions are less than 1 GiB apart.
		before := func() int { return int(int32(binary.BigEndian.Uint32(p[4*i:])-r.at<<1)) >> 1 }
		if n := min(len(r.rest)+before(), len(r.rest)); n > 0 {
			k.deliverRawLocked(r, n)
		}
		n := before()
		if n > 0 {
			// Never more than the pipe holds: the mark may be wrong, and others may be
			// printing.
			n = min(n, k.inRawLocked(r))
		}
		for n > 0 {
			m, err := k.readRawLocked(r, n)
			if err != nil || m <= 0 {
				break
			}
			k.deliverRawLocked(r, m)
			n -= m
		}
	}
}

// inRawLocked returns how many bytes a raw pipe holds.
func (k *Kernel) inRawLocked(r *rawPipe) int {
	if r.fd < 0 {
		return 0
	}
	n, _ := unix.IoctlGetInt(r.fd, unix.TIOCINQ)
	return n
}

// drainEventsLocked delivers the events in the event buffer and about max bytes of
// their pipe, and returns how many bytes there were.
func (k *Kernel) drainEventsLocked(max int) int {
	total := k.drainEventBufferLocked()
	for k.events >= 0 && k.bad == nil && total < max {
		n, _ := rawio.Read(k.events, k.buf)
		if n <= 0 {
			break
		}
		// The first bytes in the pipe mean that the event buffer is complete.
		total += k.drainEventBufferLocked() + n
		k.feedLocked(k.buf[:n])
		if n < len(k.buf) {
			break // a pipe returns everything it has
		}
	}
	return total
}

func (k *Kernel) drainEventBufferLocked() int {
	p := k.eventBuf.take()
	k.feedLocked(p)
	return len(p)
}

func (k *Kernel) feedLocked(p []byte) {
	if k.bad == nil {
		k.bad = k.dec.feed(p, k.eventLocked)
	}
}

// eventLocked delivers one event, or a part of an output event.
func (k *Kernel) eventLocked(typ byte, p []byte) error {
	if k.sink == nil {
		return nil // from a thread that outlived its run
	}
	switch typ {
	case 'm':
		k.markLocked(p)
	case 'o':
		k.sink.Output(protocol.Stdout, p)
	case 'e':
		k.sink.Output(protocol.Stderr, p)
	case 'd':
		if k.shown >= protocol.MaxDisplays {
			k.dropped++
			return nil
		}
		if d, err := protocol.ParseDisplay(p); err != nil || d.Data == nil {
			return errMalformed
		}
		k.shown++
		k.sink.Display(p)
	}
	return nil
}

// finish delivers the remaining output of the run and releases the sink. It reads the
// pipes unless they are known to be empty.
func (k *Kernel) finish(empty bool) (dropped int, err error) {
	k.outMu.Lock()
	defer k.outMu.Unlock()
	if empty {
		k.drainEventBufferLocked()
	} else {
		k.drainAllRawLocked()
		k.drainEventsLocked(2 * drainSize)
	}
	k.sink = nil
	if k.bad == nil && k.dec.partial() {
		k.bad = errMalformed
	}
	return k.dropped, k.bad
}

// drainAllRawLocked delivers what the raw pipes hold, and no more: a process left
// behind may print forever.
func (k *Kernel) drainAllRawLocked() {
	for _, r := range k.raw {
		for n := k.inRawLocked(r); n > 0; {
			m, err := k.drainRawLocked(r, n)
			if err != nil || m <= 0 {
				break
			}
			n -= m
		}
	}
}

// drop discards output from outside a run.
func (k *Kernel) drop() {
	k.outMu.Lock()
	defer k.outMu.Unlock()
	for _, r := range k.raw {
		k.drainRawLocked(r, readSize)
		r.held = nil
	}
}

// begin sets the sink for a new run and delivers the output since the last one.
func (k *Kernel) begin(sink Sink) {
	k.outMu.Lock()
	defer k.outMu.Unlock()
	k.sink, k.shown, k.dropped = sink, 0, 0
	k.eventBuf.reset()
	for _, r := range k.raw {
		if sink != nil && len(r.held) > 0 {
			held := r.held
			r.held = nil
			sink.Output(r.ch, held)
		}
	}
}

// drain collects the run's output and returns its size.
func (k *Kernel) drain() (int, error) {
	k.outMu.Lock()
	defer k.outMu.Unlock()
	n := k.drainEventsLocked(drainSize)
	return n, k.bad
}

// retry repeats a system call interrupted by a signal.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
