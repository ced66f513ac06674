package agent

import (
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxKeep bounds the head and tail that a caller may request of one stream.
	maxKeep = 1 << 20
	// spoolChunk is the size of writes to the file.
	spoolChunk = 64 << 10
)

// capture processes one stream of output: it sends the head at once and the tail at the
// end; if they are not everything, all of it goes to a file. It is for one goroutine at
// a time.
type capture struct {
	send  func(p []byte) error // to the host; blocks
	spool func() *spoolFile    // opens the file; nil on failure

	head, tail int
	total      int64
	err        error // of send; then output is discarded

	first []byte // the head, until it is spooled
	// kept is output after the head that is not written yet: the tail, and up to
	// spoolChunk bytes before it.
	kept    []byte
	file    *spoolFile
	omitted int64
}

func newCapture(c protocol.Capture, spool func() *spoolFile, send func([]byte) error) *capture {
	return &capture{
		send: send, spool: spool,
		head: min(max(c.Head, 0), maxKeep), tail: min(max(c.Tail, 0), maxKeep),
	}
}

// write adds output. It blocks while the host does not accept the head.
func (c *capture) write(p []byte) {
	before := c.total
	c.total += int64(len(p))
	if c.head == 0 && c.tail == 0 {
		c.pass(p)
		return
	}
	if left := int64(c.head) - before; left > 0 {
		n := min(int64(len(p)), left)
		c.pass(p[:n])
		c.first = append(c.first, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := min(len(p), c.tail+spoolChunk-len(c.kept))
		c.kept = append(c.kept, p[:n]...)
		p = p[n:]
		if len(c.kept) == c.tail+spoolChunk {
			c.spill()
		}
	}
}

func (c *capture) pass(p []byte) {
	if c.err == nil && len(p) > 0 {
		c.err = c.send(p)
	}
}

// spill writes everything but the tail to the file.
func (c *capture) spill() {
	n := len(c.kept) - c.tail
	if c.omitted == 0 {
		c.file = c.spool()
		c.file.write(c.first)
		c.first = nil
	}
	c.file.write(c.kept[:n])
	c.omitted += int64(n)
	c.kept = c.kept[:copy(c.kept, c.kept[n:])]
}

// finish sends the tail and returns what happened to the stream.
func (c *capture) finish() protocol.Output {
	if len(c.kept) > c.tail {
		c.spill()
	}
	c.pass(c.kept)
	out := protocol.Output{Bytes: c.total, Omitted: c.omitted}
	if c.file != nil {
		c.file.write(c.kept)
		out.Path = c.file.close()
	}
	return out
}
