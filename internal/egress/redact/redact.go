// Package redact masks secret values in streams of bytes: as they are, with the escapes of URLs,
// JSON and HTML, in hexadecimal and base64, and with their ASCII letters in another case.
//
// A mask is as long as what it replaces, so that lengths, offsets and frames around it
// stay right. Time and memory are linear in the length of the data and the values.
//
// A program may have text of its own masked, and must not learn from it how far the text agrees
// with a value: it could guess the value byte by byte. So a beginning is masked only if it is
// nearly the whole value, and then the rest, whatever it is; a stream delays all bytes alike; and
// reading a byte takes the same time whether or not it continues a value. A program that guesses
// nearly the whole value at once learns that it is right, so values have to be random.
package redact

import (
	"fmt"
	"math/bits"
	"sync"
)

const (
	// MinValue and MaxValue bound the length of a value in bytes. A shorter value would
	// match ordinary text.
	MinValue = 8
	MaxValue = 4 << 10
	// MaxValues bounds the values of a set.
	MaxValues = 64
	// maxUnchecked is how many bytes at the end of a value, at most half of it, are masked
	// whatever they are, and minNeeded is how many there are before them. A program may know
	// the first ones.
	maxUnchecked = 8
	minNeeded    = 16
	// encodedEscape is the length of the escapes of characters of base64 on average, many times.
	encodedEscape = 2
)

// label begins a mask that has room for it.
const label = "gbx-redacted"

// Set finds all forms of some values. It is immutable: its methods may be called concurrently.
type Set struct {
	texts, encodings *automaton
	hold             int // bytes that a stream holds back; 0: the set is empty
	streams          sync.Pool
}

// New returns the set of the values. An empty set masks nothing. The error names the
// bound that a value or their number violates, but no value.
func New(values ...string) (*Set, error) {
	if len(values) > MaxValues {
		return nil, fmt.Errorf("redact %d values: more than %d", len(values), MaxValues)
	}
	var inTexts, encoded []beginning
	for _, v := range values {
		if len(v) < MinValue || len(v) > MaxValue {
			return nil, fmt.Errorf("redact a value of %d bytes: a value has between %d and %d", len(v), MinValue, MaxValue)
		}
		inTexts, encoded = append(inTexts, texts(v)...), append(encoded, encodings(v)...)
	}
	s := &Set{texts: newAutomaton(&fold, inTexts), encodings: newAutomaton(&foldEncoded, encoded)}
	if len(values) > 0 {
		s.hold = max(s.texts.longest*maxUnit, s.encodings.longest*encodedEscape) + maxUnit
	}
	s.streams.New = func() any { return s.Stream() }
	return s, nil
}

// String returns text with all values masked. A beginning of a value at the end of text
// is masked, too, if few of its bytes are missing: they may have been cut off.
func (s *Set) String(text string) string {
	if len(text) < MinValue || s.hold == 0 {
		return text
	}
	st := s.streams.Get().(*Stream)
	defer s.streams.Put(st)
	st.reset()
	return string(st.Yield(st.Append(make([]byte, 0, len(text)), []byte(text))))
}

// InName reports whether name, such as that of a header, contains a value.
func (s *Set) InName(name string) bool { return s.String(name) != name }

// Stream returns a stream that has read nothing yet.
func (s *Set) Stream() *Stream {
	st := &Stream{set: s}
	for i := range st.readers {
		st.readers[i] = reader{kinds: escapes(i), texts: track{a: s.texts}, encodings: track{a: s.encodings}}
	}
	st.readers[0].allocate()
	st.reset()
	return st
}

// Stream masks the values in a sequence of bytes that arrives in pieces. The pieces do not
// change its output, except for calls of Yield in between. Its methods must not be called
// concurrently.
//
// A text may have escapes of any kind, and what looks like an escape may be none: the text before
// a value could end with the beginning of one. So each combination of kinds has a reader.
type Stream struct {
	set     *Set
	readers [1 << 3]reader // by escapes
	awake   int            // number of readers that are

	text   []byte // what is held back, after passed
	masked []byte // text with its masks
	passed int    // bytes at the beginning of text that were passed on: they may begin an escape
	off    int64  // of text in the whole

	from, to int64 // the last mask
	labelled bool  // it begins with the label
	matches  int64
}

