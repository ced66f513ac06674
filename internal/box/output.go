package box

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// collector takes in the output of a call and keeps a bounded part of it. It
// trusts no bound of the agent's. It is for one goroutine.
type collector struct {
	maxImages, maxImageSize int

	stdout        stream
	stderr        stream
	images        []Image
	unshown       []Image // beyond maxImages, for files in the box
	display       int     // bytes that displayed text may still take
	documents     []document
	kept          []string      // displayed texts that are cut, and whole in a document
	documentBytes int           // of documents and unshown
	skipped       [numSkips]int // displays left out, by reason
	cut           bool          // the kernel cut the text of a display
	resultCut     bool          // it cut the value of the last expression
	progress      func(Chunk)   // may be nil
	toolLanguage  string        // see outcome
	begun         time.Time     // when it was made
}

func newCollector(c *Config, progress func(Chunk)) *collector {
	return &collector{
		begun: time.Now(), maxImages: c.MaxImages, maxImageSize: c.MaxImageSize, display: c.OutputHead, progress: progress,
		stdout: stream{name: Stdout, maxHead: c.OutputHead, maxTail: c.OutputTail, live: cleantext.Cleaner{AppendOnly: true}},
		stderr: stream{name: Stderr, maxHead: c.OutputHead, maxTail: c.OutputTail, live: cleantext.Cleaner{AppendOnly: true}},
	}
}

// Output takes bytes of stdout or stderr.
func (c *collector) Output(ch protocol.Channel, p []byte) {
	s := &c.stdout
	if ch == protocol.Stderr {
		s = &c.stderr
	}
	s.write(p)
	if c.progress != nil {
		c.tell(s.name, s.live.Append(nil, p))
	}
}

// Display takes something shown: images and documents apart, text into stdout.
func (c *collector) Display(d protocol.Display) {
	shown := c.image(d)
	text := plain(d)
	c.cut = c.cut || d.Cut && !d.Result
	c.resultCut = c.resultCut || d.Cut && d.Result
	if !shown {
		c.keepDocument(d, text)
	}
	if text == "" || shown && !d.Result {
		return
	}
	whole := cleantext.Clean(text)
	if text = headTail(whole, c.display); len(text) < len(whole) {
		c.addDocument(fmt.Sprintf("A displayed value of %s is cut", plural.N(len(whole), "byte")), ".txt", whole)
		c.kept = append(c.kept, strings.TrimSpace(text))
	}
	if text == "" {
		return
	}
	c.display -= min(c.display, len(text))
	line := c.stdout.show(text)
	if c.progress != nil {
		c.tell(Stdout, []byte(line))
	}
}

// attach adds the output to err if its box is gone, so that it is not lost with the result.
func (c *collector) attach(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && (e.Code == CodeGone || e.Code == CodeCancelled) {
		p := &Partial{Duration: time.Since(c.begun)}
		p.Stdout, _ = c.stdout.text(protocol.Output{}, nil)
		p.Stderr, _ = c.stderr.text(protocol.Output{}, nil)
		e.Partial = p
	}
	return err
}

func (c *collector) tell(name Stream, text []byte) {
	if len(text) > 0 {
		c.progress(Chunk{Stream: name, Text: string(text)})
	}
}

// stream keeps the head and the tail of one output, with the texts displayed
// within it.
type stream struct {
	name             Stream
	maxHead, maxTail int

	pieces []piece // of the head
	head   int     // bytes of output in pieces
	tail   []byte
	late   []string          // displayed after the head was full
	seen   int64             // bytes of output
	cut    int64             // of them dropped here
	line   bool              // the output ends within a line
	live   cleantext.Cleaner // of the progress while the call runs
}

// piece is output or, if shown is not empty, displayed text.
type piece struct {
	raw   []byte
	shown string
}

func (s *stream) write(p []byte) {
	if len(p) == 0 {
		return
	}
	s.seen += int64(len(p))
	s.line = p[len(p)-1] != '\n'
	if n := min(len(p), s.maxHead-s.head); n > 0 {
		if i := len(s.pieces) - 1; i >= 0 && s.pieces[i].shown == "" {
			s.pieces[i].raw = append(s.pieces[i].raw, p[:n]...)
		} else {
			s.pieces = append(s.pieces, piece{raw: append([]byte(nil), p[:n]...)})
		}
		s.head += n
		p = p[n:]
	}
	if n := len(p) - s.maxTail; n > 0 {
		s.cut += int64(n)
		p = p[n:]
	}
	if n := len(s.tail) + len(p) - s.maxTail; n > 0 {
		s.cut += int64(n)
		s.tail = append(s.tail[:0], s.tail[n:]...)
	}
	s.tail = append(s.tail, p...)
}

// show puts text on lines of its own and returns what it adds.
func (s *stream) show(text string) string {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	added := text
	if s.line {
		added = "\n" + text
	}
	s.line = false
	if s.head < s.maxHead {
		s.pieces = append(s.pieces, piece{shown: added})
	} else {
		s.late = append(s.late, text)
	}
	return added
}

// text returns the output cleaned. o is what the agent says of it; if anything
// is left out, the text has a mark in its place and notes a sentence.
func (s *stream) text(o protocol.Output, notes []string) (string, []string) {
	omitted := max(o.Omitted, 0) + s.cut
	var c cleantext.Cleaner
	var b []byte
	for _, p := range s.pieces {
		b = append(c.Append(b, p.raw), p.shown...)
	}
	if omitted > 0 {
		where := ""
		if path := strings.ReplaceAll(clip(o.Path, 256), "\n", ""); path != "" {
			where = "; whole output in " + path
		}
		total := max(o.Bytes, s.seen)
		b = breakLine(c.Flush(b))
		b = fmt.Appendf(b, "[... %d of %d bytes left out here%s ...]\n", omitted, total, where)
		notes = append(notes, fmt.Sprintf("The middle of %s is left out: %d of %s%s.", s.name, omitted, plural.N(total, "byte"), where))
		tail := s.tail
		for i := 0; i < utf8.UTFMax && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
			tail = tail[1:]
		}
		b = c.Append(b, tail)
	} else {
		b = c.Append(b, s.tail)
	}
	b = c.Flush(b)
	for _, t := range s.late {
		b = append(breakLine(b), t...)
	}
	return string(b), notes
}

// breakLine ends the line that b has begun.
func breakLine(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return b
}

// joinLines puts b on lines of its own behind a.
func joinLines(a, b string) string {
	if a != "" && b != "" && !strings.HasSuffix(a, "\n") {
		a += "\n"
	}
	return a + b
}

// headTail keeps about max bytes of s, three quarters of its head and a quarter
// of its tail. With little room it returns nothing.
func headTail(s string, max int) string {
	if len(s) <= max {
		return s
	}
	const mark = 64 // more than the mark takes
	if max < 4*mark {
		return ""
	}
	max -= mark
	h, t := max*3/4, len(s)-max/4
	for h > 0 && !utf8.RuneStart(s[h]) {
		h--
	}
	for t < len(s) && !utf8.RuneStart(s[t]) {
		t++
	}
	return fmt.Sprintf("%s\n[... %d bytes left out here ...]\n%s", s[:h], t-h, s[t:])
}
