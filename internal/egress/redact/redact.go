// Package redact masks secret values in streams of bytes, also in their usual encodings, and
// with their ASCII letters in another case.
//
// A mask is as long as what it replaces, so that lengths, offsets and frames around it
// stay right. Time and memory are linear in the length of the data and the values.
package redact

import (
	"fmt"
)

const (
	// MinValue and MaxValue bound the length of a value in bytes. A shorter value would
	// match ordinary text.
	MinValue = 8
	MaxValue = 4 << 10
	// MaxValues bounds the values of a set.
	MaxValues = 64
	// maxEarly is how many bytes of a value a stream may pass on before it knows whether
	// the rest follows: see [Stream.Yield].
	maxEarly = 4
)

// label begins a mask that has room for it.
const label = "gbx-redacted"

// Set is an automaton (Aho-Corasick) that finds all forms of some values, in any case. It
// reads every character through fold. It is immutable: its methods may be called concurrently.
type Set struct {
	nodes []node
	start [256]int32 // the children of the root
}

// node is a state: a prefix of forms. Node 0 is the root, the empty prefix.
type node struct {
	fail  int32 // the longest proper suffix of the prefix that is a node
	child int32 // the first child, 0: none
	next  int32 // the next sibling, 0: none
	depth int32 // length of the prefix
	match int32 // length of the longest form that is a suffix of the prefix, 0: none
	char  byte
	early bool // the prefix discloses too little to hold it back: see Yield
}

// New returns the set of the values. An empty set masks nothing. The error names the
// bound that a value or their number violates, but no value.
func New(values ...string) (*Set, error) {
	if len(values) > MaxValues {
		return nil, fmt.Errorf("redact %d values: more than %d", len(values), MaxValues)
	}
	s := &Set{nodes: make([]node, 1)}
	s.nodes[0].early = true
	for _, v := range values {
		if len(v) < MinValue || len(v) > MaxValue {
			return nil, fmt.Errorf("redact a value of %d bytes: a value has between %d and %d", len(v), MinValue, MaxValue)
		}
		for _, form := range forms(v) {
			s.add(form, min(maxEarly, len(v)/8))
		}
	}
	s.link()
	return s, nil
}

// add inserts a form, the first bytes of which may be passed on early.
func (s *Set) add(form string, early int) {
	at := int32(0)
	for i := range len(form) {
		c := fold[form[i]]
		next := s.childOf(at, c)
		if next == 0 {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, node{depth: int32(i + 1), char: c, early: true})
			if at == 0 {
				s.start[c] = next
			}
			s.nodes[next].next, s.nodes[at].child = s.nodes[at].child, next
		}
		if i >= early {
			s.nodes[next].early = false
		}
		at = next
	}
	s.nodes[at].match = int32(len(form))
}

func (s *Set) childOf(at int32, c byte) int32 {
	if at == 0 {
		return s.start[c]
	}
	for n := s.nodes[at].child; n != 0; n = s.nodes[n].next {
		if s.nodes[n].char == c {
			return n
		}
	}
	return 0
}

// link sets the suffixes of all nodes, breadth first.
func (s *Set) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for n := s.nodes[at].child; n != 0; n = s.nodes[n].next {
			queue = append(queue, n)
			if at == 0 {
				continue // its only proper suffix is the root
			}
			fail := s.step(s.nodes[at].fail, s.nodes[n].char)
			s.nodes[n].fail = fail
			s.nodes[n].match = max(s.nodes[n].match, s.nodes[fail].match)
			s.nodes[n].early = s.nodes[n].early && s.nodes[fail].early
		}
	}
}

// step returns the state after state at has read c, which is folded.
func (s *Set) step(at int32, c byte) int32 {
	for at != 0 {
		if n := s.childOf(at, c); n != 0 {
			return n
		}
		at = s.nodes[at].fail
	}
	return s.start[c]
}

// String returns text with all values masked. A beginning of a value at the end of text
// is masked, too, beyond its first few bytes: the rest may have been cut off.
func (s *Set) String(text string) string {
	if !s.begins(text) {
		return text
	}
	st := s.Stream()
	return string(st.Yield(st.Append(make([]byte, 0, len(text)), []byte(text))))
}

// begins reports whether text has a byte with which a form begins.
func (s *Set) begins(text string) bool {
	for i := range len(text) {
		if s.start[fold[text[i]]] != 0 {
			return true
		}
	}
	return false
}

// InName reports whether name, such as that of a header, contains a value.
func (s *Set) InName(name string) bool { return len(name) >= MinValue && s.String(name) != name }

// Stream returns a stream that has read nothing yet.
func (s *Set) Stream() *Stream { return &Stream{set: s} }

// Stream masks the values in a sequence of bytes that arrives in pieces. The pieces do not
// change its output, except for calls of Yield in between. Its methods must not be called
// concurrently.
type Stream struct {
	set     *Set
	state   int32
	held    []byte // masked as far as read; may be part of a form
	matches int64
}

// Append appends to dst the bytes that no longer depend on later ones, and returns dst.
// It holds back at most the length of the longest form. It does not keep p.
func (st *Stream) Append(dst, p []byte) []byte {
	s := st.set
	base := len(dst)
	dst = append(append(dst, st.held...), p...)
	state := st.state
	for i := base + len(st.held); i < len(dst); i++ {
		c := fold[dst[i]]
		if state == 0 {
			state = s.start[c]
		} else {
			state = s.step(state, c)
		}
		if n := int(s.nodes[state].match); n > 0 {
			st.matches++
			from := i + 1 - n
			mask(dst[max(from, base):i+1], max(base-from, 0))
		}
	}
	st.state = state
	end := len(dst) - min(int(s.nodes[state].depth), len(dst)-base)
	st.held = append(st.held[:0], dst[end:]...)
	return dst[:end]
}

// Holds reports whether the stream holds bytes back.
func (st *Stream) Holds() bool { return len(st.held) > 0 }

// Yield appends to dst what the stream holds back, and returns dst. It is for the end of
// the data, and for a pause after which a reader should not wait any longer. The held
// bytes begin a form: unless they are few (at most 4, and an eighth of the value), they
// are masked. If the rest of the form follows, it is masked as well.
func (st *Stream) Yield(dst []byte) []byte {
	from := len(dst)
	dst = append(dst, st.held...)
	if !st.set.nodes[st.state].early {
		mask(dst[from:], 0)
	}
	st.held = st.held[:0]
	return dst
}

// Matches returns how many occurrences of values the stream has masked. Overlapping ones
// count separately.
func (st *Stream) Matches() int64 { return st.matches }

// mask overwrites p, which begins after the given number of bytes of a mask.
func mask(p []byte, after int) {
	whole := len(p)+after >= len(label)
	for i := range p {
		if at := i + after; whole && at < len(label) {
			p[i] = label[at]
		} else {
			p[i] = '*'
		}
	}
}
