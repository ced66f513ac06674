package stdio

import (
	"bufio"
	"bytes"
	"errors"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// A line is a line of the input.
type line struct {
	data []byte // without the line's end
	long bool   // data is only the beginning
	err  error
}

// readLines reads lines into c.lines. A read of standard input cannot be interrupted, so
// this goroutine may outlive the session, with nothing but its buffer.
func (c *conn) readLines() {
	r := bufio.NewReaderSize(c.t.In, 64<<10)
	for {
		l := readLine(r, c.t.MaxLine)
		if l.err != nil {
			close(c.inputEnded)
		}
		select {
		case c.lines <- l:
		case <-c.closed:
			return
		}
		if l.err != nil {
			return
		}
	}
}

// readLine reads up to the next newline or the end of r. A last line without
// a newline counts.
func readLine(r *bufio.Reader, limit int) line {
	var l line
	for {
		part, err := r.ReadSlice('\n')
		switch {
		case l.long:
		case len(l.data)+len(part) > limit+2: // the newline, perhaps \r\n, is free
			l.long = true
			l.data = append(l.data, part...)
			l.data = append([]byte(nil), l.data[:min(len(l.data), envelope.IDPrefix)]...)
		default:
			l.data = append(l.data, part...)
		}
		if err == nil {
			break
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(l.data) == 0 {
			l.err = err
		}
		break
	}
	l.data = bytes.TrimRight(l.data, "\r\n")
	return l
}
