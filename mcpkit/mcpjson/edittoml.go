package mcpjson

import (
	"bytes"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// appendTable writes a table with its own header.
func appendTable(b []byte, path []string, n *node) []byte {
	if len(b) > 0 {
		b = append(b, '\n')
	}
	b = append(append(append(b, '['), dotted(path)...), "]\n"...)
	for _, m := range n.members {
		b = appendKey(b, []string{m.name}, m.value)
	}
	return b
}

// appendKey writes one line.
func appendKey(b []byte, path []string, v *node) []byte {
	b = append(append(b, dotted(path)...), " = "...)
	return append(appendTOML(b, v), '\n')
}

func dotted(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = tomlKey(p)
	}
	return strings.Join(parts, ".")
}

// tomlExpr is one expression of a file: a table header, or a key and its value.
type tomlExpr struct {
	header     bool
	path       []string // from the root
	table      int      // length of the part of path given by the header above
	start, end int
	value      int // offset of the value
}

// tomlEdit collects edits of a file.
type tomlEdit struct {
	data  []byte
	exprs []tomlExpr
	edits []splice
	tail  []byte // text to append
}

// splice replaces a part of the file.
type splice struct {
	start, end int
	text       string
}

// editTOML edits the bytes of a file so that its content changes from before to after.
func (d *document) editTOML(before, after *node) ([]byte, error) {
	e := tomlEdit{data: d.data}
	e.scan()
	e.object(nil, before, after)
	slices.SortStableFunc(e.edits, func(a, b splice) int { return a.start - b.start })
	var out []byte
	at := 0
	for _, s := range e.edits {
		if s.start < at {
			continue // within a removed part
		}
		out = append(append(out, d.data[at:s.start]...), s.text...)
		at = s.end
	}
	out = append(out, d.data[at:]...)
	if len(e.tail) > 0 {
		if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
			out = append(out, '\n')
		}
		if len(out) > 0 {
			out = append(out, '\n')
		}
		out = append(out, e.tail...)
	}
	return out, checkEdit(out, true, after)
}

// scan finds the expressions.
func (e *tomlEdit) scan() {
	var p unstable.Parser
	p.Reset(e.data)
	var table []string
	for p.NextExpression() {
		x := p.Expression()
		switch x.Kind {
		case unstable.Table, unstable.ArrayTable:
			keys := keysOf(x.Key())
			table = pathOf(keys)
			start := bytes.LastIndexByte(e.data[:keys[0].offset], '\n') + 1
			e.exprs = append(e.exprs, tomlExpr{header: true, path: table, table: len(table), start: start, end: e.lineEnd(keys[len(keys)-1].offset)})
		case unstable.KeyValue:
			keys := keysOf(x.Key())
			last := int(lastKey(x).Raw.Offset + lastKey(x).Raw.Length)
			start, end := int(x.Raw.Offset), int(x.Raw.Offset+x.Raw.Length)
			value := last + bytes.IndexByte(e.data[last:end], '=') + 1
			for value < end && (e.data[value] == ' ' || e.data[value] == '\t') {
				value++
			}
			e.exprs = append(e.exprs, tomlExpr{path: append(slices.Clone(table), pathOf(keys)...), table: len(table), start: start, end: end, value: value})
		}
	}
}

func pathOf(keys []key) []string {
	var path []string
	for _, k := range keys {
		path = append(path, k.name)
	}
	return path
}

func lastKey(x *unstable.Node) *unstable.Node {
	var last *unstable.Node
	for it := x.Key(); it.Next(); {
		last = it.Node()
	}
	return last
}

// lineEnd is the offset after the line that offset is in.
func (e *tomlEdit) lineEnd(offset int) int {
	if n := bytes.IndexByte(e.data[offset:], '\n'); n >= 0 {
		return offset + n + 1
	}
	return len(e.data)
}

// object edits the differences between two tables at a path.
func (e *tomlEdit) object(path []string, before, after *node) {
	for _, m := range before.members {
		at := append(slices.Clone(path), m.name)
		v := after.get(m.name)
		switch {
		case v == nil:
			e.remove(at)
		case m.value.equal(v):
		case e.exact(at) != nil:
			x := e.exact(at)
			e.edits = append(e.edits, splice{x.value, x.end, string(appendTOML(nil, v))})
		case m.value.kind == object && v.kind == object:
			e.object(at, m.value, v)
		default:
			e.remove(at)
			e.insert(at, v)
		}
	}
	for _, m := range after.members {
		if before.get(m.name) == nil {
			e.insert(append(slices.Clone(path), m.name), m.value)
		}
	}
}

// exact returns the expression with the whole value at a path.
func (e *tomlEdit) exact(path []string) *tomlExpr {
	for i, x := range e.exprs {
		if !x.header && slices.Equal(x.path, path) {
			return &e.exprs[i]
		}
	}
	return nil
}

// remove deletes all lines about a path, but not their comments.
func (e *tomlEdit) remove(path []string) {
	for _, x := range e.exprs {
		if len(x.path) < len(path) || !slices.Equal(x.path[:len(path)], path) {
			continue
		}
		start := bytes.LastIndexByte(e.data[:x.start], '\n') + 1
		end := e.lineEnd(max(x.end-1, x.start))
		text := ""
		if x.header {
			end = x.end
			if c := bytes.IndexByte(e.data[start:end], '#'); c >= 0 && bytes.IndexByte(e.data[start:start+c], ']') >= 0 {
				text = string(e.data[start+c : end])
			}
		} else if rest := bytes.TrimLeft(e.data[x.end:end], " \t"); bytes.HasPrefix(rest, []byte("#")) {
			text = string(rest)
		}
		e.edits = append(e.edits, splice{start, end, text})
	}
}

// insert adds a value: below the last line of its table, or as a table at the end.
func (e *tomlEdit) insert(path []string, v *node) {
	parent := path[:len(path)-1]
	var host *tomlExpr
	for i, x := range e.exprs {
		if x.header && slices.Equal(x.path, parent) || !x.header && len(x.path) == len(path) && slices.Equal(x.path[:len(parent)], parent) {
			host = &e.exprs[i]
		}
	}
	switch {
	case len(parent) == 0 && v.kind == object && len(v.members) > 0:
		for _, m := range v.members { // a header [mcp_servers] without keys is not needed
			e.insert(append(slices.Clone(path), m.name), m.value)
		}
	case host != nil:
		at := e.lineEnd(max(host.end-1, host.start))
		line := string(appendKey(nil, path[host.table:], v))
		if at == len(e.data) && !bytes.HasSuffix(e.data, []byte("\n")) {
			line = "\n" + line
		}
		e.edits = append(e.edits, splice{at, at, line})
	case v.kind == object:
		e.tail = appendTable(e.tail, path, v)
	default:
		one := newObject()
		one.put(path[len(path)-1], v)
		e.tail = appendTable(e.tail, parent, one)
	}
}
