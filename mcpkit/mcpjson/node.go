package mcpjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a file, because parsers recurse. Real configurations
// nest much less.
const maxDepth = 64

// maxEntries bounds the entries of a TOML file: to find duplicates, the decoder
// compares each key with all previous ones.
const maxEntries = 20000

// kind is the kind of a node, in words for messages.
type kind string

const (
	object  kind = "an object"
	array   kind = "a list"
	text    kind = "a string"
	number  kind = "a number"
	boolean kind = "true or false"
	null    kind = "null"
)

// node is a value in a JSON or TOML file, with its position.
type node struct {
	kind    kind
	text    string // the value of a string, otherwise the literal in JSON's form
	members []member
	elems   []*node
	offset  int

	// index maps names to the first member; get builds it for large objects.
	index map[string]int
}

type member struct {
	name   string
	offset int // of the name
	value  *node
}

// get returns the member with that name, or nil.
func (n *node) get(name string) *node {
	if i := n.find(name); i >= 0 {
		return n.members[i].value
	}
	return nil
}

// manyMembers is the number of members from which an index is worth its memory.
const manyMembers = 32

// find returns the index of the member with that name, or -1.
func (n *node) find(name string) int {
	if n == nil {
		return -1
	}
	if len(n.members) < manyMembers {
		return slices.IndexFunc(n.members, func(m member) bool { return m.name == name })
	}
	if n.index == nil {
		n.index = make(map[string]int, len(n.members))
	}
	for i := len(n.index); i < len(n.members); i++ {
		n.index[n.members[i].name] = i
	}
	if i, ok := n.index[name]; ok {
		return i
	}
	return -1
}

// at returns the node at a path of names, or nil.
func (n *node) at(path ...string) *node {
	for _, name := range path {
		n = n.get(name)
	}
	return n
}

func (n *node) names() []string {
	var names []string
	for _, m := range n.members {
		names = append(names, m.name)
	}
	return names
}

// put appends a member to an object under construction.
func (n *node) put(name string, v *node) { n.members = append(n.members, member{name: name, value: v}) }

func newObject() *node         { return &node{kind: object} }
func newString(s string) *node { return &node{kind: text, text: s} }
func newBool(b bool) *node     { return &node{kind: boolean, text: strconv.FormatBool(b)} }
func newInt(i int64) *node     { return &node{kind: number, text: strconv.FormatInt(i, 10)} }

func newStrings(list []string) *node {
	n := &node{kind: array}
	for _, s := range list {
		n.elems = append(n.elems, newString(s))
	}
	return n
}

// appendJSON writes the node on one line.
func (n *node) appendJSON(b []byte) []byte {
	switch n.kind {
	case object:
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, m.name), ':')
			b = m.value.appendJSON(b)
		}
		return append(b, '}')
	case array:
		b = append(b, '[')
		for i, e := range n.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.appendJSON(b)
		}
		return append(b, ']')
	case text:
		return appendQuoted(b, n.text)
	}
	return append(b, n.text...)
}

// raw returns the node as compact JSON.
func (n *node) raw() json.RawMessage { return n.appendJSON(nil) }

// appendQuoted writes a JSON string without the escapes for HTML.
func appendQuoted(b []byte, s string) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic("mcpjson: quote a string: " + err.Error()) // cannot happen
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}

// equal compares the content of two nodes, ignoring positions and the order of members.
func (n *node) equal(o *node) bool {
	if n.kind != o.kind || n.text != o.text || len(n.members) != len(o.members) || len(n.elems) != len(o.elems) {
		return false
	}
	for _, m := range n.members {
		if v := o.get(m.name); v == nil || !m.value.equal(v) {
			return false
		}
	}
	for i, e := range n.elems {
		if !e.equal(o.elems[i]) {
			return false
		}
	}
	return true
}

// document is the content of a file with the positions of its lines.
type document struct {
	file  string
	data  []byte
	lines []int // offsets of lines; computed on first use
}

