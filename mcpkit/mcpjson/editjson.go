package mcpjson

import (
	"bytes"

	"github.com/tailscale/hujson"
)

// editJSON edits the bytes of a file so that its content changes from before to after,
// and leaves equal parts as they are written.
func (d *document) editJSON(before, after *node) ([]byte, error) {
	v, err := hujson.Parse(d.data)
	if err != nil {
		return nil, d.syntax(err)
	}
	e := jsonEdit{indent: indentOf(d.data), newline: "\n"}
	if bytes.Contains(d.data, []byte("\r\n")) {
		e.newline = "\r\n"
	}
	e.change(&v, before, after, "")
	data := v.Pack()
	return data, checkEdit(data, false, after)
}

// indentOf returns the indentation step of a file, taken from its first indented line.
func indentOf(data []byte) string {
	for _, line := range bytes.Split(data, []byte("\n")) {
		if rest := bytes.TrimLeft(line, " \t"); len(rest) < len(line) && len(bytes.TrimSpace(rest)) > 0 {
			return string(line[:len(line)-len(rest)])
		}
	}
	return "  "
}

type jsonEdit struct {
	indent  string
	newline string
}

// change edits v from before to after. prefix is the indentation of the line on which v
// begins.
func (e jsonEdit) change(v *hujson.Value, before, after *node, prefix string) {
	if before.equal(after) {
		return
	}
	switch t := v.Value.(type) {
	case *hujson.Object:
		if after.kind == object {
			e.object(t, before, after, prefix)
			return
		}
	case *hujson.Array:
		// A list that only grows, or whose objects change, keeps its comments.
		if after.kind == array && len(after.elems) >= len(before.elems) && len(before.elems) > 0 && !before.flat() {
			e.array(t, before, after, prefix)
			return
		}
	}
	v.Value = e.render(after, prefix).Value
}

// render returns a new value.
func (e jsonEdit) render(n *node, prefix string) hujson.Value {
	b := indentJSON(nil, n, prefix, e.indent)
	if e.newline != "\n" {
		b = bytes.ReplaceAll(b, []byte("\n"), []byte(e.newline))
	}
	v, err := hujson.Parse(b)
	if err != nil {
		panic("mcpjson: render a value: " + err.Error())
	}
	return v
}

func (e jsonEdit) object(o *hujson.Object, before, after *node, prefix string) {
	for i := 0; i < len(o.Members); {
		name := o.Members[i].Name.Value.(hujson.Literal).String()
		if v := after.get(name); v != nil {
			e.change(&o.Members[i].Value, before.get(name), v, e.lineIndent(o.Members[i].Name.BeforeExtra, prefix))
			i++
			continue
		}
		removeMember(o, i)
	}
	for _, m := range after.members {
		if before.get(m.name) == nil {
			e.add(o, m, prefix)
		}
	}
}

// lineIndent returns the indentation after extra.
func (e jsonEdit) lineIndent(extra hujson.Extra, prefix string) string {
	if i := bytes.LastIndexByte(extra, '\n'); i >= 0 {
		if rest := extra[i+1:]; len(bytes.Trim(rest, " \t")) == 0 {
			return string(rest)
		}
	}
	return prefix
}

// add appends a member to an object, in the layout of the others.
func (e jsonEdit) add(o *hujson.Object, m member, prefix string) {
	var items []*hujson.Value
	for i := range o.Members {
		items = append(items, &o.Members[i].Name)
	}
	var last *hujson.Value
	if n := len(o.Members); n > 0 {
		last = &o.Members[n-1].Value
	}
	before, inner, trailing := e.place(items, last, &o.AfterExtra, prefix)
	name := hujson.Value{BeforeExtra: before, Value: hujson.String(m.name)}
	value := e.render(m.value, inner)
	value.BeforeExtra, value.AfterExtra = hujson.Extra(" "), trailing
	o.Members = append(o.Members, hujson.ObjectMember{Name: name, Value: value})
}

// place prepares the end of an object or list for another item: what precedes it, how
// its lines are indented, and how a trailing comma is marked.
func (e jsonEdit) place(items []*hujson.Value, last *hujson.Value, after *hujson.Extra, prefix string) (before hujson.Extra, inner string, trailing hujson.Extra) {
	lines, inner := len(items) == 0, prefix+e.indent
	for _, item := range items {
		if bytes.ContainsRune(item.BeforeExtra, '\n') {
			lines, inner = true, e.lineIndent(item.BeforeExtra, inner)
		}
	}
	if last != nil && last.AfterExtra != nil {
		trailing, last.AfterExtra = last.AfterExtra, nil
		if len(bytes.TrimSpace(trailing)) > 0 { // a comment before the comma stays there
			last.AfterExtra, trailing = trailing, hujson.Extra{}
		}
	}
	kept := bytes.TrimRight(*after, " \t\r\n")
	switch {
	case lines:
		before = hujson.Extra(string(kept) + e.newline + inner)
		*after = hujson.Extra(e.newline + prefix)
	case len(kept) > 0:
		before = append(hujson.Extra(nil), *after...)
		*after = nil
	default:
		before = hujson.Extra(" ")
	}
	return before, inner, trailing
}

func (e jsonEdit) array(a *hujson.Array, before, after *node, prefix string) {
	for i, b := range before.elems {
		e.change(&a.Elements[i], b, after.elems[i], e.lineIndent(a.Elements[i].BeforeExtra, prefix))
	}
	for _, n := range after.elems[len(before.elems):] {
		var items []*hujson.Value
		for i := range a.Elements {
			items = append(items, &a.Elements[i])
		}
		space, inner, trailing := e.place(items, &a.Elements[len(a.Elements)-1], &a.AfterExtra, prefix)
		v := e.render(n, inner)
		v.BeforeExtra, v.AfterExtra = space, trailing
		a.Elements = append(a.Elements, v)
	}
}

// removeMember deletes a member, but not the comments around it.
func removeMember(o *hujson.Object, i int) {
	gone := o.Members[i]
	o.Members = append(o.Members[:i:i], o.Members[i+1:]...)
	comments := joinComments(gone.Name.BeforeExtra, gone.Name.AfterExtra, gone.Value.BeforeExtra)
	if i < len(o.Members) {
		comments = joinComments(comments, gone.Value.AfterExtra)
		if len(comments) > 0 {
			next := &o.Members[i].Name
			next.BeforeExtra = append(comments, next.BeforeExtra...)
		}
		return
	}
	// The member before it now determines whether there is a trailing comma.
	trailed := gone.Value.AfterExtra != nil
	if i > 0 {
		last := &o.Members[i-1].Value
		comments = append(joinComments(last.AfterExtra), comments...)
		if last.AfterExtra = nil; trailed {
			last.AfterExtra = hujson.Extra{}
		}
	}
	comments = joinComments(comments, gone.Value.AfterExtra)
	if len(comments) > 0 {
		o.AfterExtra = append(comments, o.AfterExtra...)
	}
}

// joinComments joins the parts that contain a comment. A line comment ends its line.
func joinComments(list ...hujson.Extra) hujson.Extra {
	var all hujson.Extra
	for _, x := range list {
		if len(bytes.TrimSpace(x)) > 0 {
			all = append(all, bytes.TrimRight(x, " \t")...)
			if !bytes.HasSuffix(all, []byte("\n")) && !bytes.HasSuffix(all, []byte("*/")) {
				all = append(all, '\n')
			}
		}
	}
	return all
}
