package redact

import (
	"slices"
	"sync/atomic"
)

// An automaton (Aho-Corasick) finds the beginnings of forms. It reads every character through a
// table that folds characters which it does not distinguish. It is immutable, apart from rows:
// its methods may be called concurrently.
type automaton struct {
	class   [256]uint8 // of a folded character; 0: no form has it
	classes int
	nodes   []node
	longest int // hit.length
	// rows has for each state the next one by the class of the character. A row is computed when a
	// text first needs it: most of a long value never occurs. So reading a character takes the
	// same time whether or not it continues a form. States with a hit are marked with hits.
	rows []atomic.Pointer[[]int32]
}

// hits marks states in rows.
const hits = 1 << 30

// node is a state: a prefix of forms. Node 0 is the root, the empty prefix.
type node struct {
	fail  int32 // the longest proper suffix of the prefix that is a node
	child int32 // the first child, 0: none
	next  int32 // the next sibling, 0: none
	class uint8
	hit   hit
}

// A hit is a beginning that is masked, with what belongs to the form before and after it.
type hit struct {
	length int32 // characters from the first that is masked to the end of the beginning; 0: no hit
	rest   int32 // further units that are masked, whatever they are
}

// with returns a hit for both.
func (h hit) with(other hit) hit { return hit{max(h.length, other.length), max(h.rest, other.rest)} }

// A beginning is a form, as far as the automaton reads it.
type beginning struct {
	text   string
	before int // characters to mask before text
	rest   int // units to mask after it
}

func newAutomaton(fold *[256]byte, list []beginning) *automaton {
	a := &automaton{nodes: make([]node, 1), classes: 1}
	for _, b := range list {
		at := int32(0)
		for i := range len(b.text) {
			at = a.add(at, a.classOf(fold[b.text[i]]))
		}
		h := hit{int32(b.before + len(b.text)), int32(b.rest)}
		a.nodes[at].hit = a.nodes[at].hit.with(h)
		a.longest = max(a.longest, int(h.length))
	}
	folded := a.class
	for c := range a.class {
		a.class[c] = folded[fold[c]]
	}
	a.rows = make([]atomic.Pointer[[]int32], len(a.nodes))
	root := make([]int32, a.classes)
	for n := a.nodes[0].child; n != 0; n = a.nodes[n].next {
		root[a.nodes[n].class] = n // a value has several characters, so none is a hit
	}
	a.rows[0].Store(&root)
	a.link()
	return a
}

// classOf returns the class of a folded character, a new one if necessary.
func (a *automaton) classOf(c byte) uint8 {
	if a.class[c] == 0 {
		a.class[c] = uint8(a.classes) // values have visible characters: there are fewer than 256
		a.classes++
	}
	return a.class[c]
}

// add returns the child of a node for a class, a new one if necessary.
func (a *automaton) add(at int32, class uint8) int32 {
	for n := a.nodes[at].child; n != 0; n = a.nodes[n].next {
		if a.nodes[n].class == class {
			return n
		}
	}
	n := int32(len(a.nodes))
	a.nodes = append(a.nodes, node{class: class, next: a.nodes[at].child})
	a.nodes[at].child = n
	return n
}

// link sets the suffixes of all nodes, breadth first.
func (a *automaton) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for n := a.nodes[at].child; n != 0; n = a.nodes[n].next {
			queue = append(queue, n)
			if at == 0 {
				continue // its only proper suffix is the root
			}
			fail := a.suffix(a.nodes[at].fail, a.nodes[n].class)
			a.nodes[n].fail = fail
			a.nodes[n].hit = a.nodes[n].hit.with(a.nodes[fail].hit)
		}
	}
}

// suffix returns the state after state at has read a class, before there are rows.
func (a *automaton) suffix(at int32, class uint8) int32 {
	for {
		for n := a.nodes[at].child; n != 0; n = a.nodes[n].next {
			if a.nodes[n].class == class {
				return n
			}
		}
		if at == 0 {
			return 0
		}
		at = a.nodes[at].fail
	}
}

// step returns the state after state at has read c, with its mark. at has none.
func (a *automaton) step(at int32, c byte) int32 {
	row := a.rows[at].Load()
	if row == nil {
		row = a.row(at)
	}
	return (*row)[a.class[c]]
}

// row computes the row of a state: that of its suffix, with its children.
func (a *automaton) row(at int32) *[]int32 {
	missing := []int32{}
	row := a.rows[at].Load()
	for row == nil {
		missing = append(missing, at)
		at = a.nodes[at].fail
		row = a.rows[at].Load()
	}
	for _, at := range slices.Backward(missing) {
		next := slices.Clone(*row)
		for n := a.nodes[at].child; n != 0; n = a.nodes[n].next {
			next[a.nodes[n].class] = n
			if a.nodes[n].hit.length > 0 {
				next[a.nodes[n].class] |= hits
			}
		}
		row = &next
		a.rows[at].Store(row)
	}
	return row
}

// A track is an automaton that reads a text.
type track struct {
	a      *automaton
	state  int32
	starts []uint32 // the low bits of the offsets of the last characters, a ring; its length is a power of two
	n      int64    // characters
}

// allocate makes room for the offsets.
func (t *track) allocate() {
	if t.starts != nil {
		return
	}
	size := 1
	for size <= t.a.longest {
		size *= 2
	}
	t.starts = make([]uint32, size)
}

// follow makes t read on from where other is.
func (t *track) follow(other *track) {
	t.state, t.n = other.state, other.n
	copy(t.starts, other.starts)
}

// read reads a character that begins at an offset. If that completes a beginning, ok is true, and
// from is where to mask from.
func (t *track) read(c byte, start int64) (from int64, rest int32, ok bool) {
	ring := int64(len(t.starts) - 1)
	t.starts[t.n&ring] = uint32(start)
	t.n++
	t.state = t.a.step(t.state, c)
	if t.state < hits {
		return 0, 0, false
	}
	t.state -= hits
	h := t.a.nodes[t.state].hit
	return start - int64(uint32(start)-t.starts[max(t.n-int64(h.length), 0)&ring]), h.rest, true
}
