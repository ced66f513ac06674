package protocol

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
)

// Reader reads frames with large reads and without copying. It is for one goroutine. An
// error that wraps ErrFrame consumes nothing, so that Resync sees the bytes.
type Reader struct {
	r    io.Reader
	buf  []byte
	i, n int // buf[i:n] is unread
}

// readBuffer holds many small frames, the common case. For a larger frame the buffer
// grows once, to the maximum.
const readBuffer = 64 << 10

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: r, buf: make([]byte, readBuffer)}
}

// Next returns the next frame; the payload is valid until the next call. io.EOF means
// that the stream ended between frames.
func (r *Reader) Next() (Header, []byte, error) {
	if err := r.fill(HeaderSize); err != nil {
		return Header{}, nil, err
	}
	h, err := ParseHeader(r.buf[r.i:r.n])
	if err != nil {
		return Header{}, nil, err
	}
	size := HeaderSize + int(h.Length)
	if err := r.fill(size); err != nil {
		return Header{}, nil, fmt.Errorf("read payload of %d bytes: %w", h.Length, err)
	}
	p := r.buf[r.i+HeaderSize : r.i+size : r.i+size]
	r.i += size
	return h, p, nil
}

// Ready reports whether Next will return without reading from the stream.
func (r *Reader) Ready() bool {
	b := r.buf[r.i:r.n]
	if len(b) < HeaderSize {
		return false
	}
	h, err := ParseHeader(b)
	return err != nil || len(b) >= HeaderSize+int(h.Length)
}

// fill makes at least n bytes available.
func (r *Reader) fill(n int) error {
	for r.n-r.i < n {
		if r.i == r.n {
			r.i, r.n = 0, 0
		}
		if len(r.buf) < n {
			r.grow(HeaderSize + MaxPayload)
		} else if r.i+n > len(r.buf) {
			copy(r.buf, r.buf[r.i:r.n])
			r.i, r.n = 0, r.n-r.i
		}
		m, err := r.r.Read(r.buf[r.n:])
		if m < 0 || m > len(r.buf)-r.n {
			return fmt.Errorf("read: stream returned %d bytes", m)
		}
		r.n += m
		if err != nil && r.n-r.i < n {
			if err == io.EOF && r.n > r.i {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

func (r *Reader) grow(size int) {
	b := make([]byte, size)
	r.n = copy(b, r.buf[r.i:r.n])
	r.i = 0
	r.buf = b
}

// Resync discards bytes up to and including the next marker whose nonce accept approves,
// and returns that nonce. It fails with ErrFrame after limit bytes; 0 means no limit.
func (r *Reader) Resync(limit int64, accept func(nonce string) bool) (string, error) {
	var dropped int64
	for {
		b := r.buf[r.i:r.n]
		at := bytes.Index(b, []byte(markerPrefix))
		switch {
		case at < 0: // keep a possible beginning of a marker
			drop := max(0, len(b)-len(markerPrefix)+1)
			r.i += drop
			dropped += int64(drop)
		case len(b)-at >= MarkerSize:
			nonce := string(b[at+len(markerPrefix) : at+MarkerSize])
			if _, err := hex.DecodeString(nonce); err == nil && accept(nonce) {
				r.i += at + MarkerSize
				return nonce, nil
			}
			r.i += at + 1
			dropped += int64(at + 1)
			continue
		default:
			r.i += at
			dropped += int64(at)
		}
		if limit > 0 && dropped > limit {
			return "", fmt.Errorf("%w: no marker in %d bytes", ErrFrame, dropped)
		}
		if err := r.fill(r.n - r.i + 1); err != nil {
			return "", err
		}
	}
}
