package box

import (
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// fitOutput fits displayed text and standard output into the limit of one stream, since a model
// reads both. Displayed text, which the code chose to show, gets at least a quarter, and more
// if the output leaves room. A file in the box keeps each text that is cut. o describes the
// output that the agent kept. Call it once, before the documents are saved.
func (c *collector) fitOutput(o protocol.Output) {
	s := &c.stdout
	limit := s.maxHead + s.maxTail
	output, displayed := len(s.tail), 0
	for _, p := range s.pieces {
		output += len(p.raw)
		displayed += len(p.shown)
	}
	for _, text := range s.late {
		displayed += len(text)
	}
	if displayed == 0 || output+displayed <= limit+limit/16 { // a short value cuts nothing
		return
	}
	room := min(displayed, max(limit-output, limit/4))
	for i := range s.pieces {
		if p := &s.pieces[i]; p.shown != "" {
			p.shown = c.shorten(p.shown, &room)
		}
	}
	for i, text := range s.late {
		s.late[i] = c.shorten(text, &room)
	}
	displayed = min(displayed, max(limit-output, limit/4))
	if output <= limit-displayed {
		return
	}
	if o.Path == "" { // the agent has kept nothing
		c.addDocument(fmt.Sprintf("Standard output of %s is cut", plural.N(output, "byte")), ".txt", cleantext.Clean(string(s.output())))
	}
	s.shrink(limit - displayed)
}

// shorten returns displayed text within room, which it takes.
func (c *collector) shorten(text string, room *int) string {
	short := headTail(text, *room)
	if len(short) < len(text) && !slices.Contains(c.kept, strings.TrimSpace(text)) {
		c.addDocument(fmt.Sprintf("A displayed value of %s is cut", plural.N(len(text), "byte")), ".txt", text)
	}
	*room -= min(*room, len(short))
	return short
}

// output returns the output that is kept.
func (s *stream) output() (all []byte) {
	for _, p := range s.pieces {
		all = append(all, p.raw...)
	}
	return append(all, s.tail...)
}

// shrink keeps at most size bytes of the output: two thirds of its head, one third of its tail.
// The displayed texts stay, and those within what is dropped precede its mark.
func (s *stream) shrink(size int) {
	head, tail := size*2/3, size/3
	for i := range s.pieces {
		p := &s.pieces[i]
		n := min(len(p.raw), head)
		head -= n
		s.cut += int64(len(p.raw) - n)
		if i == len(s.pieces)-1 && len(s.tail) < tail { // the output goes on in it
			keep := min(len(p.raw)-n, tail-len(s.tail))
			s.tail = append(append([]byte(nil), p.raw[len(p.raw)-keep:]...), s.tail...)
			s.cut -= int64(keep)
		}
		p.raw = p.raw[:n]
	}
	if n := len(s.tail) - tail; n > 0 {
		s.cut += int64(n)
		s.tail = s.tail[n:]
	}
}
