package mcpjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/tailscale/hujson"
)

// parseJSON parses JSON, with comments and trailing commas if those are allowed.
func (d *document) parseJSON(comments bool) (*node, *Error) {
	if err := d.checkDepth(false); err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(d.data)) == 0 {
		return nil, d.fail(0, "the file is empty")
	}
	v, err := hujson.Parse(d.data)
	if err != nil {
		return nil, d.syntax(err)
	}
	if !comments && !v.IsStandard() {
		return nil, d.strict()
	}
	return d.fromJSON(&v)
}

// syntax converts an error of the parser, which contains a position.
func (d *document) syntax(err error) *Error {
	msg := strings.TrimPrefix(err.Error(), "hujson: ")
	place, cause, ok := strings.Cut(msg, ": ")
	e := &Error{File: d.file, Msg: "invalid JSON", Err: errors.New(clip(msg))}
	if ok && strings.HasPrefix(place, "line ") {
		words := strings.FieldsFunc(place, func(r rune) bool { return r < '0' || r > '9' })
		if len(words) == 2 {
			e.Line, e.Column = atoi(words[0]), atoi(words[1])
			e.Err = errors.New(clip(cause))
		}
	}
	return e
}

func atoi(digits string) int {
	n := 0
	for _, c := range digits {
		n = n*10 + int(c-'0')
	}
	return n
}

// strict reports the first comment or trailing comma.
func (d *document) strict() *Error {
	offset := len(d.data)
	var bad *json.SyntaxError
	if err := json.Unmarshal(d.data, new(any)); errors.As(err, &bad) {
		offset = max(int(bad.Offset)-1, 0)
	}
	e := d.fail(offset, "comments and trailing commas are not allowed in this kind of file")
	e.Hint = "remove them"
	return e
}

func (d *document) fromJSON(v *hujson.Value) (*node, *Error) {
	n := &node{offset: v.StartOffset}
	switch t := v.Value.(type) {
	case *hujson.Object:
		n.kind = object
		seen := make(map[string]int, len(t.Members))
		for i := range t.Members {
			m := &t.Members[i]
			name := m.Name.Value.(hujson.Literal).String()
			if first, ok := seen[name]; ok {
				line, _ := d.place(first)
				return nil, d.fail(m.Name.StartOffset, "duplicate key %q; first in line %d", clip(name), line)
			}
			seen[name] = m.Name.StartOffset
			value, err := d.fromJSON(&m.Value)
			if err != nil {
				return nil, err
			}
			n.members = append(n.members, member{name, m.Name.StartOffset, value})
		}
	case *hujson.Array:
		n.kind = array
		for i := range t.Elements {
			value, err := d.fromJSON(&t.Elements[i])
			if err != nil {
				return nil, err
			}
			n.elems = append(n.elems, value)
		}
	case hujson.Literal:
		n.text = string(t)
		switch t.Kind() {
		case '"':
			n.kind, n.text = text, t.String()
		case '0':
			n.kind = number
		case 'n':
			n.kind = null
		default:
			n.kind = boolean
		}
	}
	return n, nil
}

// parseRaw parses JSON written by this package or a program.
func parseRaw(raw json.RawMessage) (*node, *Error) {
	d, err := newDocument("", raw)
	if err != nil {
		return nil, err
	}
	return d.parseJSON(false)
}

// indentJSON writes a node in the usual layout: objects over several lines, lists of
// scalars on one.
func indentJSON(b []byte, n *node, prefix, indent string) []byte {
	inner := prefix + indent
	switch {
	case n.kind == object && len(n.members) > 0:
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, '\n'), inner...)
			b = append(appendQuoted(b, m.name), ": "...)
			b = indentJSON(b, m.value, inner, indent)
		}
		return append(append(append(b, '\n'), prefix...), '}')
	case n.kind == array && !n.flat():
		b = append(b, '[')
		for i, e := range n.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, '\n'), inner...)
			b = indentJSON(b, e, inner, indent)
		}
		return append(append(append(b, '\n'), prefix...), ']')
	case n.kind == array:
		b = append(b, '[')
		for i, e := range n.elems {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = e.appendJSON(b)
		}
		return append(b, ']')
	}
	return n.appendJSON(b)
}

// flat reports whether a list contains no lists and objects.
func (n *node) flat() bool {
	for _, e := range n.elems {
		if e.kind == object || e.kind == array {
			return false
		}
	}
	return true
}
