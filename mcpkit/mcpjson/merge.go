package mcpjson

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// Merge writes the servers of cfg into the file of a client. It changes servers with
// the same names, adds others, and preserves everything else, including comments and
// unknown members of changed servers. If existing is empty, it creates a new file.
//
// The error tells why existing cannot be read, or not edited in place. Losses are as in
// Export. Comments inside a replaced value, such as a list of arguments, are lost.
func Merge(existing []byte, cfg *Config, d Dialect) (data []byte, losses []Loss, err error) {
	spec := specs[d]
	if spec == nil {
		_, err := ParseDialect(string(d))
		return nil, nil, err
	}
	list, losses := entries(cfg, spec)
	doc, bad := newDocument("", existing)
	if bad != nil {
		return nil, nil, bad
	}
	if len(bytes.TrimSpace(doc.data)) == 0 {
		return newFile(cfg, spec, list), losses, nil
	}
	var before *node
	if spec.toml {
		before, bad = doc.parseTOML()
	} else {
		before, bad = doc.parseJSON(spec.comments)
	}
	if bad != nil {
		return nil, nil, bad
	}
	if before.kind != object {
		return nil, nil, doc.fail(before.offset, "found %s, want an object", before.describe())
	}
	if spec.dialect == V1 {
		if v := before.get("version"); v == nil || v.text != "1" {
			return nil, nil, doc.fail(before.offset, "the file does not use version 1 of the strict schema")
		}
	}
	if bad := doc.checkRoot(before, spec); bad != nil {
		return nil, nil, bad
	}
	after := before.clone()
	if bad := doc.apply(after, cfg, spec, list); bad != nil {
		return nil, nil, bad
	}
	edit := doc.editJSON
	if spec.toml {
		edit = doc.editTOML
	}
	if data, err = edit(before, after); err != nil {
		return nil, nil, err
	}
	mark := existing[:len(existing)-len(doc.data)]
	return append(slices.Clone(mark), data...), losses, nil
}

// checkRoot refuses a file that has its servers at the root of another dialect, since
// it would become ambiguous.
func (d *document) checkRoot(top *node, spec *spec) *Error {
	found, bare, err := detect(spec.file, spec.toml, top)
	if err != nil || len(top.members) == 0 {
		return nil // it has no servers yet
	}
	other := specs[found]
	if !bare && (slices.Equal(other.root, spec.root) || top.at(other.root...) == nil || len(top.at(other.root...).members) == 0) {
		return nil
	}
	e := d.fail(top.offset, "the file has its servers where %s has them, not where %s has", other.title, spec.title)
	if bare {
		e.Msg = "the file is nothing but servers, with no key above them"
	}
	e.Hint = "write the dialect that the file has, or to another file"
	return e
}

// newFile writes a file with nothing else.
func newFile(cfg *Config, spec *spec, list []entry) []byte {
	top := newObject()
	if spec.dialect == V1 {
		top.put("version", newInt(1))
	}
	if bad := new(document).apply(top, cfg, spec, list); bad != nil {
		panic("mcpjson: fill an empty file: " + bad.Error())
	}
	return spec.encode(top)
}

// apply changes the tree of a file to the intended content.
func (d *document) apply(top *node, cfg *Config, spec *spec, list []entry) *Error {
	if spec.dialect == VSCode {
		if bad := d.applyInputs(top, cfg.Inputs); bad != nil {
			return bad
		}
	}
	if spec.dialect == V1 {
		applyClient(top, cfg.Client)
	}
	if cfg.Dialect == spec.dialect && !spec.settings {
		addExtra(top, cfg.Extra)
	}
	servers := top
	for _, name := range spec.root {
		next := servers.get(name)
		if next == nil {
			next = newObject()
			servers.put(name, next)
		}
		if next.kind != object {
			return d.fail(next.offset, "%q is %s, want an object", name, next.describe())
		}
		servers = next
	}
	for _, e := range list {
		old := servers.get(e.name)
		if old == nil || old.kind != object {
			servers.set(e.name, e.node)
			continue
		}
		old.update(e.node, spec.fields)
	}
	if spec.dialect == Gemini {
		d.applySwitches(top, list)
	}
	return nil
}

// update changes an object to match want, and keeps unknown members.
func (n *node) update(want *node, known fields) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool {
		f, ok := known[m.name]
		return ok && f != nil && want.get(m.name) == nil
	})
	n.index = nil
	for _, m := range want.members {
		old := n.get(m.name)
		if isOAuth := m.name == "oauth" || m.name == "auth"; isOAuth && old != nil && old.kind == object && m.value.kind == object {
			keys := make(fields)
			for key := range oauthWords {
				keys[key] = oauthField
			}
			old.update(m.value, keys)
			continue
		}
		n.set(m.name, m.value)
	}
}

// set replaces or adds a member.
func (n *node) set(name string, v *node) {
	if i := n.find(name); i >= 0 {
		n.members[i].value = v
		return
	}
	n.put(name, v)
}