// place converts an offset to line and column.
func (d *document) place(offset int) (line, column int) {
	if d.lines == nil {
		d.lines = []int{0}
		for i, c := range d.data {
			if c == '\n' {
				d.lines = append(d.lines, i+1)
			}
		}
	}
	line, found := slices.BinarySearch(d.lines, offset)
	if found {
		line++
	}
	return line, offset - d.lines[line-1] + 1
}

// fail returns an Error about a position.
func (d *document) fail(offset int, format string, args ...any) *Error {
	line, column := d.place(offset)
	return &Error{File: d.file, Line: line, Column: column, Msg: fmt.Sprintf(format, args...)}
}

// newDocument checks the encoding of a file. It drops a byte order mark, which some
// editors write.
func newDocument(file string, data []byte) (*document, *Error) {
	d := &document{file: file, data: bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))}
	if len(data) > maxFile {
		return nil, &Error{File: file, Msg: fmt.Sprintf("the file has %d bytes, more than the limit of %d", len(data), maxFile)}
	}
	if utf8.Valid(d.data) {
		return d, nil
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, &Error{File: file, Line: 1, Column: 1, Msg: "the file is UTF-16", Hint: "save it as UTF-8"}
	}
	for i := 0; i < len(d.data); {
		r, size := utf8.DecodeRune(d.data[i:])
		if r == utf8.RuneError && size == 1 {
			e := d.fail(i, "the file is not UTF-8")
			e.Hint = "save it as UTF-8"
			return nil, e
		}
		i += size
	}
	return d, nil
}

// checkDepth checks the nesting before a parser recurses. It skips strings and comments
// only as far as needed to ignore their brackets; the parser reports their errors.
func (d *document) checkDepth(toml bool) *Error {
	depth, dots, entries, b := 0, 0, 0, d.data
	for i := 0; i < len(b); i++ {
		rest := b[i:]
		if c := b[i]; toml && (c == '=' || c == '[') {
			if entries++; entries > maxEntries {
				return d.fail(i, "the file has more than %d keys, tables and lists", maxEntries)
			}
		}
		if c := b[i]; toml && c == '.' {
			if dots++; dots > maxDepth {
				return d.fail(i, "the file has a key of more than %d parts", maxDepth)
			}
		} else if bytes.IndexByte([]byte(",=[{\n"), c) >= 0 {
			dots = 0
		}
		switch c := b[i]; {
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return d.fail(i, "the file nests deeper than %d levels", maxDepth)
			}
		case c == ']' || c == '}':
			depth = max(depth-1, 0)
		case c == '"' || toml && c == '\'':
			i += quotedLen(rest, toml) - 1
		case toml && c == '#', !toml && bytes.HasPrefix(rest, []byte("//")):
			if n := bytes.IndexByte(rest, '\n'); n >= 0 {
				i += n
			} else {
				return nil
			}
		case !toml && bytes.HasPrefix(rest, []byte("/*")):
			if n := bytes.Index(rest[2:], []byte("*/")); n >= 0 {
				i += n + 3
			} else {
				return nil
			}
		}
	}
	return nil
}

// quotedLen returns the length of the quoted string at the beginning of b; to the end
// of b if it is not closed.
func quotedLen(b []byte, toml bool) int {
	quote, escapes := b[:1], b[0] == '"'
	if triple := bytes.Repeat(quote, 3); toml && bytes.HasPrefix(b, triple) {
		quote = triple
	}
	for i := len(quote); i < len(b); i++ {
		switch {
		case b[i] == '\\' && escapes:
			i++
		case b[i] == '\n' && len(quote) == 1:
			return i // not closed on its line; the parser reports it
		case bytes.HasPrefix(b[i:], quote):
			return i + len(quote)
		}
	}
	return len(b)
}

// describe describes a node without values that could be secret.
func (n *node) describe() string {
	switch {
	case n.kind == object && len(n.members) == 0:
		return "an empty object"
	case n.kind == text && strings.TrimSpace(n.text) == "":
		return "an empty string"
	}
	return string(n.kind)
}
