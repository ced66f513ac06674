package protocol

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

const (
	// outboxData is the size of pending output from which Add blocks.
	outboxData = 1 << 20
	// outboxBulk is the size of pending bulk frames from which AddBulk blocks.
	outboxBulk = 128 << 10
	// outboxShare is how many bytes of bulk frames one write has at most, unless its
	// first one is larger. Other frames wait for at most one share and for what is already in the pipe.
	outboxShare = HeaderSize + MaxDialFrame
	// outboxMax bounds the pending output. Frames that do not wait are small, so
	// reaching it means that the peer has stopped reading.
	outboxMax = 4*outboxData + 2*(HeaderSize+MaxPayload)
)

var (
	// ErrSuperseded means that a newer connection has replaced that of the frame.
	ErrSuperseded = errors.New("superseded by a new connection")
	// ErrStuck means that too much output is pending because the peer does not read.
	ErrStuck = errors.New("the peer does not read")
	// ErrStopped means that the wait was abandoned.
	ErrStopped = errors.New("stopped")
)

// Outbox batches the frames of all operations: frames added during a write go out
// together in the next one. Bulk frames are those of dials (connections of programs):
// they keep their order among themselves, but other frames overtake them. All methods may be called
// concurrently.
type Outbox struct {
	w    io.Writer
	wake chan struct{}
	done chan struct{} // closed by Close

	mu      sync.Mutex
	buf     []byte        // guarded by mu; pending
	bulk    []byte        // guarded by mu; pending bulk frames
	spare   []byte        // guarded by mu; the buffer of the last write
	writing bool          // guarded by mu; a Flush is writing
	epoch   uint64        // guarded by mu; number of the connection, whose frames alone are accepted
	err     error         // guarded by mu; first write error
	room    chan struct{} // guarded by mu; closed when pending output shrinks; nil without waiters
}

// NewOutbox returns an Outbox that writes to w. Wake needs a running Run.
func NewOutbox(w io.Writer) *Outbox {
	return &Outbox{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Run writes pending frames after each Wake, until Close or a write error, which it
// returns.
func (o *Outbox) Run() error {
	for {
		select {
		case <-o.wake:
			if err := o.Flush(); err != nil {
				return err
			}
		case <-o.done:
			return nil
		}
	}
}

// Close ends Run and rejects later frames with err. It must be called once.
func (o *Outbox) Close(err error) {
	o.mu.Lock()
	if o.err == nil {
		o.err = err
	}
	o.wakeLocked()
	o.mu.Unlock()
	close(o.done)
}

// AddNow adds a frame without waiting. It is for frames that do not count against a
// window.
func (o *Outbox) AddNow(epoch uint64, h Header, p []byte) error {
	return o.addNow(&o.buf, epoch, h, p)
}

// AddBulkNow is AddNow for the frame that follows the bulk frames of an operation.
func (o *Outbox) AddBulkNow(epoch uint64, h Header, p []byte) error {
	return o.addNow(&o.bulk, epoch, h, p)
}

func (o *Outbox) addNow(to *[]byte, epoch uint64, h Header, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.buf)+len(o.bulk) > outboxMax {
		return ErrStuck
	}
	return o.addLocked(to, epoch, h, p)
}

// Add adds a frame after waiting for room. It returns ErrStopped if stop is closed
// first.
func (o *Outbox) Add(epoch uint64, stop <-chan struct{}, h Header, p []byte) error {
	return o.addBelow(&o.buf, outboxData, epoch, stop, h, p)
}

// AddBulk is Add for a bulk frame.
func (o *Outbox) AddBulk(epoch uint64, stop <-chan struct{}, h Header, p []byte) error {
	return o.addBelow(&o.bulk, outboxBulk, epoch, stop, h, p)
}

// addBelow adds a frame once less than limit bytes are pending where it goes.
func (o *Outbox) addBelow(to *[]byte, limit int, epoch uint64, stop <-chan struct{}, h Header, p []byte) error {
	o.mu.Lock()
	for len(*to) >= limit && o.err == nil && o.epoch == epoch {
		if o.room == nil {
			o.room = make(chan struct{})
		}
		room := o.room
		o.mu.Unlock()
		select {
		case <-room:
		case <-stop:
			return ErrStopped
		}
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	return o.addLocked(to, epoch, h, p)
}

func (o *Outbox) addLocked(to *[]byte, epoch uint64, h Header, p []byte) error {
	if o.err != nil {
		return o.err
	}
	if o.epoch != epoch {
		return ErrSuperseded
	}
	h.Length = uint32(len(p))
	*to = append(h.Append(*to), p...)
	return nil
}

// Restart discards pending frames, puts first before all others, and accepts frames of epoch only. A
// write in progress ends with whole frames.
func (o *Outbox) Restart(epoch uint64, first []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch = epoch
	o.buf, o.bulk = append(o.buf[:0], first...), o.bulk[:0]
	o.wakeLocked()
}

// Wake makes Run write the pending frames.
func (o *Outbox) Wake() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Flush writes the pending frames. If another Flush is writing, it returns at once:
// that one continues until nothing is left.
func (o *Outbox) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing {
		return nil
	}
	o.writing = true
	defer func() { o.writing = false }()
	for len(o.buf)+len(o.bulk) > 0 && o.err == nil {
		share := bulkShare(o.bulk)
		b := append(o.buf, o.bulk[:share]...)
		o.bulk = o.bulk[:copy(o.bulk, o.bulk[share:])]
		o.buf, o.spare = o.spare[:0], nil
		o.wakeLocked() // the next batch fills while this one is written
		o.mu.Unlock()
		_, err := o.w.Write(b)
		o.mu.Lock()
		if cap(b) <= 2*outboxData {
			o.spare = b
		}
		if err != nil && o.err == nil {
			o.err = err
		}
		o.wakeLocked()
	}
	return o.err
}

// bulkShare returns the length of the frames of b that go into one write: at least one
// frame if there is any.
func bulkShare(b []byte) int {
	n := 0
	for n < len(b) {
		next := n + HeaderSize + int(binary.BigEndian.Uint32(b[n+8:]))
		if n > 0 && next > outboxShare {
			break
		}
		n = next
	}
	return n
}

func (o *Outbox) wakeLocked() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}
