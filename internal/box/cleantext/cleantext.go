// Package cleantext makes text from a guest safe for a model, a log or a terminal.
package cleantext

import (
	"bytes"
	"unicode/utf8"
)

// maxSequence bounds a control sequence, in bytes: an unterminated one must not swallow
// the output behind it.
const maxSequence = 64 << 10

// A Cleaner makes text from a guest safe for a model, a log or a terminal: valid
// UTF-8 without terminal control sequences (CSI, OSC, DCS, APC, PM, SOS and
// two-byte escapes, in 7-bit and C1 form), control characters other than newline and
// tab, bidirectional controls and invisible tag characters. Text after a carriage
// return replaces the line before it, which leaves the last state of a progress bar.
//
// The output does not depend on how the input is split into writes.
type Cleaner struct {
	// AppendOnly is for output that was sent already: a carriage return, alone or before a
	// newline, ends a line.
	AppendOnly bool

	state   cleanState
	length  int  // of the sequence so far
	cr      bool // since the last visible character
	partial [utf8.UTFMax]byte
	n       int // bytes in partial: the beginning of a rune
}

type cleanState uint8

const (
	ground    cleanState = iota
	escape               // after ESC
	inter                // after ESC and an intermediate byte
	csi                  // in a control sequence
	osc                  // in an operating system command
	str                  // in a DCS, APC, PM or SOS string
	strEscape            // after ESC in osc or str
)

// Clean returns a whole text, cleaned.
func Clean(s string) string {
	if isClean(s) {
		return s
	}
	var c Cleaner
	return string(c.Flush(c.Append(make([]byte, 0, len(s)), []byte(s))))
}

func isClean(s string) bool {
	for i := range len(s) {
		if b := s[i]; b >= 0x7f || b < ' ' && b != '\n' && b != '\t' {
			return false
		}
	}
	return true
}

// Append appends the cleaned p to dst, which holds the output of earlier writes unless
// AppendOnly is set.
func (c *Cleaner) Append(dst, p []byte) []byte {
	for len(p) > 0 {
		if c.n == 0 && c.state == ground && !c.cr {
			i := 0
			for i < len(p) && (p[i] >= ' ' && p[i] < 0x7f || p[i] == '\n' || p[i] == '\t') {
				i++
			}
			dst = append(dst, p[:i]...)
			if p = p[i:]; len(p) == 0 {
				break
			}
		}
		if c.n == 0 && p[0] < utf8.RuneSelf {
			dst = c.rune(dst, rune(p[0]))
			p = p[1:]
			continue
		}
		c.partial[c.n] = p[0]
		c.n++
		p = p[1:]
		dst = c.drain(dst, false)
	}
	return dst
}

// Flush ends the text: it drops an incomplete control sequence, and replaces an
// incomplete rune by U+FFFD.
func (c *Cleaner) Flush(dst []byte) []byte {
	dst = c.drain(dst, true)
	*c = Cleaner{AppendOnly: c.AppendOnly}
	return dst
}

// drain decodes the complete runes in partial.
func (c *Cleaner) drain(dst []byte, end bool) []byte {
	for c.n > 0 && (end || utf8.FullRune(c.partial[:c.n])) {
		r, size := utf8.DecodeRune(c.partial[:c.n])
		copy(c.partial[:], c.partial[size:c.n])
		c.n -= size
		dst = c.rune(dst, r)
	}
	return dst
}

func (c *Cleaner) rune(dst []byte, r rune) []byte {
	if c.state != ground {
		if c.length++; c.length > maxSequence {
			c.state = ground
		} else if !c.sequence(r) {
			return dst
		}
	}
	switch {
	case r == '\r':
		again := c.cr
		c.cr = true
		if c.AppendOnly && !again {
			return append(dst, '\n')
		}
		return dst
	case r == '\n':
		ended := c.cr && c.AppendOnly
		c.cr = false
		if ended {
			return dst
		}
		return append(dst, '\n')
	case r == '\t':
	case c.begins(r), r < ' ', r == 0x7f, r >= 0x80 && r < 0xa0, invisible(r):
		return dst
	}
	if c.cr {
		c.cr = false
		if !c.AppendOnly {
			// Linear: every byte that this reads is dropped.
			dst = dst[:bytes.LastIndexByte(dst, '\n')+1]
		}
	}
	return utf8.AppendRune(dst, r)
}

// begins reports whether r starts a control sequence.
func (c *Cleaner) begins(r rune) bool {
	switch r {
	case 0x1b:
		c.state = escape
	case 0x9b:
		c.state = csi
	case 0x9d:
		c.state = osc
	case 0x90, 0x98, 0x9e, 0x9f:
		c.state = str
	default:
		return false
	}
	c.length = 0
	return true
}

// sequence consumes r inside a control sequence. It reports whether the sequence has
// ended and r is text.
func (c *Cleaner) sequence(r rune) bool {
	if r == 0x18 || r == 0x1a { // CAN and SUB abort
		c.state = ground
		return false
	}
	switch c.state {
	case escape, inter, strEscape:
		was := c.state
		c.state = ground
		switch {
		case was == strEscape && r == '\\':
		case was != inter && r == '[':
			c.state = csi
		case was != inter && r == ']':
			c.state = osc
		case was != inter && (r == 'P' || r == 'X' || r == '^' || r == '_'):
			c.state = str
		case r >= 0x20 && r <= 0x2f:
			c.state = inter
		case r >= 0x30 && r <= 0x7e:
		default:
			return true
		}
	case csi:
		switch {
		case r >= 0x20 && r <= 0x3f:
		case r >= 0x40 && r <= 0x7e:
			c.state = ground
		default:
			c.state = ground
			return true
		}
	case osc, str:
		switch {
		case r == 0x07, r == 0x9c:
			c.state = ground
		case r == 0x1b:
			c.state = strEscape
		case r == '\n' && c.state == osc:
			c.state = ground
			return true
		}
	}
	return false
}

// invisible reports whether r could hide or reorder what a reader sees.
func invisible(r rune) bool {
	return r >= 0x202a && r <= 0x202e || // embeddings and overrides
		r >= 0x2066 && r <= 0x2069 || // isolates
		r == 0x200e || r == 0x200f || r == 0x061c || // marks
		r >= 0xe0000 && r <= 0xe007f // tags
}
