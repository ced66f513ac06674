package kernel

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// rawPipe is the pipe behind descriptor 1 or 2 of the user's code. What lies in it
// has its place among the events: a kernel that can puts marks among them, which
// say how much had been written to the raw pipes by then. Only we read these, so
// that a position is the same for both sides. Node.js cannot see how much there is
// in a pipe; its kernel takes what is there and sends it as an event of its own.
type rawPipe struct {
	file *os.File
	fd   int // of file; -1 once closed
	ch   protocol.Channel
	at   uint32 // bytes read so far, modulo 2^31: the board has a bit less
	buf  []byte // made at first use: most kernels print nothing here
	rest []byte // of buf: read and not delivered; empty while nobody holds outMu
	held []byte // printed between two runs
}

// watch takes what children print, in a run and between two.
func (k *Kernel) watch(r *rawPipe) {
	defer k.wg.Done()
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

// drainRawLocked takes at most max bytes from a raw pipe in one read, and what the
// kernel printed before them.
func (k *Kernel) drainRawLocked(r *rawPipe, max int) (int, error) {
	if r.fd < 0 {
		return 0, io.EOF
	}
	if !k.marks() {
		// The kernel printed it before it started what prints here.
		k.drainEventsLocked(drainSize)
	}
	n, err := k.readRawLocked(r, max)
	if n <= 0 {
		return n, err
	}
	if k.marks() {
		// What was printed before these bytes is there by now, and marks say how many
		// of them come before it.
		k.drainEventsLocked(drainSize)
	}
	k.deliverRawLocked(r, len(r.rest))
	return n, nil
}

// marks says whether the kernel marks how much was written to the raw pipes.
func (k *Kernel) marks() bool { return k.language == Python }

// readRawLocked reads at most max bytes to r.rest, which is empty.
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

// markLocked delivers what was written to the raw pipes before a mark.
func (k *Kernel) markLocked(p []byte) {
	for i, r := range k.raw {
		// The difference is right whenever less than 1 GiB lies between the two.
		before := func() int { return int(int32(binary.BigEndian.Uint32(p[4*i:])-r.at<<1)) >> 1 }
		if n := min(len(r.rest)+before(), len(r.rest)); n > 0 {
			k.deliverRawLocked(r, n)
		}
		n := before()
		if n > 0 {
			// No more than there is: the mark may be wrong, and others be printing.
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

// inRawLocked is how much lies in a raw pipe.
func (k *Kernel) inRawLocked(r *rawPipe) int {
	if r.fd < 0 {
		return 0
	}
	n, _ := unix.IoctlGetInt(r.fd, unix.TIOCINQ)
	return n
}

// drainEventsLocked takes the events that lie on the board and, about max bytes,
// in their pipe, and returns how many bytes there were.
func (k *Kernel) drainEventsLocked(max int) int {
	total := k.drainEventBufferLocked()
	for k.events >= 0 && k.bad == nil && total < max {
		n, _ := rawio.Read(k.events, k.buf)
		if n <= 0 {
			break
		}
		// With a run's first bytes in the pipe its board is complete.
		total += k.drainEventBufferLocked() + n
		k.feedLocked(k.buf[:n])
		if n < len(k.buf) {
			break // a pipe gives all that it has
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
		return nil // of a thread that outlived its run
	}
	switch typ {
	case 'm':
		k.markLocked(p)
	case 'o':
		k.sink.Output(protocol.Stdout, p)
	case 'e':
		k.sink.Output(protocol.Stderr, p)
	case 'd':
		if k.shown >= MaxDisplays {
			k.dropped++
			return nil
		}
		var d protocol.Display
		if err := json.Unmarshal(p, &d); err != nil || d.Data == nil {
			return errMalformed
		}
		k.shown++
		k.sink.Display(p)
	}
	return nil
}

// finish takes everything that the run printed and ends its claim to the sink.
// It looks at the pipes unless they are known to be empty.
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

// drainAllRawLocked takes what lies in the raw pipes and no more: a process left
// behind may print for ever.
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

// drop forgets what was printed outside of a run.
func (k *Kernel) drop() {
	k.outMu.Lock()
	defer k.outMu.Unlock()
	for _, r := range k.raw {
		k.drainRawLocked(r, readSize)
		r.held = nil
	}
}

// begin gives the sink to a new run, with what was printed since the last one.
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

// drain is a look at the run's output; it says whether there was any.
func (k *Kernel) drain() (int, error) {
	k.outMu.Lock()
	defer k.outMu.Unlock()
	n := k.drainEventsLocked(drainSize)
	return n, k.bad
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
