// Package stream carries MCP messages over a stream of bytes, a message a line: the
// standard streams of a program, a Unix socket, whatever a caller has connected. It
// is the client's end and forgives what servers do: a line that is no message, such
// as a log line that went to standard output, is counted, told and passed over.
//
// What it does not forgive is what it would have to guess at: a message larger than
// the limit ends the connection, because nobody can tell whose answer it was.
package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// MaxMessage is the limit of a message in bytes if [Options] does not say.
const MaxMessage = 16 << 20

// maxBatch bounds the messages of one line: a batch of empty ones is 3 bytes each.
const maxBatch = 1000

// A Direction is whose message it was.
type Direction string

// The directions.
const (
	Sent     Direction = "sent"
	Received Direction = "received"
	Noise    Direction = "noise" // received, and no message
)

// Options says how to treat a stream. The zero value is good.
type Options struct {
	// MaxMessage bounds a line, in bytes without its end; 0 means [MaxMessage].
	MaxMessage int
	// Trace is told of every line, before it is acted on; may be nil. It must not
	// keep the bytes. Calls of one direction come one after another.
	Trace func(Direction, []byte)
}

// A Conn is an [mcp.Connection] over a stream. As its contract asks, all methods
// may be called concurrently, but Read by one goroutine only.
type Conn struct {
	rwc   io.ReadWriteCloser
	in    *bufio.Reader
	max   int
	trace func(Direction, []byte)
	queue []jsonrpc.Message // of a batch, Read's
	noise atomic.Int64

	writing chan struct{} // has a value while a message is written
	closing sync.Once
	closed  chan struct{}
	err     error // of Close; valid after closed
}

var _ mcp.Connection = (*Conn)(nil)

// New returns a connection over rwc, which it closes. A Close of rwc must make its
// Read and Write return.
func New(rwc io.ReadWriteCloser, opts Options) *Conn {
	if opts.MaxMessage <= 0 {
		opts.MaxMessage = MaxMessage
	}
	if opts.Trace == nil {
		opts.Trace = func(Direction, []byte) {}
	}
	return &Conn{rwc: rwc, in: bufio.NewReaderSize(rwc, 64<<10), max: opts.MaxMessage, trace: opts.Trace, writing: make(chan struct{}, 1), closed: make(chan struct{})}
}

// SessionID implements [mcp.Connection]. A stream is a session and has no name.
func (c *Conn) SessionID() string { return "" }

// NoiseLines is how many lines were no messages.
func (c *Conn) NoiseLines() int64 { return c.noise.Load() }

// Read returns the next message. It returns [io.EOF] after Close and at the end of
// the stream.
func (c *Conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	for len(c.queue) == 0 {
		line, err := c.line()
		if len(bytes.TrimSpace(line)) > 0 {
			c.queue = c.messages(line)
		}
		if err != nil && len(c.queue) == 0 {
			select {
			case <-c.closed:
				return nil, io.EOF
			default:
			}
			return nil, err
		}
	}
	next := c.queue[0]
	c.queue = c.queue[1:]
	return next, nil
}

// line reads up to the end of a line, which it leaves out.
func (c *Conn) line() ([]byte, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > c.max+1 {
			return nil, fmt.Errorf("read message: it is larger than %d bytes", c.max)
		}
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// messages decodes a line: a message, a batch, or several that a server has not
// kept apart.
func (c *Conn) messages(line []byte) (all []jsonrpc.Message) {
	dec := json.NewDecoder(bytes.NewReader(line))
	for {
		from := dec.InputOffset()
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			if rest := bytes.TrimSpace(line[from:]); len(rest) > 0 {
				c.pass(rest)
			}
			return all
		}
		for _, element := range split(value) {
			m, err := jsonrpc.DecodeMessage(element)
			if err != nil || !meant(m) {
				c.pass(element)
				continue
			}
			c.trace(Received, element)
			all = append(all, m)
		}
	}
}

// split returns the messages of a batch. Another value, and a batch that is too
// large, is one.
func split(value json.RawMessage) (elements []json.RawMessage) {
	dec := json.NewDecoder(bytes.NewReader(value))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return []json.RawMessage{value}
	}
	for dec.More() {
		var element json.RawMessage
		if err := dec.Decode(&element); err != nil || len(elements) == maxBatch {
			return []json.RawMessage{value}
		}
		elements = append(elements, element)
	}
	return elements
}

// pass passes over what is no message.
func (c *Conn) pass(b []byte) {
	c.noise.Add(1)
	c.trace(Noise, b)
}

// meant reports whether a message can be one. A response without an id answers
// nothing.
func meant(m jsonrpc.Message) bool {
	r, ok := m.(*jsonrpc.Response)
	return !ok || r.ID.IsValid()
}

// Write writes a message. A context that ends while the stream does not take it
// closes the connection: half a message is there already. While it waits for the
// message of another to be taken it only gives up. After Close it returns
// [mcp.ErrConnectionClosed], and nothing was written.
func (c *Conn) Write(ctx context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	if len(b) > c.max {
		return fmt.Errorf("write message: it has %d bytes, more than %d", len(b), c.max)
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	select {
	case <-c.closed:
		return fmt.Errorf("write message: %w", mcp.ErrConnectionClosed)
	default:
	}
	c.trace(Sent, b)
	if _, err := c.rwc.Write(append(b, '\n')); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("write message: %w", err)
	}
	return nil
}

// Close closes the stream. It may be called again, and returns the same.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		close(c.closed)
		c.err = c.rwc.Close()
	})
	return c.err
}

// A Transport connects over a stream that exists already.
type Transport struct {
	Stream  io.ReadWriteCloser // closed with the connection
	Options Options
}

// Connect implements [mcp.Transport]. It is called once.
func (t *Transport) Connect(context.Context) (mcp.Connection, error) {
	return New(t.Stream, t.Options), nil
}
