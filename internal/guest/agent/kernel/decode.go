package kernel

import (
	"encoding/binary"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxEvent bounds one event: a display and its type.
	maxEvent = protocol.MaxDisplay + 1
	// maxControl bounds one control message: an error with its traceback of
	// 64 KiB, every byte of it escaped.
	maxControl = 1 << 20
)

var errMalformed = errors.New("kernel sent a malformed message")

// markSize is the payload size of a mark: two positions in the raw pipes.
const markSize = 8

// decoder splits the stream of events into messages. It passes output on in pieces as
// received and buffers displays and marks until they are complete; its memory grows
// with received data, not with announced lengths.
type decoder struct {
	head [5]byte
	n    int    // bytes of head so far
	rest int    // bytes of the payload still missing
	body []byte // of a display or mark so far
}

// feed processes the next bytes of the stream. emit must not keep its argument. The
// first error ends the stream.
func (d *decoder) feed(p []byte, emit func(typ byte, p []byte) error) error {
	for len(p) > 0 {
		if d.n < len(d.head) {
			c := copy(d.head[d.n:], p)
			d.n += c
			p = p[c:]
			if d.n < len(d.head) {
				return nil
			}
			size := binary.BigEndian.Uint32(d.head[:4])
			if size == 0 || size > maxEvent {
				return errMalformed
			}
			d.rest = int(size) - 1
			switch d.head[4] {
			case 'o', 'e', 'd':
			case 'm':
				if d.rest != markSize {
					return errMalformed
				}
			default:
				return errMalformed
			}
		}
		part := p[:min(len(p), d.rest)]
		p = p[len(part):]
		d.rest -= len(part)
		typ := d.head[4]
		whole := typ == 'd' || typ == 'm'
		if whole {
			if d.rest > 0 || len(d.body) > 0 {
				d.body = append(d.body, part...)
				part = d.body
			}
			if d.rest > 0 {
				return nil
			}
		}
		if d.rest == 0 {
			d.n = 0
		}
		if len(part) > 0 || whole {
			if err := emit(typ, part); err != nil {
				return err
			}
		}
		if whole {
			d.body = nil
		}
	}
	return nil
}

// partial reports whether the stream stops inside a message.
func (d *decoder) partial() bool { return d.n > 0 }

// parseControl returns the first message of b and the bytes after it. ok is false while
// the message is incomplete.
func parseControl(b []byte) (typ byte, payload, rest []byte, ok bool, err error) {
	if len(b) < 4 {
		return 0, nil, b, false, nil
	}
	size := binary.BigEndian.Uint32(b)
	if size == 0 || size > maxControl {
		return 0, nil, nil, false, errMalformed
	}
	if len(b) < 4+int(size) {
		return 0, nil, b, false, nil
	}
	return b[4], b[5 : 4+size], b[4+size:], true, nil
}

// control returns the next control message, within the read deadline of k.ctl. The
// payload is valid until the next call. send, if not nil, is called once to send the
// request, and reports whether the reply can be read without waiting.
func (k *Kernel) control(send func() (bool, error)) (typ byte, payload []byte, err error) {
	for {
		typ, payload, rest, ok, err := parseControl(k.msg)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			if k.msg = rest; len(rest) == 0 {
				k.msg = nil
			}
			return typ, payload, nil
		}
		var n int
		var rerr error
		var buf [4096]byte
		err = k.rc.Read(func(fd uintptr) bool {
			if send != nil {
				var ready bool
				ready, rerr = send()
				send = nil
				if rerr != nil || !ready {
					return rerr != nil
				}
			}
			n, rerr = rawio.Read(int(fd), buf[:])
			return rerr != unix.EAGAIN
		})
		switch {
		case err != nil:
			return 0, nil, err
		case rerr != nil:
			return 0, nil, rerr
		case n == 0:
			return 0, nil, io.EOF
		}
		k.msg = append(k.msg, buf[:n]...)
	}
}