// A reader reads a text with escapes of some kinds.
type reader struct {
	kinds escapes
	// awake is false if no escape of one of the kinds has been there for so long that it matters
	// no more. Until the next one, the reader for the other kinds reads the same.
	awake            bool
	seen             [3]int // bytes since the last escape of each kind
	next             int    // the first byte of Stream.text that has not been read
	unit             unit
	texts, encodings track
	lineEnd          bool  // the last units were ends of lines, and spaces
	feeds            int   // of these, the line feeds
	rest             int32 // units that will be masked
}

// never is the number of bytes since an escape that has not been.
const never = 1 << 30

// reset makes st a stream that has read nothing yet.
func (st *Stream) reset() {
	for i := range st.readers {
		r := &st.readers[i]
		r.texts.state, r.texts.n, r.encodings.state, r.encodings.n = 0, 0, 0, 0
		*r = reader{kinds: r.kinds, seen: [3]int{never, never, never}, texts: r.texts, encodings: r.encodings}
	}
	st.readers[0].awake = true
	*st = Stream{set: st.set, readers: st.readers, awake: 1, text: st.text[:0], masked: st.masked[:0]}
}

// allocate makes room for the offsets that the tracks of r remember.
func (r *reader) allocate() { r.texts.allocate(); r.encodings.allocate() }

// follow makes r read on from where other is.
func (r *reader) follow(other *reader) {
	r.allocate()
	r.awake, r.next, r.rest, r.lineEnd, r.feeds, r.seen = true, other.next, other.rest, other.lineEnd, other.feeds, other.seen
	r.texts.follow(&other.texts)
	r.encodings.follow(&other.encodings)
}

// Append appends to dst the bytes that no longer depend on later ones, and returns dst.
// It holds back the end of the data: how much does not depend on the data. It does not keep p.
func (st *Stream) Append(dst, p []byte) []byte {
	if st.set.hold == 0 {
		return append(dst, p...)
	}
	st.text, st.masked = append(st.text, p...), append(st.masked, p...)
	st.read(false)
	if n := len(st.text) - st.set.hold; n > st.passed {
		dst = append(dst, st.masked[st.passed:n]...)
		st.drop(n)
	}
	return dst
}

// Holds reports whether the stream holds bytes back.
func (st *Stream) Holds() bool { return len(st.text) > st.passed }

// Yield appends to dst what the stream holds back, and returns dst. It is for the end of
// the data, and for that of a part in which values end. The stream masks later bytes that complete a value.
func (st *Stream) Yield(dst []byte) []byte {
	if !st.Holds() {
		return dst
	}
	// Bytes that may begin an escape are read as they are, and again with those that follow.
	before, awake := st.readers, st.awake
	st.read(true)
	st.readers, st.awake = before, awake
	dst = append(dst, st.masked[st.passed:]...)
	st.passed = len(st.text)
	unread := st.passed
	for i := range st.readers {
		if st.readers[i].awake {
			unread = min(unread, st.readers[i].next)
		}
	}
	st.drop(unread)
	return dst
}

// NextText begins another text: no value continues in it.
func (st *Stream) NextText() {
	matches := st.matches
	st.reset()
	st.matches = matches
}

// drop removes the first n bytes of text, which were read and passed on.
func (st *Stream) drop(n int) {
	st.text, st.masked = append(st.text[:0], st.text[n:]...), append(st.masked[:0], st.masked[n:]...)
	st.off += int64(n)
	for i := range st.readers {
		st.readers[i].next -= n
	}
	st.passed = max(st.passed-n, 0)
}

