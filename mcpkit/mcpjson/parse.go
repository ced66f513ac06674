package mcpjson

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// parse parses a file. next is the path of the file that it includes for its servers;
// the Config is nil then.
func parse(o Options, file string, data []byte) (cfg *Config, next string, err error) {
	doc, bad := newDocument(file, data)
	if bad != nil {
		return nil, "", bad
	}
	if o.Dialect != Auto && specs[o.Dialect] == nil {
		_, err := ParseDialect(string(o.Dialect))
		return nil, "", err
	}
	var top *node
	toml := isTOML(o, file)
	if toml {
		top, bad = doc.parseTOML()
	} else {
		top, bad = doc.parseJSON(o.Dialect == Auto || specs[o.Dialect].comments)
	}
	if bad != nil {
		return nil, "", bad
	}
	r := &reader{doc: doc, opts: o, cfg: &Config{Path: file}}
	var bare bool
	if r.spec, bare, bad = doc.choose(o, file, toml, top); bad != nil {
		return nil, "", bad
	}
	r.cfg.Dialect = r.spec.dialect
	if to := top.get("mcpServers"); to != nil && to.kind == text {
		if strings.TrimSpace(to.text) == "" {
			return nil, "", doc.fail(to.offset, "mcpServers is empty; want servers, or the path of the file that they are in")
		}
		return nil, to.text, nil
	}
	return r.file(top, bare)
}

// choose determines the dialect.
func (d *document) choose(o Options, file string, toml bool, top *node) (*spec, bool, *Error) {
	found, bare, err := detect(file, toml, top)
	plain := true
	if found == SEP || found == V1 {
		_, bad := d.parseJSON(false)
		plain = bad == nil
		if !plain && found == V1 && o.Dialect == Auto {
			return nil, false, bad
		}
	}
	switch {
	case o.Dialect == Auto && err != nil:
		e := d.fail(top.offset, "")
		e.Err = err
		return nil, false, e
	case o.Dialect == Auto && found == SEP && !plain:
		// The portable format has no comments.
		return specs[ClaudeCode], bare, nil
	case o.Dialect == Auto:
		return specs[found], bare, nil
	}
	s := specs[o.Dialect]
	if top.kind != object {
		return nil, false, d.fail(top.offset, "found %s, want an object", top.describe())
	}
	missing := top.at(s.root...) == nil && len(top.members) > 0 && !s.settings
	if missing && bare && slices.Equal(s.root, []string{"mcpServers"}) {
		return s, true, nil
	}
	if missing {
		e := d.fail(top.offset, "there is no %q, which is where %s has its servers", strings.Join(s.root, "."), s.title)
		if err == nil {
			e.Hint = "it reads like a file of the dialect " + string(found)
		}
		return nil, false, e
	}
	return s, false, nil
}

