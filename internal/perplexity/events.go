package perplexity

import (
	"bufio"
	"bytes"
	"io"
)

// An event is one event of an event stream.
type event struct {
	name string // of the field event; may be empty
	data []byte // valid until the next event
}

// events decodes an event stream (text/event-stream) in time and memory that are bounded
// by its limits.
type events struct {
	r       *bufio.Reader
	left    int // bytes of the stream that may follow
	limit   int // bytes of one event
	line    []byte
	data    []byte
	started bool
	afterCR bool // the last byte was a carriage return, which may begin a CRLF
}

func newEvents(r io.Reader, limit, total int) *events {
	return &events{r: bufio.NewReader(r), left: total, limit: limit}
}

// next returns the next event with data. It returns io.EOF at the end of the stream, and
// an *Error beyond a limit. An event that the end of the stream completes counts: some
// servers leave out the last empty line.
func (e *events) next() (event, error) {
	var ev event
	e.data = e.data[:0]
	found := false
	for {
		line, err := e.readLine()
		switch {
		case err == io.EOF && found, err == nil && len(line) == 0 && found:
			ev.data = bytes.TrimSuffix(e.data, []byte("\n"))
			return ev, nil
		case err != nil:
			return event{}, err
		case len(line) == 0:
			ev.name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) { // empty in a comment
		case "event":
			ev.name = string(value)
		case "data":
			if len(e.data)+len(value) >= e.limit {
				return event{}, tooLarge("event", e.limit)
			}
			e.data = append(append(e.data, value...), '\n')
			found = true
		}
	}
}

// readLine returns a line without its end, which is a line feed, a carriage return or
// both. It is valid until the next call.
func (e *events) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		b, err := e.r.ReadByte()
		if err != nil {
			if err == io.EOF && len(e.line) > 0 {
				return e.text(), nil
			}
			return nil, err
		}
		if e.left--; e.left < 0 {
			return nil, tooLarge("stream", maxStream)
		}
		if b == '\n' && e.afterCR {
			e.afterCR = false
			continue
		}
		e.afterCR = b == '\r'
		if b == '\n' || b == '\r' {
			return e.text(), nil
		}
		if len(e.line) >= e.limit {
			return nil, tooLarge("event", e.limit)
		}
		e.line = append(e.line, b)
	}
}

// text returns the line, the first one without a byte order mark.
func (e *events) text() []byte {
	if e.started {
		return e.line
	}
	e.started = true
	return bytes.TrimPrefix(e.line, []byte("\xef\xbb\xbf"))
}
