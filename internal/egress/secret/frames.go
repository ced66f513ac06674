package secret

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/egress/redact"
)

// frames masks the payloads of the WebSocket frames of a host. It leaves their headers as they are,
// and reads the frames of a message as one text, since a host may begin a new one anywhere. Its methods
// may be called concurrently; it never uses the writer below it concurrently.
type frames struct {
	mu     sync.Mutex
	w      io.Writer
	mask   *redact.Set
	turn   sync.Locker
	stream *redact.Stream // of the message

	header  []byte // of the frame, as far as it was read
	left    uint64 // of its payload
	in      kindOfFrame
	last    bool     // it ends its message
	message bool     // a message has begun
	control []byte   // the payload of a control frame
	queue   []queued // what is not written yet
	payload []byte   // masked, of the first in the queue that has a payload
	buf     []byte
	head    int64 // control frames with a value
	err     error
}

type kindOfFrame int

const (
	noFrame kindOfFrame = iota
	dataFrame
	controlFrame
)

// queued is a header, or a whole control frame, and how much of the payload follows it.
type queued struct {
	bytes []byte
	left  uint64
}

const (
	// maxControl bounds the payload of a control frame.
	maxControl = 125
	// maxQueued bounds the frames that wait: those of a message wait for its last bytes, and control
	// frames for those before.
	maxQueued = 1 << 13
)

var errFrames = errors.New("the host sends frames that are not those of WebSocket without extensions, or too many small ones in a message")

func newFrames(w io.Writer, mask *redact.Set, turn sync.Locker) *frames {
	return &frames{w: w, mask: mask, turn: turn, stream: mask.Stream()}
}

// Write writes the frames in p, masked, except for the last bytes of a message that goes on. It
// returns len(p) unless p has an invalid frame, or writing fails.
func (f *frames) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read(p)
	if len(f.buf) > 0 {
		if _, err := f.w.Write(f.buf); err != nil && f.err == nil {
			f.err = err
		}
		f.buf = f.buf[:0]
	}
	if f.err != nil {
		return 0, f.err
	}
	return len(p), nil
}

// end stops writing, and returns how many values were masked. It drops the last bytes of a message
// that did not end.
func (f *frames) end() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = io.ErrClosedPipe
	}
	return f.head + f.stream.Matches()
}

func (f *frames) read(p []byte) {
	for f.err == nil && (len(p) > 0 || f.in != noFrame && f.left == 0) {
		if f.in == noFrame {
			p = f.readHeader(p)
			continue
		}
		n := int(min(f.left, uint64(len(p)), 32<<10))
		f.readPayload(p[:n])
		p = p[n:]
	}
}

// readHeader reads the header of a frame, and returns what follows.
func (f *frames) readHeader(p []byte) []byte {
	for len(f.header) < headerSize(f.header) {
		if len(p) == 0 {
			return nil
		}
		f.header, p = append(f.header, p[0]), p[1:]
	}
	switch len(f.header) {
	case 2:
		f.left = uint64(f.header[1])
	case 4:
		f.left = uint64(binary.BigEndian.Uint16(f.header[2:]))
	default:
		f.left = binary.BigEndian.Uint64(f.header[2:])
	}
	opcode := f.header[0] & 0xf
	f.last = f.header[0]&0x80 != 0
	f.in = dataFrame
	switch {
	case f.header[0]&0x70 != 0, f.header[1]&0x80 != 0, f.left>>63 != 0, len(f.queue) >= maxQueued:
		f.err = errFrames
	case opcode == 0 && f.message, (opcode == 1 || opcode == 2) && !f.message:
		f.message = true
		f.queue = append(f.queue, queued{slices.Clone(f.header), f.left})
		f.pass()
	case opcode >= 8 && f.last && f.left <= maxControl:
		f.in = controlFrame
	default:
		f.err = errFrames
	}
	return p
}

// headerSize returns the size of a header, as far as its first bytes say.
func headerSize(first []byte) int {
	switch {
	case len(first) < 2:
		return 2
	case first[1] == 126:
		return 4
	case first[1] == 127:
		return 10
	}
	return 2
}

// readPayload reads some of the payload of a frame, perhaps the last of it.
func (f *frames) readPayload(p []byte) {
	f.left -= uint64(len(p))
	if f.in == controlFrame {
		if f.control = append(f.control, p...); f.left > 0 {
			return
		}
		masked := f.mask.String(string(f.control))
		if masked != string(f.control) {
			f.head++
		}
		f.queue = append(f.queue, queued{append(slices.Clone(f.header), masked...), 0})
		f.control = f.control[:0]
	} else {
		f.maskPayload(p, f.left == 0 && f.last)
	}
	f.pass()
	if f.left == 0 {
		f.message = f.message && !(f.in == dataFrame && f.last)
		f.in, f.header = noFrame, f.header[:0]
	}
}

// maskPayload masks some of the payload of a message.
func (f *frames) maskPayload(p []byte, end bool) {
	if f.turn != nil {
		f.turn.Lock()
		defer f.turn.Unlock()
	}
	f.payload = f.stream.Append(f.payload, p)
	if end {
		f.payload = f.stream.Yield(f.payload)
		f.stream.NextText()
	}
}

// pass moves what can be written from the queue to buf.
func (f *frames) pass() {
	done, used := 0, uint64(0)
	for done < len(f.queue) {
		q := &f.queue[done]
		f.buf = append(f.buf, q.bytes...)
		q.bytes = nil
		n := min(q.left, uint64(len(f.payload))-used)
		f.buf = append(f.buf, f.payload[used:used+n]...)
		used += n
		if q.left -= n; q.left > 0 {
			break
		}
		done++
	}
	f.payload = append(f.payload[:0], f.payload[used:]...)
	if done > 0 {
		f.queue = f.queue[done:] // append moves it when its room is used up
	}
	if len(f.queue) == 0 {
		f.queue = nil
	}
}