// file reads the servers and the members beside them.
func (r *reader) file(top *node, bare bool) (*Config, string, error) {
	servers := top.at(r.spec.root...)
	if bare {
		servers = top
		one := *r.spec
		one.root = nil
		r.spec = &one
	} else {
		r.beside(top)
	}
	failed := r.errs
	all := &node{kind: object}
	for _, n := range append([]*node{servers}, r.ofProject(top)...) {
		if n == nil || n.kind == null {
			continue
		}
		if n.kind != object {
			failed = append(failed, r.doc.fail(n.offset, "the servers are %s, want an object", n.describe()))
			continue
		}
		all.members = append(all.members, n.members...)
	}
	if len(all.members) > maxServers {
		failed = append(failed, r.doc.fail(all.members[maxServers].offset, "there are %d servers, more than %d", len(all.members), maxServers))
		all.members = nil
	}
	for _, m := range all.members {
		if r.isSwitch(m.value) {
			continue
		}
		s := r.server(m)
		switch {
		case s != nil && r.cfg.Server(s.Name) != nil: // the project's server overrides the user's
			i := slices.IndexFunc(r.cfg.Servers, func(o *Server) bool { return o.Name == s.Name })
			r.cfg.Servers[i] = s
		case s != nil:
			r.cfg.Servers = append(r.cfg.Servers, s)
		case r.opts.Import:
			for _, e := range r.errs {
				e.Hint = strings.TrimPrefix(e.Hint+"; the server is left out", "; ")
			}
			r.cfg.Warnings = append(r.cfg.Warnings, r.errs...)
		default:
			failed = append(failed, r.errs...)
		}
	}
	r.switches(top)
	r.ampRules(top)
	if len(failed) > 0 {
		slices.SortStableFunc(failed, func(a, b *Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, "", join(failed)
	}
	return r.cfg, "", nil
}

// ofProject returns the servers that Claude Code stores for one directory only.
func (r *reader) ofProject(top *node) []*node {
	if filepath.Base(r.doc.file) != ".claude.json" {
		return nil
	}
	if n := top.at("projects", r.opts.Root, "mcpServers"); n != nil {
		return []*node{n}
	}
	return nil
}

// isSwitch recognizes an entry that only enables a server defined elsewhere, in
// OpenCode and in Zed.
func (r *reader) isSwitch(n *node) bool {
	if r.spec.dialect == Zed { // the extension defines the program
		return n.kind == object && n.get("command") == nil && n.get("url") == nil
	}
	return (r.spec.dialect == OpenCode || r.spec.dialect == OpenCode2) && len(n.members) == 1 && n.get("enabled") != nil
}

// beside reads the members beside the servers.
func (r *reader) beside(top *node) {
	known := []string{r.spec.root[0], "$schema"}
	switch r.spec.dialect {
	case V1:
		known = append(known, "version", "client")
		r.version(top)
		r.client(top.get("client"))
	case VSCode:
		known = append(known, "inputs")
	}
	if r.spec.settings || filepath.Base(r.doc.file) == ".claude.json" || r.tooMany(top, "") {
		return
	}
	for _, m := range top.members {
		switch {
		case m.name == "inputs" && !r.spec.strict:
			r.inputs(m.value)
		case slices.Contains(known, m.name) && m.name != "$schema":
		default:
			if m.name != "$schema" {
				r.unknown(m, m.name, known)
			}
			if !r.spec.strict || m.name == "$schema" {
				r.cfg.Extra = extra(r.cfg.Extra, m.name, m.value)
			}
		}
	}
}

// version checks the version of the strict schema.
func (r *reader) version(top *node) {
	v := top.get("version")
	switch {
	case v == nil:
		r.fail(top, "version", "it is missing").Hint = "write \"version\": 1"
	case v.kind != number || v.text != "1":
		found := v.describe()
		if v.kind == number {
			found = clip(v.text)
		}
		r.fail(v, "version", "found %s; the only version is 1", found)
	}
}

func (r *reader) client(n *node) {
	if n == nil {
		return
	}
	c := &r.cfg.Client
	r.members(n, "client", []string{"protocol_version", "capabilities", "roots"}, func(name string, v *node) bool {
		at := "client." + name
		switch name {
		case "protocol_version":
			if c.ProtocolVersion = r.string(v, at); strings.TrimSpace(c.ProtocolVersion) == "" && v.kind == text {
				r.fail(v, at, "it is empty").Hint = "leave it out for the newest"
			}
		case "capabilities":
			if v.kind != object {
				r.wrong(v, at, object)
			}
			c.Capabilities = v.raw()
		case "roots":
			c.Roots = r.roots(v, at)
		default:
			return false
		}
		return true
	})
}

// inputs reads the inputs of VS Code.
func (r *reader) inputs(n *node) {
	known := []string{"id", "type", "description", "default", "password", "options"}
	for i, e := range r.list(n, "inputs") {
		var in Input
		at := indexed("inputs", i)
		r.members(e, at, known, func(name string, v *node) bool {
			switch at := at + "." + name; name {
			case "id":
				in.ID = r.string(v, at)
			case "type":
				in.Type = r.string(v, at)
			case "description":
				in.Description = r.string(v, at)
			case "default":
				in.Default = r.string(v, at)
			case "password":
				in.Password = r.bool(v, at)
			case "options":
				r.options(&in, v, at)
			default:
				in.Extra = extra(in.Extra, name, v)
				return false
			}
			return true
		})
		switch {
		case e.kind != object:
		case in.ID == "":
			r.fail(e, at+".id", "it is missing or empty")
		case slices.ContainsFunc(r.cfg.Inputs, func(o Input) bool { return o.ID == in.ID }):
			r.fail(e, at+".id", "there is another input with the id %q", clip(in.ID))
		default:
			r.cfg.Inputs = append(r.cfg.Inputs, in)
		}
	}
}

// options reads strings, or objects with a label and a value.
func (r *reader) options(in *Input, n *node, at string) {
	in.Options = []string{}
	for i, e := range r.list(n, at) {
		if v := e.get("value"); v != nil {
			e = v
		}
		in.Options = append(in.Options, r.string(e, indexed(at, i)))
	}
}

// ampRules denies the tools disabled in Amp as mcp__SERVER__TOOL, and warns that its
// rules about servers are not applied.
func (r *reader) ampRules(top *node) {
	if r.spec.dialect != Amp {
		return
	}
	if n := top.get("amp.mcpPermissions"); n != nil && len(n.elems) > 0 {
		r.warn(n, "amp.mcpPermissions", "its rules about which servers may be used are not applied").Hint = "leave out the servers that it rejects"
	}
	disabled := top.get("amp.tools.disable")
	if disabled == nil {
		return
	}
	for _, s := range r.cfg.Servers {
		for _, e := range disabled.elems {
			if tool := ampTool(e.text, s.Name); e.kind == text && tool != "" {
				s.Tools.Deny = append(s.Tools.Deny, tool)
			}
		}
		if len(s.Tools.Deny) > 0 && s.Origins["tools.deny"].Line == 0 {
			line, column := r.doc.place(disabled.offset)
			s.Origins["tools.deny"] = Origin{File: s.File, Line: line, Column: column, Key: "amp.tools.disable"}
		}
	}
}

// ampTool returns the tools of a server, as a pattern, that an entry of
// amp.tools.disable names; "" if it names none. Patterns in the entry may span servers.
func ampTool(entry, server string) string {
	if entry == "*" {
		return "*"
	}
	entry, ok := strings.CutPrefix(entry, "mcp__")
	if !ok {
		return ""
	}
	if tool, ok := strings.CutPrefix(entry, server+"__"); ok {
		return tool
	}
	of, tool, ok := strings.Cut(entry, "__")
	if !ok {
		tool = "*"
	}
	if match, _ := path.Match(of, server); match && strings.Contains(of, "*") {
		return tool
	}
	return ""
}

// switches applies the lists with which Gemini disables servers.
func (r *reader) switches(top *node) {
	if r.spec.dialect != Gemini {
		return
	}
	allowed, excluded := top.at("mcp", "allowed"), top.at("mcp", "excluded")
	lists := func(n *node, name string) *node {
		for _, e := range n.elems {
			if e.kind == text && e.text == name {
				return e
			}
		}
		return nil
	}
	for _, s := range r.cfg.Servers {
		by, key := (*node)(nil), "mcp.excluded"
		if excluded != nil {
			by = lists(excluded, s.Name)
		}
		if by == nil && allowed != nil && lists(allowed, s.Name) == nil {
			by, key = allowed, "mcp.allowed"
		}
		if by != nil {
			line, column := r.doc.place(by.offset)
			s.Disabled = true
			s.Origins["disabled"] = Origin{File: s.File, Line: line, Column: column, Key: key}
		}
	}
}
