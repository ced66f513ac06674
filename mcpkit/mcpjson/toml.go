package mcpjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML parses TOML. The decoder checks the file, including duplicate keys; its
// parser provides the tree with offsets.
func (d *document) parseTOML() (*node, *Error) {
	if err := d.checkDepth(true); err != nil {
		return nil, err
	}
	var all map[string]any
	if err := toml.Unmarshal(d.data, &all); err != nil {
		e := &Error{File: d.file, Msg: "invalid TOML", Err: errors.New(clip(strings.TrimPrefix(err.Error(), "toml: ")))}
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			e.Line, e.Column = bad.Position()
		}
		return nil, e
	}
	root := newObject()
	table := root
	var p unstable.Parser
	p.Reset(d.data)
	for p.NextExpression() {
		x := p.Expression()
		switch x.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = root.descend(keysOf(x.Key()), x.Kind == unstable.ArrayTable)
		case unstable.KeyValue:
			keys := keysOf(x.Key())
			table.descend(keys[:len(keys)-1], false).add(keys[len(keys)-1], d.fromTOML(&p, x.Value()))
		}
	}
	if err := p.Error(); err != nil {
		return nil, &Error{File: d.file, Msg: "invalid TOML", Err: errors.New(clip(err.Error()))}
	}
	return root, nil
}

// key is one part of a dotted key.
type key struct {
	name   string
	offset int
}

func keysOf(it unstable.Iterator) []key {
	var keys []key
	for it.Next() {
		keys = append(keys, key{string(it.Node().Data), int(it.Node().Raw.Offset)})
	}
	return keys
}

// descend returns the table at a path, creating missing ones.
func (n *node) descend(path []key, list bool) *node {
	for i, k := range path {
		next := n.get(k.name)
		if next == nil {
			next = &node{kind: object, offset: k.offset}
			if list && i == len(path)-1 {
				next = &node{kind: array, offset: k.offset}
			}
			n.members = append(n.members, member{k.name, k.offset, next})
		}
		if next.kind == array {
			if list && i == len(path)-1 || len(next.elems) == 0 {
				next.elems = append(next.elems, &node{kind: object, offset: k.offset})
			}
			next = next.elems[len(next.elems)-1]
		}
		n = next
	}
	return n
}

func (n *node) add(k key, v *node) {
	if v.offset == 0 { // the parser has no offsets of lists and tables
		v.offset = k.offset
	}
	n.members = append(n.members, member{k.name, k.offset, v})
}

func (d *document) fromTOML(p *unstable.Parser, v *unstable.Node) *node {
	n := &node{offset: int(v.Raw.Offset)}
	if v.Raw.Length == 0 && len(v.Data) > 0 && v.Kind != unstable.String {
		n.offset = int(p.Range(v.Data).Offset)
	}
	switch v.Kind {
	case unstable.String:
		n.kind, n.text = text, string(v.Data)
	case unstable.Bool:
		n.kind, n.text = boolean, string(v.Data)
	case unstable.Integer:
		n.kind, n.text = number, tomlInt(string(v.Data))
	case unstable.Float:
		n.kind, n.text = tomlFloat(string(v.Data))
	case unstable.Array:
		n.kind = array
		for it := v.Children(); it.Next(); {
			n.elems = append(n.elems, d.fromTOML(p, it.Node()))
		}
	case unstable.InlineTable:
		n.kind = object
		for it := v.Children(); it.Next(); {
			kv := it.Node()
			keys := keysOf(kv.Key())
			n.descend(keys[:len(keys)-1], false).add(keys[len(keys)-1], d.fromTOML(p, kv.Value()))
		}
	default: // dates become strings in JSON
		n.kind, n.text = text, string(v.Data)
	}
	return n
}

// tomlInt writes an integer in JSON's form.
func tomlInt(s string) string {
	if i, err := strconv.ParseInt(s, 0, 64); err == nil && !leadsOctal(s) {
		return strconv.FormatInt(i, 10)
	}
	if i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64); err == nil {
		return strconv.FormatInt(i, 10)
	}
	return "0"
}

// leadsOctal reports whether Go would read the digits as octal.
func leadsOctal(s string) bool {
	s = strings.TrimLeft(s, "+-")
	return len(s) > 1 && s[0] == '0' && s[1] >= '0' && s[1] <= '9'
}

// tomlFloat writes a number in JSON's form, or as a string if JSON has none.
func tomlFloat(s string) (kind, string) {
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return text, s
	}
	b, err := json.Marshal(f)
	if err != nil {
		return text, s
	}
	return number, string(b)
}

// appendTOML writes a value on one line.
func appendTOML(b []byte, n *node) []byte {
	switch n.kind {
	case object:
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, ' ')
			b = append(append(b, tomlKey(m.name)...), " = "...)
			b = appendTOML(b, m.value)
		}
		if len(n.members) > 0 {
			b = append(b, ' ')
		}
		return append(b, '}')
	case array:
		b = append(b, '[')
		for i, e := range n.elems {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = appendTOML(b, e)
		}
		return append(b, ']')
	case text:
		// A TOML string is a JSON string, except for one control character.
		return append(b, bytes.ReplaceAll(appendQuoted(nil, n.text), []byte{0x7f}, []byte(`\u007f`))...)
	}
	return append(b, n.text...)
}

// tomlKey quotes a key if necessary.
func tomlKey(name string) string {
	for _, c := range name {
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return string(appendTOML(nil, newString(name)))
		}
	}
	if name == "" {
		return `""`
	}
	return name
}