// clone copies the tree.
func (n *node) clone() *node {
	c := *n
	c.index = nil
	c.members = slices.Clone(n.members)
	for i, m := range c.members {
		c.members[i].value = m.value.clone()
	}
	c.elems = slices.Clone(n.elems)
	for i, e := range c.elems {
		c.elems[i] = e.clone()
	}
	return &c
}

func applyClient(top *node, c Client) {
	n := top.get("client")
	if n == nil {
		n = newObject()
	}
	if c.ProtocolVersion != "" {
		n.set("protocol_version", newString(c.ProtocolVersion))
	}
	if v, err := parseRaw(c.Capabilities); err == nil && c.Capabilities != nil {
		n.set("capabilities", v)
	}
	if c.Roots != nil {
		list := &node{kind: array}
		for _, r := range c.Roots {
			one := newObject()
			one.put("uri", newString(r.URI))
			if r.Name != "" {
				one.put("name", newString(r.Name))
			}
			list.elems = append(list.elems, one)
		}
		n.set("roots", list)
	}
	if len(n.members) > 0 {
		top.set("client", n)
	}
}

// applyInputs adds inputs, and replaces those with the same id.
func (d *document) applyInputs(top *node, inputs []Input) *Error {
	if len(inputs) == 0 {
		return nil
	}
	list := top.get("inputs")
	if list == nil {
		list = &node{kind: array}
		top.put("inputs", list)
	}
	if list.kind != array {
		return d.fail(list.offset, "\"inputs\" is %s, want a list", list.describe())
	}
	for _, in := range inputs {
		n := newObject()
		for _, m := range []struct{ key, value string }{{"id", in.ID}, {"type", in.Type}, {"description", in.Description}, {"default", in.Default}} {
			if m.value != "" {
				n.put(m.key, newString(m.value))
			}
		}
		if in.Password {
			n.put("password", newBool(true))
		}
		if in.Options != nil {
			n.put("options", newStrings(in.Options))
		}
		addExtra(n, in.Extra)
		i := slices.IndexFunc(list.elems, func(e *node) bool { id := e.get("id"); return id != nil && id.text == in.ID })
		if i < 0 {
			list.elems = append(list.elems, n)
			continue
		}
		if old := list.elems[i].get("options"); old != nil && in.Options != nil && sameOptions(old, in.Options) {
			n.set("options", old) // with labels, which Input lacks
		}
		for _, m := range n.members {
			list.elems[i].set(m.name, m.value)
		}
	}
	return nil
}

func sameOptions(n *node, options []string) bool {
	var have []string
	for _, e := range n.elems {
		if v := e.get("value"); v != nil {
			e = v
		}
		have = append(have, e.text)
	}
	return slices.Equal(have, options)
}

// applySwitches enables and disables servers in Gemini's lists.
func (d *document) applySwitches(top *node, list []entry) {
	mcp := top.get("mcp")
	if mcp == nil || mcp.kind != object {
		mcp = newObject()
	}
	edit := func(key string, f func(names []string) []string) {
		var names []string
		old := mcp.get(key)
		if old != nil && old.kind == array {
			for _, e := range old.elems {
				names = append(names, e.text)
			}
		}
		if after := f(slices.Clone(names)); !slices.Equal(names, after) {
			mcp.set(key, newStrings(after))
		}
	}
	for _, e := range list {
		edit("excluded", func(names []string) []string {
			at := slices.Index(names, e.name)
			switch {
			case e.disabled && at < 0:
				return append(names, e.name)
			case !e.disabled && at >= 0:
				return slices.Delete(names, at, at+1)
			}
			return names
		})
		if mcp.get("allowed") != nil && !e.disabled {
			edit("allowed", func(names []string) []string {
				if slices.Contains(names, e.name) {
					return names
				}
				return append(names, e.name)
			})
		}
	}
	if len(mcp.members) > 0 {
		top.set("mcp", mcp)
	}
}

// checkEdit parses the edited file and compares it with the intended content. A
// difference is a bug in this package, and then the file stays unchanged.
func checkEdit(data []byte, toml bool, want *node) error {
	doc, bad := newDocument("", data)
	var got *node
	if bad == nil && toml {
		got, bad = doc.parseTOML()
	} else if bad == nil {
		got, bad = doc.parseJSON(true)
	}
	if bad != nil {
		return fmt.Errorf("edit the file in place: the result is invalid: %w", bad)
	}
	if !got.equal(want) {
		return fmt.Errorf("edit the file in place: its layout does not allow that without loss; affected servers: %v", differentMembers(got, want))
	}
	return nil
}

// differentMembers returns the names of members in which two objects differ.
func differentMembers(a, b *node) []string {
	names := make(map[string]bool)
	for _, m := range append(slices.Clone(a.members), b.members...) {
		x, y := a.get(m.name), b.get(m.name)
		if x == nil || y == nil || !x.equal(y) {
			names[clip(m.name)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
