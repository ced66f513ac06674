package mcpjson

import (
	"strings"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// syntax describes the placeholders that a client expands.
type syntax struct {
	braces bool // ${VAR}, ${VAR:-default}, ${scheme:name | …}, and $env:VAR
	dollar bool // $VAR
	curly  bool // {env:VAR}, {file:path}

	// writes are the forms that the client itself expands. Reading accepts more.
	writes forms
}

// forms describes how a dialect writes references.
type forms struct {
	env      string // with %s for the name; empty if unsupported
	fallback bool   // ${VAR:-default}
	chain    bool   // ${scheme:name | …}, with any scheme
	input    bool   // ${input:id}
	command  bool   // ${command:id}
	file     bool   // {file:path}
	dirs     map[string]string
}

// dirNames are the names of directories in all clients.
var dirNames = map[string]string{
	"workspaceFolder": DirRoot, "workspaceRoot": DirRoot, "MCP_ROOT": DirRoot, "CLAUDE_PLUGIN_ROOT": DirRoot, "CLAUDE_PROJECT_DIR": DirRoot,
	"workspaceFolderBasename": DirRootName,
	"userHome":                DirHome,
	"pathSeparator":           DirSeparator, "/": DirSeparator,
}

var (
	variable   = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*`)
	withScheme = lazyregexp.New(`^[A-Za-z][A-Za-z0-9+._]*:`)
)

// parse parses a string. It returns the placeholders that it did not understand, which
// stay literal.
func (x syntax) parse(s string) (t Text, strange []string) {
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			t = append(t, Piece{Literal: literal.String()})
			literal.Reset()
		}
	}
	ends := matching(s)
	for i := 0; i < len(s); {
		sources, n, odd := x.reference(s[i:], ends[i]-i)
		switch {
		case n > 0 && len(sources) == 1 && sources[0].Scheme == SchemeValue:
			literal.WriteString(sources[0].Name)
		case n > 0:
			flush()
			t = append(t, Piece{Sources: sources})
		default:
			if odd && len(strange) < maxStrange {
				shown := s[i:]
				if ends[i] > 0 {
					shown = s[i : ends[i]+1]
				}
				strange = append(strange, clip(shown))
			}
			literal.WriteByte(s[i])
			n = 1
		}
		i += n
	}
	flush()
	return t, strange
}

// reference parses the placeholder at the beginning of s. n is its length; 0 if there
// is none. odd reports that it looked like one. end is the offset of its closing brace;
// not positive if there is none.
func (x syntax) reference(s string, end int) (sources []Source, n int, odd bool) {
	switch {
	case x.braces && strings.HasPrefix(s, "${"):
		if end <= 0 {
			return nil, 0, true
		}
		sources = x.alternatives(s[2:end])
		if sources == nil {
			return nil, 0, true
		}
		return sources, end + 1, false
	case x.braces && strings.HasPrefix(s, "$env:"):
		if name := variable().FindString(s[5:]); name != "" {
			return []Source{{SchemeEnv, name}}, 5 + len(name), false
		}
	case x.dollar && s[0] == '$':
		if name := variable().FindString(s[1:]); name != "" {
			return []Source{named(name)}, 1 + len(name), false
		}
	case x.curly && (strings.HasPrefix(s, "{env:") || strings.HasPrefix(s, "{file:")):
		end := strings.IndexByte(s[:min(len(s), maxCurly)], '}')
		scheme, name, _ := strings.Cut(s[1:max(end, 1)], ":")
		if name == "" {
			return nil, 0, true
		}
		return []Source{{Scheme(scheme), name}}, end + 1, false
	}
	return nil, 0, false
}

// maxStrange bounds the problems reported for one string.
const maxStrange = 3

// maxSources bounds the alternatives in one placeholder.
const maxSources = 16

// maxNested bounds the nesting of placeholders in defaults.
const maxNested = 4

// matching returns for each ${ the offset of its closing brace. It omits those that are
// nested too deeply or never closed.
func matching(s string) map[int]int {
	type opened struct{ at, height int }
	var open []opened
	ends := make(map[int]int)
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "${"):
			open = append(open, opened{at: i})
			i++
		case s[i] == '}' && len(open) > 0:
			last := open[len(open)-1]
			open = open[:len(open)-1]
			if len(open) > 0 {
				outer := &open[len(open)-1]
				outer.height = max(outer.height, last.height+1)
			}
			if last.height < maxNested {
				ends[last.at] = i
			}
		}
	}
	return ends
}

// maxCurly bounds the search for the end of {file:path}.
const maxCurly = 4096

// named returns the source for a plain name in braces.
func named(name string) Source {
	if dir, ok := dirNames[name]; ok {
		return Source{SchemeDir, dir}
	}
	return Source{SchemeEnv, name}
}

// alternatives parses the content of braces; nil if it is not a placeholder.
func (x syntax) alternatives(s string) []Source {
	if name := variable().FindString(s); name != "" && strings.HasPrefix(s[len(name):], ":-") {
		return x.withDefault(named(name), s[len(name)+2:])
	}
	var sources []Source
	parts := strings.SplitN(s, " | ", maxSources+1)
	if len(parts) > maxSources {
		return nil
	}
	for _, part := range parts {
		part = strings.TrimSpace(part)
		switch scheme := withScheme().FindString(part); {
		case scheme == "env:":
			name, fallback, ok := strings.Cut(part[len(scheme):], ":-")
			if variable().FindString(name) != name || name == "" {
				return nil
			}
			if ok {
				return append(sources, x.withDefault(Source{SchemeEnv, name}, fallback)...)
			}
			sources = append(sources, Source{SchemeEnv, name})
		case scheme == "dir:" && !knownDir(part[len(scheme):]):
			return nil
		case scheme != "":
			sources = append(sources, Source{Scheme(strings.TrimSuffix(scheme, ":")), part[len(scheme):]})
		case part == "/" || part != "" && variable().FindString(part) == part:
			sources = append(sources, named(part))
		default:
			return nil
		}
	}
	return sources
}

func knownDir(name string) bool {
	return name == DirRoot || name == DirRootName || name == DirHome || name == DirSeparator
}

// withDefault parses the text after ":-": a literal, or another placeholder.
func (x syntax) withDefault(first Source, fallback string) []Source {
	if first.Scheme == SchemeDir {
		return []Source{first} // it always has a value
	}
	t, _ := x.parse(fallback)
	switch {
	case len(t) == 0:
		return []Source{first, {SchemeValue, ""}}
	case len(t) == 1 && len(t[0].Sources) == 0:
		return []Source{first, {SchemeValue, t[0].Literal}}
	case len(t) == 1:
		return append([]Source{first}, t[0].Sources...)
	}
	return nil
}

// likeness tells how exactly a dialect can express a text.
type likeness int

const (
	exact likeness = iota
	near           // the result is similar
	none           // the result has another meaning
)

// format writes a text as exactly as the client can read it, and as this package reads
// it.
func (x syntax) format(t Text) (s string, like likeness) {
	write := func(escape bool) string {
		var b strings.Builder
		for _, p := range t {
			switch {
			case len(p.Sources) > 0:
				r, l := x.formatRef(p.Sources)
				b.WriteString(r)
				like = max(like, l)
			case escape:
				b.WriteString(strings.ReplaceAll(p.Literal, "$", "${value:$}"))
			default:
				b.WriteString(p.Literal)
			}
		}
		return b.String()
	}
	s = write(false)
	if x.reads(s, t) {
		return s, like
	}
	if x.writes.chain {
		if s := write(true); x.reads(s, t) {
			return s, like
		}
	}
	return s, max(like, near)
}

// reads reports whether s parses as t.
func (x syntax) reads(s string, t Text) bool {
	back, strange := x.parse(s)
	return len(strange) == 0 && back.equal(t)
}

// equal compares two texts, with adjacent literals joined.
func (t Text) equal(o Text) bool {
	a, b := t.joined(), o.joined()
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Literal != b[i].Literal || len(a[i].Sources) != len(b[i].Sources) {
			return false
		}
		for j := range a[i].Sources {
			if a[i].Sources[j] != b[i].Sources[j] {
				return false
			}
		}
	}
	return true
}

// joined returns the text without empty pieces and with adjacent literals joined.
func (t Text) joined() Text {
	var out Text
	for _, p := range t {
		switch last := len(out) - 1; {
		case len(p.Sources) > 0:
			out = append(out, p)
		case p.Literal == "":
		case last >= 0 && len(out[last].Sources) == 0:
			out[last].Literal += p.Literal
		default:
			out = append(out, p)
		}
	}
	return out
}

// formatRef writes one reference.
func (x syntax) formatRef(sources []Source) (string, likeness) {
	w := x.writes
	first := sources[0]
	plain := first.Scheme == SchemeEnv && w.env != "" && dirNames[first.Name] == ""
	switch {
	case len(sources) > 1:
	case plain:
		return strings.ReplaceAll(w.env, "%s", first.Name), exact
	case first.Scheme == SchemeDir && w.dirs[first.Name] != "":
		return w.dirs[first.Name], exact
	case first.Scheme == SchemeInput && w.input, first.Scheme == SchemeCommand && w.command:
		return "${" + first.String() + "}", exact
	case first.Scheme == SchemeFile && w.file:
		return "{file:" + first.Name + "}", exact
	}
	if w.fallback && len(sources) == 2 && plain && sources[1].Scheme == SchemeValue {
		return "${" + first.Name + ":-" + sources[1].Name + "}", exact
	}
	if w.chain {
		if w.dirs == nil && slicesHas(sources, SchemeDir) {
			return Ref(sources...).String(), near
		}
		return Ref(sources...).String(), exact
	}
	// Approximate: omit the alternatives, or write what the name of a directory expands
	// to in a server started in the root.
	switch {
	case plain:
		return strings.ReplaceAll(w.env, "%s", first.Name), near
	case first == Source{SchemeDir, DirRoot}:
		return ".", near
	case first == Source{SchemeDir, DirSeparator}:
		return "/", near
	case first == Source{SchemeDir, DirHome} && w.env != "":
		return strings.ReplaceAll(w.env, "%s", "HOME"), near
	}
	return Ref(sources...).String(), none
}

func slicesHas(sources []Source, scheme Scheme) bool {
	for _, s := range sources {
		if s.Scheme == scheme {
			return true
		}
	}
	return false
}
