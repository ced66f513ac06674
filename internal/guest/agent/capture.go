package agent

import (
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxKeep bounds what a caller may ask to be kept of one stream.
	maxKeep = 1 << 20
	// spoolChunk is what goes to the file in one write.
	spoolChunk = 64 << 10
)

// capture takes one stream of output: the head goes on at once, the tail at the
// end, and once they are not the whole, the whole goes to a file. It is for one
// goroutine at a time.
type capture struct {
	send  func(p []byte) error // towards the host; blocks
	spool func() *spoolFile    // opens the file, nil if that fails

	head, tail int
	total      int64
	err        error // of send; the output is dropped from then on

	first []byte // the head, until it is spooled
	// kept is what came after the head and has gone nowhere yet: the tail and at
	// most spoolChunk bytes before it.
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

// write takes more output. It blocks as long as the host does not take the head.
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

// spill moves all but the tail to the file.
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

// finish sends the tail and says what became of the stream.
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
