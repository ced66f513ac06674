package stream

import (
	"bufio"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/mcpkit/internal/envelope"
)

// maxDropped bounds a message that is dropped, as a multiple of the largest message: other
// answers wait until it has passed.
const maxDropped = 16

// errTooLarge reports a line that exceeds the limit.
var errTooLarge = errors.New("the message is too large")

// over is a message that exceeds the limit, while it is read and dropped.
type over struct {
	scan     envelope.Scanner
	answered bool // the request that it answers has failed
	ended    bool // the line has ended
}

// newOver returns the message that begins with a line.
func newOver(begin []byte) *over {
	o := new(over)
	o.add(begin)
	return o
}

// add reads a part of the line, with its line break at the end if it has one.
func (o *over) add(part []byte) {
	if n := len(part); n > 0 && part[n-1] == '\n' {
		o.ended, part = true, part[:n-1]
	}
	o.scan.Add(part)
}

// drop reads on in the message that is too large. It returns a response with an error, once,
// for the request that the message answers; nil if it has none to return. An error ends the
// connection.
func (c *Conn) drop() (jsonrpc.Message, error) {
	for o := c.over; ; {
		if !o.answered {
			id := o.scan.Answers()
			if o.ended {
				id, _ = o.scan.Response()
			}
			if id.IsValid() {
				o.answered = true
				return &jsonrpc.Response{ID: id, Error: c.large}, nil
			}
		}
		if o.ended && o.answered {
			c.over = nil
			return nil, nil
		}
		if o.ended || o.scan.Foreign() || o.scan.Size > maxDropped*c.max {
			return nil, fmt.Errorf("read message: it is larger than %d bytes", c.max)
		}
		part, err := c.in.ReadSlice('\n')
		o.add(part)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
