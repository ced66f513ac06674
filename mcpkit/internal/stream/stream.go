// Package stream carries MCP messages over a stream of bytes, one message a line: the
// standard streams of a program, a Unix socket, or any other connection. It is the
// client's end, and tolerant: a line that is not a message, such as log output on
// standard output, is counted, traced and skipped.
//
// The answer to a request that is larger than the limit fails this request: it is read to
// its end and dropped. Any other message larger than the limit ends the connection, because
// nothing tells which request it belongs to.
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
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// MaxMessage is the default limit of a message in bytes.
const MaxMessage = 16 << 20

// writeGrace is the time for the rest of a message whose sender has given up.
const writeGrace = time.Second

// maxBatch bounds the messages of one line. Empty ones in a batch take 3 bytes each.
const maxBatch = 1000

// A Direction is the direction of a message.
type Direction string

// The directions.
const (
	Sent     Direction = "sent"
	Received Direction = "received"
	Noise    Direction = "noise" // received, but not a message
)

// Options configures a connection. The zero value is valid.
type Options struct {
	// MaxMessage bounds a line, in bytes without the line break; 0 means [MaxMessage].
	MaxMessage int
	// TooLarge is the error of a request whose answer is larger than MaxMessage; nil means
	// one that names the limit.
	TooLarge error
	// Trace, if not nil, is called with every line before it is processed. It must not
	// retain the bytes. Calls for one direction are sequential.
	Trace func(Direction, []byte)
}

// A Conn is an [mcp.Connection] over a stream. All methods may be called concurrently,
// but Read by one goroutine only.
type Conn struct {
	rwc   io.ReadWriteCloser
	in    *bufio.Reader
	max   int
	large error // of a request whose answer is too large
	over  *over // the message that is being dropped, or nil; used by Read only
	trace func(Direction, []byte)
	queue []jsonrpc.Message // the rest of a batch; used by Read only
	noise atomic.Int64      // lines that were not messages

	writing chan struct{} // holds a value while a message is written
	closing sync.Once
	closed  chan struct{}
	err     error // of Close; valid after closed
}

var _ mcp.Connection = (*Conn)(nil)

// New returns a connection over rwc, and closes rwc with it. Closing rwc must unblock
// its Read and Write.
func New(rwc io.ReadWriteCloser, opts Options) *Conn {
	if opts.MaxMessage <= 0 {
		opts.MaxMessage = MaxMessage
	}
	if opts.TooLarge == nil {
		opts.TooLarge = fmt.Errorf("the answer is larger than %d bytes", opts.MaxMessage)
	}
	if opts.Trace == nil {
		opts.Trace = func(Direction, []byte) {}
	}
	return &Conn{rwc: rwc, in: bufio.NewReaderSize(rwc, 64<<10), max: opts.MaxMessage, large: opts.TooLarge, trace: opts.Trace, writing: make(chan struct{}, 1), closed: make(chan struct{})}
}

// SessionID implements [mcp.Connection]. Sessions on streams have no id.
func (c *Conn) SessionID() string { return "" }

// Read returns the next message. It returns [io.EOF] after Close and at the end of
// the stream.
func (c *Conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	for len(c.queue) == 0 {
		if c.over != nil {
			answer, err := c.drop()
			if answer == nil && err == nil {
				continue
			}
			return answer, c.readError(err)
		}
		line, err := c.line()
		if errors.Is(err, errTooLarge) {
			c.over = newOver(line)
			continue
		}
		if len(bytes.TrimSpace(line)) > 0 {
			c.queue = c.messages(line)
		}
		if err != nil && len(c.queue) == 0 {
			return nil, c.readError(err)
		}
	}
	next := c.queue[0]
	c.queue = c.queue[1:]
	return next, nil
}

// readError returns what Read returns for an error of the stream.
func (c *Conn) readError(err error) error {
	select {
	case <-c.closed:
		if err != nil {
			return io.EOF
		}
	default:
	}
	return err
}

// line reads a line and returns it without the line break; errTooLarge with the beginning of
// one that exceeds the limit, of which the rest is not read.
func (c *Conn) line() ([]byte, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > c.max+1 {
			return line, errTooLarge
		}
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// messages decodes a line, which may contain one message, a batch, or several messages.
func (c *Conn) messages(line []byte) (all []jsonrpc.Message) {
	dec := json.NewDecoder(bytes.NewReader(line))
	for {
		from := dec.InputOffset()
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			if rest := bytes.TrimSpace(line[from:]); len(rest) > 0 {
				c.skip(rest)
			}
			return all
		}
		for _, element := range split(value) {
			m, err := jsonrpc.DecodeMessage(element)
			if err != nil || !isUsable(m) {
				c.skip(element)
				continue
			}
			c.trace(Received, element)
			all = append(all, m)
		}
	}
}

// split returns the messages of a batch. Any other value, and a batch that is too
// large, is returned as it is.
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

// skip counts and traces input that is not a message.
func (c *Conn) skip(b []byte) {
	c.noise.Add(1)
	c.trace(Noise, b)
}

// isUsable reports whether a message can be delivered. A response without an id belongs
// to no request.
func isUsable(m jsonrpc.Message) bool {
	r, ok := m.(*jsonrpc.Response)
	return !ok || r.ID.IsValid()
}

// Write writes a message. If ctx ends during the write and the peer does not read the rest
// within a second, the connection is closed, because part of the message may have been
// written. If ctx ends before, during the write of another message, only this call fails.
// After Close it writes nothing and returns [mcp.ErrConnectionClosed].
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
	written := make(chan struct{})
	defer close(written)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-written:
		case <-time.After(writeGrace):
			c.Close()
		}
	})()
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

// Close closes the stream. Further calls return the same error.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		close(c.closed)
		c.err = c.rwc.Close()
	})
	return c.err
}
