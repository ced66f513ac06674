package mcpkit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/envelope"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// admissionTransport checks the messages in responses before they are decoded.
type admissionTransport struct {
	next     http.RoundTripper
	state    *connState
	tooLarge *outbound.TooLargeError // of an event
}

// RoundTrip implements [http.RoundTripper].
func (t *admissionTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	own := pendingRequestOf(req.Context())
	if req.Method == http.MethodPost && own != nil && own.admit != nil {
		var v any
		if json.Unmarshal(requestID(req), &v) == nil {
			if id, err := jsonrpc.MakeID(v); err == nil && id.IsValid() {
				t.state.expect(req.Context(), id)
			}
		}
	}
	res, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch kind := mediaType(res); kind {
	case "application/json", "text/event-stream":
		res.Body = &admittedBody{
			ReadCloser: res.Body, in: bufio.NewReader(res.Body), events: kind != "application/json",
			state: t.state, own: own, tooLarge: t.tooLarge, admit: func(s *envelope.Scanner, odd bool) error { return t.admit(own, s, odd) },
		}
	}
	return res, nil
}

// admit returns an error if a message must not be decoded. own is the request on whose
// stream it came; it may be nil. odd says that it is in an event of another type.
func (t *admissionTransport) admit(own *pendingRequest, s *envelope.Scanner, odd bool) error {
	id, ok := s.Response()
	f, err := own, error(nil)
	switch {
	case !ok && s.Size > envelope.Max:
		err = errNoMessage
	case odd && id.IsValid():
		err = errOddEvent
	default:
		if f, err = t.state.admit(id, s.Size, s.Values); f == nil && errors.Is(err, ErrTooManyValues) {
			f = own
		}
	}
	if f != nil && err != nil {
		f.refuse(err) // the SDK does not return the error of the body
	}
	return err
}

// CloseIdleConnections supports [http.Client.CloseIdleConnections].
func (t *admissionTransport) CloseIdleConnections() { closeIdle(t.next) }

// admittedBody is a body that delivers the end of a message, without which the reader does
// not decode it, when the message is admitted. The reader bounds the size of a message.
type admittedBody struct {
	io.ReadCloser
	in     *bufio.Reader
	events bool // an event stream; otherwise the body is one message
	state  *connState
	own    *pendingRequest // the request of the stream; may be nil
	// tooLarge is the error for an event that exceeds its limit; nil: none does.
	tooLarge *outbound.TooLargeError
	admit    func(s *envelope.Scanner, odd bool) error
	held     atomic.Int64 // bytes of the message so far that state counts

	buf     []byte // to deliver, before err
	err     error
	message envelope.Scanner // the message so far; of an event, its data
	event   int64            // bytes of the event so far
	odd     bool             // the event is of another type than "message"
	inLine  bool             // the last part of an event stream did not end its line
	data    bool             // the line is data
}

// Read implements [io.Reader].
func (a *admittedBody) Read(p []byte) (int, error) {
	for len(a.buf) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		a.fill()
	}
	n := copy(p, a.buf)
	a.buf = a.buf[n:]
	return n, nil
}

// fill reads a part of the body, at most a line.
func (a *admittedBody) fill() {
	part, err := a.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		err = nil
	}
	a.buf = append(a.buf[:0], part...)
	counted, complete := part, false
	if a.events {
		counted, complete = a.line(part)
	}
	a.message.Add(counted)
	a.held.Add(int64(len(counted)))
	if all := a.state.arriving.Add(int64(len(counted))); all > a.state.maxArriving && err == nil {
		if a.buf, err = nil, errArriving; a.own != nil {
			a.own.refuse(err)
		}
	}
	if a.event += int64(len(part)); a.events && a.tooLarge != nil && a.event > a.tooLarge.Limit && err == nil {
		// The SDK would end the session, with its other requests.
		if a.buf, err = nil, error(a.tooLarge); a.own != nil {
			a.own.refuse(err)
		}
	}
	if !a.events && err == nil {
		_, err = a.in.Peek(1)
	}
	if a.err = err; err != nil || complete {
		a.arrived()
	}
	if complete || errors.Is(err, io.EOF) {
		a.event = 0
		if a.message.Size > 0 {
			if refused := a.admit(&a.message, a.odd); refused != nil {
				a.buf, a.err = nil, refused
			}
		}
		a.message, a.odd = envelope.Scanner{}, false
	}
}

// arrived ends the count of the message.
func (a *admittedBody) arrived() { a.state.arriving.Add(-a.held.Swap(0)) }

// Close implements [io.Closer].
func (a *admittedBody) Close() error {
	defer a.arrived()
	return a.ReadCloser.Close()
}

// line reads a part of a line of an event stream. It returns the data in it, and whether it
// completes an event.
func (a *admittedBody) line(part []byte) (data []byte, complete bool) {
	data = part
	if !a.inLine {
		complete = len(bytes.TrimRight(part, "\r\n")) == 0
		if kind, ok := bytes.CutPrefix(part, []byte("event:")); ok {
			kind = bytes.TrimSpace(kind)
			a.odd = len(kind) > 0 && string(kind) != "message"
		}
		data, a.data = bytes.CutPrefix(part, []byte("data:"))
	}
	a.inLine = !bytes.HasSuffix(part, []byte("\n"))
	if !a.data {
		return nil, complete
	}
	return data, complete
}