// read reads and masks the text: all of it, or as far as it does not depend on what follows. No reader
// is far ahead of the others, so that matches come in the order of their ends.
func (st *Stream) read(all bool) {
	raw := &st.readers[0]
	for raw.next < len(st.text) {
		pos := raw.next
		if kind := introduces[st.text[pos]]; kind != 0 && begins(st.text[pos:], kind) {
			st.wake(kind)
		}
		if st.awake == 1 {
			st.readUnits(raw, pos+1, all)
			continue
		}
		for i := range st.readers {
			if r := &st.readers[i]; r.awake && r.next <= pos {
				st.readUnits(r, pos+1, all)
			}
		}
	}
	for i := range st.readers {
		if r := &st.readers[i]; r.awake {
			st.readUnits(r, len(st.text), all)
		}
	}
}

// begins reports whether p begins with an escape of a kind, or may do so.
func begins(p []byte, kind escapes) bool {
	var u unit
	return u.next(p, kind) || u.size > 1
}

// wake wakes the readers for a kind of escape and others, which read as those for the others alone until
// now. An escape begins at the next byte.
func (st *Stream) wake(kind escapes) {
	for i := range st.readers {
		r := &st.readers[i]
		if r.kinds&kind == 0 {
			continue
		}
		if r.awake {
			r.seen[bits.TrailingZeros8(uint8(kind))] = 0
			continue
		}
		if other := &st.readers[r.kinds&^kind]; other.awake {
			r.follow(other)
			r.seen[bits.TrailingZeros8(uint8(kind))] = 0 // it may be behind
			st.awake++
		}
	}
}

// readUnits has r read the units that begin before end.
func (st *Stream) readUnits(r *reader, end int, all bool) {
	for r.next < end {
		if more := r.unit.next(st.text[r.next:], r.kinds); more && !all {
			return
		}
		if st.readUnit(r); !r.awake {
			return
		}
	}
}

// readUnit has r read its unit, and masks what is found.
func (st *Stream) readUnit(r *reader) {
	start := st.off + int64(r.next)
	end := start + int64(r.unit.size)
	ends := r.unit.isLineEnd()
	if r.lineEnd = ends || r.lineEnd && (r.unit.decoded[0] == ' ' || r.unit.decoded[0] == '\t'); !r.lineEnd {
		r.feeds = 0
	}
	if ends && r.unit.decoded[0] == '\n' {
		if r.feeds++; r.feeds == 2 {
			r.encodings.state = 0 // base64 does not go on behind a blank line
		}
	}
	if r.rest > 0 && !r.lineEnd {
		r.rest--
		st.mask(start, end, false)
	}
	for _, c := range r.unit.bytes() {
		if from, rest, ok := r.texts.read(c, start); ok {
			st.mask(from, end, true)
			r.rest = max(r.rest, rest)
		}
		if r.lineEnd {
			continue // base64 is in lines, which may be indented
		}
		if from, rest, ok := r.encodings.read(c, start); ok {
			st.mask(from, end, true)
			r.rest = max(r.rest, rest)
		}
	}
	escaped := introduces[st.text[r.next]] & r.kinds
	r.next += r.unit.size
	if r.kinds == 0 {
		return
	}
	sleeps := false
	for i := range r.seen {
		if r.seen[i] = min(r.seen[i]+r.unit.size, never); r.unit.size > 1 && escaped == 1<<i {
			r.seen[i] = 0
		}
		sleeps = sleeps || r.kinds&(1<<i) != 0 && r.seen[i] > st.set.hold
	}
	if sleeps { // the reader without this kind reads the same
		r.awake = false
		st.awake--
	}
}

// Matches returns how many values, and beginnings of one, the stream has masked. Overlapping ones
// count once.
func (st *Stream) Matches() int64 { return st.matches }

// mask masks the text between two offsets, as far as it is still held. A match is not the rest of
// one.
func (st *Stream) mask(from, to int64, match bool) {
	from = max(from, st.off+int64(st.passed))
	to = max(to, from)
	if from > st.to || st.to == 0 || from == st.to && match {
		st.from, st.to = from, from
		st.labelled = to-from >= int64(len(label))
		if match {
			st.matches++
		}
	}
	for ; st.from > from; st.from-- {
		st.masked[st.from-1-st.off] = '*'
	}
	for ; st.to < to; st.to++ {
		c := byte('*')
		if at := st.to - st.from; st.labelled && at < int64(len(label)) {
			c = label[at]
		}
		st.masked[st.to-st.off] = c
	}
}
