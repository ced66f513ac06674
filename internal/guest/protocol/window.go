package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// ErrFlow is wrapped by every error about a peer that violates flow control.
var ErrFlow = errors.New("flow control violated")

// Cost returns how many bytes of the window a Data frame with n bytes of payload takes.
// The header counts, so that many tiny frames cannot cost much memory.
func Cost(n int) int { return HeaderSize + n }

// minTake prevents tiny frames when the window is nearly used up.
const minTake = 4 << 10

// SendWindow is the sender's side of flow control. All methods may be called
// concurrently.
type SendWindow struct {
	size int
	mu   sync.Mutex
	left int           // guarded by mu
	wake chan struct{} // guarded by mu; closed when left grows; nil without waiters
}

// NewSendWindow returns a SendWindow with a full window of size bytes: Window, or that of
// the operation.
func NewSendWindow(size int) *SendWindow { return &SendWindow{size: size, left: size} }

// Take reserves window for a frame of at most want bytes, want > 0, and returns how
// many it may carry. It waits for Credit and returns ErrStopped if stop is closed
// first.
func (w *SendWindow) Take(want int, stop <-chan struct{}) (int, error) {
	want = min(want, MaxPayload)
	need := Cost(min(want, minTake))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.waitLocked(need, stop); err != nil {
		return 0, err
	}
	n := min(want, w.left-HeaderSize)
	w.left -= Cost(n)
	return n, nil
}

// TakeAll reserves window for a frame of n bytes, at most the window's size. It waits for
// Credit and returns ErrStopped if stop is closed first.
func (w *SendWindow) TakeAll(n int, stop <-chan struct{}) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.waitLocked(Cost(n), stop); err != nil {
		return err
	}
	w.left -= Cost(n)
	return nil
}

// waitLocked waits until need bytes are left. It unlocks mu meanwhile.
func (w *SendWindow) waitLocked(need int, stop <-chan struct{}) error {
	for w.left < need {
		if w.wake == nil {
			w.wake = make(chan struct{})
		}
		wake := w.wake
		w.mu.Unlock()
		select {
		case <-wake:
			w.mu.Lock()
		case <-stop:
			w.mu.Lock()
			return ErrStopped
		}
	}
	return nil
}

// Credit processes the payload of a Credit frame.
func (w *SendWindow) Credit(p []byte) error {
	if len(p) != 4 {
		return fmt.Errorf("%w: credit of %d bytes", ErrFlow, len(p))
	}
	n := binary.BigEndian.Uint32(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if int64(w.left)+int64(n) > int64(w.size) {
		return fmt.Errorf("%w: %d bytes of credit for %d sent", ErrFlow, n, w.size-w.left)
	}
	w.left += int(n)
	if w.wake != nil {
		close(w.wake)
		w.wake = nil
	}
	return nil
}

// Item is one or several consecutive frames of the same channel in a batch of a
// RecvQueue.
type Item struct {
	Channel Channel
	More    bool // the message continues
	EOF     bool // end of the channel; no bytes
	Len     int  // length in the batch's bytes
	cost    int
}

// RecvQueue is the receiver's side of flow control: it passes the frames of one
// operation from the goroutine that reads the stream to the one that consumes them.
// Push and Take may be called concurrently with each other.
type RecvQueue struct {
	// Wake receives an element after a Push since the last Take.
	Wake chan struct{}

	size       int
	mu         sync.Mutex
	data       []byte // guarded by mu
	items      []Item // guarded by mu
	eof        uint8  // guarded by mu; bit set of channels that ended
	left       int    // guarded by mu; remaining window
	uncredited int    // guarded by mu; consumed, not yet credited
}

// NewRecvQueue returns an empty RecvQueue with a full window of size bytes: Window, or
// that of the operation.
func NewRecvQueue(size int) *RecvQueue {
	return &RecvQueue{Wake: make(chan struct{}, 1), size: size, left: size}
}

// Push adds a Data or EOF frame without blocking. Its errors wrap ErrFlow.
func (q *RecvQueue) Push(h Header, p []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	bit := uint8(1) << h.Channel
	if q.eof&bit != 0 {
		return fmt.Errorf("%w: frame after the end of channel %d", ErrFlow, h.Channel)
	}
	it := Item{Channel: h.Channel, More: h.More, Len: len(p)}
	if h.Type == EOF {
		q.eof |= bit
		it.EOF, it.More = true, false
		if len(p) > 0 {
			return fmt.Errorf("%w: EOF with %d bytes", ErrFlow, len(p))
		}
	} else {
		it.cost = Cost(len(p))
		if it.cost > q.left {
			return fmt.Errorf("%w: %d bytes more than the window", ErrFlow, it.cost-q.left)
		}
		q.left -= it.cost
		q.data = append(q.data, p...)
	}
	if last := len(q.items) - 1; last >= 0 && it.Channel != Displays && !it.EOF &&
		q.items[last].Channel == it.Channel && !q.items[last].EOF {
		q.items[last].Len += it.Len
		q.items[last].cost += it.cost
	} else {
		q.items = append(q.items, it)
	}
	q.signal()
	return nil
}

func (q *RecvQueue) signal() {
	select {
	case q.Wake <- struct{}{}:
	default:
	}
}

// Take returns everything pushed so far, and reuses the buffers of an earlier batch,
// which the caller must no longer use.
func (q *RecvQueue) Take(data []byte, items []Item) ([]byte, []Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, i := q.data, q.items
	q.data, q.items = data[:0], items[:0]
	return d, i
}

// Consume records that the item was consumed and returns the credit to send now; 0 if it
// is not yet worth a frame.
func (q *RecvQueue) Consume(it Item) uint32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.uncredited += it.cost
	if q.uncredited < q.size/4 {
		return 0
	}
	n := q.uncredited
	q.uncredited = 0
	q.left += n
	return uint32(n)
}
