package mcpjson

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
)

// reader builds a Config from the tree of a file.
type reader struct {
	doc  *document
	spec *spec
	opts Options
	cfg  *Config

	guesses int // number of searches for similar names

	// The server being read:
	s    *Server
	at   string            // its path in the file
	set  map[string]string // the key that set each field
	word *node             // the transport in the file
	argv *node             // command, if it is a list
	args *node
	errs []*Error
}

// problem returns an Error about a place in the server being read.
func (r *reader) problem(offset int, field, format string, args ...any) *Error {
	e := r.doc.fail(offset, format, args...)
	e.Field = field
	if r.s != nil {
		e.Server = r.s.Name
	}
	return e
}

// fail reports a problem that makes the server, or outside of one the file, unusable.
func (r *reader) fail(n *node, field, format string, args ...any) *Error {
	e := r.problem(n.offset, field, format, args...)
	if len(r.errs) <= maxErrors {
		r.errs = append(r.errs, e)
	}
	return e
}

// maxWarnings bounds the warnings about one file.
const maxWarnings = 200

func (r *reader) warn(n *node, field, format string, args ...any) *Error {
	e := r.problem(n.offset, field, format, args...)
	if len(r.cfg.Warnings) < maxWarnings {
		r.cfg.Warnings = append(r.cfg.Warnings, e)
	}
	return e
}

// origin records where a field was written. key is its path below the server.
func (r *reader) origin(field, key string, n *node) {
	line, column := r.doc.place(n.offset)
	r.s.Origins[field] = Origin{File: r.doc.file, Line: line, Column: column, Key: r.at + "." + key}
}

// note adds an explanation to an origin.
func (r *reader) note(field, note string) {
	o := r.s.Origins[field]
	o.Note = note
	r.s.Origins[field] = o
}

// wrong reports a value of the wrong kind.
func (r *reader) wrong(n *node, field string, want kind) {
	r.fail(n, field, "found %s, want %s", n.describe(), want)
}

// absent reports whether a value counts as missing.
func (r *reader) absent(n *node) bool { return n.kind == null && !r.spec.strict }

func (r *reader) string(n *node, field string) string {
	if n.kind != text {
		r.wrong(n, field, text)
	}
	return n.text
}

func (r *reader) bool(n *node, field string) bool {
	if n.kind != boolean {
		r.wrong(n, field, boolean)
	}
	return n.text == "true"
}

// text reads a string that may contain placeholders.
func (r *reader) text(n *node, field, key string) Text {
	r.origin(field, key, n)
	if n.kind != text {
		r.wrong(n, key, text)
		return nil
	}
	switch {
	case strings.Contains(n.text, "\x00"):
		r.fail(n, key, "the value has a NUL")
	case len(n.text) > maxValue:
		r.fail(n, key, "the value has %d bytes, more than %d", len(n.text), maxValue)
		return nil
	}
	if x := r.spec.syntax; !x.braces {
		// The author probably meant a placeholder that other clients expand.
		if t, _ := (syntax{braces: true}).parse(n.text); len(t.Sources()) > 0 {
			r.warn(n, key, "it looks like a placeholder, but %s does not expand it; it is taken literally", r.spec.title)
		}
	}
	t, strange := r.spec.syntax.parse(n.text)
	for _, s := range strange {
		if r.spec.strict {
			r.fail(n, key, "unknown placeholder %q", s).Hint = "allowed are ${NAME}, ${NAME:-default} and ${scheme:name | …}"
		} else {
			r.warn(n, key, "unknown placeholder %q; it is taken literally", s)
		}
	}
	return t
}

// texts reads a list of strings.
func (r *reader) texts(n *node, field, key string) []Text {
	var list []Text
	for i, e := range r.list(n, key) {
		if e.kind == number || e.kind == boolean {
			e = r.asText(e, indexed(key, i))
		}
		list = append(list, r.text(e, indexed(field, i), indexed(key, i)))
	}
	return list
}

// asText accepts a number or a boolean for a string, in dialects that are not strict.
func (r *reader) asText(n *node, field string) *node {
	if r.spec.strict {
		return n
	}
	r.warn(n, field, "found %s instead of a string; it is taken as one", n.kind)
	return &node{kind: text, text: n.text, offset: n.offset}
}

// strings reads a list of strings without placeholders. The result of an empty list is
// not nil.
func (r *reader) strings(n *node, field, key string) []string {
	r.origin(field, key, n)
	list := []string{}
	for i, e := range r.list(n, key) {
		list = append(list, r.string(e, indexed(key, i)))
	}
	return list
}

// pairs reads an object of strings.
func (r *reader) pairs(n *node, field, key string) []Pair {
	var list []Pair
	for _, m := range r.entries(n, key) {
		v := m.value
		if r.absent(v) {
			continue
		}
		if v.kind == number || v.kind == boolean {
			v = r.asText(v, key+"."+m.name)
		}
		t := r.text(v, field+"."+m.name, key+"."+m.name)
		list = append(list, Pair{Name: m.name, Value: t, Secret: isSecret(m.name, t)})
	}
	return list
}

// maxTimeout bounds time-outs. A longer one is a wrong unit.
const maxTimeout = 7 * 24 * time.Hour

// duration reads a number of units.
func (r *reader) duration(n *node, field, key string, unit time.Duration) time.Duration {
	r.origin(field, key, n)
	if n.kind != number {
		r.wrong(n, key, number)
		return 0
	}
	f, err := strconv.ParseFloat(n.text, 64)
	if err != nil || f <= 0 || f*float64(unit) > float64(maxTimeout) {
		r.fail(n, key, "found %s, want a number of %ss above 0 and at most %v", clip(n.text), unitWord(unit), maxTimeout)
		return 0
	}
	r.note(field, "in "+unitWord(unit)+"s")
	return time.Duration(f * float64(unit)).Round(time.Microsecond)
}

func unitWord(unit time.Duration) string {
	if unit == time.Second {
		return "second"
	}
	return "millisecond"
}

// int reads an integer of at least low.
func (r *reader) int(n *node, field string, low, high int64) int64 {
	if n.kind != number {
		r.wrong(n, field, number)
		return 0
	}
	i, err := strconv.ParseInt(n.text, 10, 64)
	if err != nil || i < low || i > high {
		r.fail(n, field, "found %s, want a whole number from %d to %d", clip(n.text), low, high)
		return 0
	}
	return i
}

// once reports whether a field is still unset. It is an error if two keys set it.
func (r *reader) once(n *node, field, key string) bool {
	if first, ok := r.set[field]; ok {
		r.fail(n, key, "it has the same meaning as %q; only one of them is allowed", first)
		return false
	}
	r.set[field] = key
	return true
}

// maxItems bounds the lists and objects of a definition. Real ones have dozens of
// entries.
const maxItems = 1000

// list returns the elements of an array. It reports anything else, or a longer list,
// and then returns nil.
func (r *reader) list(n *node, key string) []*node {
	if n.kind != array {
		r.wrong(n, key, array)
	}
	if n.kind != array || r.tooMany(n, key) {
		return nil
	}
	return n.elems
}

// entries returns the members of an object. It reports anything else, or a larger
// object, and then returns nil.
func (r *reader) entries(n *node, key string) []member {
	if n.kind != object {
		r.wrong(n, key, object)
	}
	if n.kind != object || r.tooMany(n, key) {
		return nil
	}
	return n.members
}

// tooMany reports a list or object that is too large.
func (r *reader) tooMany(n *node, key string) bool {
	if count := max(len(n.elems), len(n.members)); count > maxItems {
		r.fail(n, key, "it has %d entries, more than %d", count, maxItems)
		return true
	}
	return false
}

// members iterates over an object whose keys must be known: f returns false for an
// unknown one.
func (r *reader) members(n *node, key string, known []string, f func(name string, v *node) bool) {
	for _, m := range r.entries(n, key) {
		if !f(m.name, m.value) {
			at := m.name
			if key != "" {
				at = key + "." + at
			}
			r.unknown(m, at, known)
		}
	}
}

// unknown reports an unknown key. Strict dialects refuse it. In others it may belong to
// a newer version of the client, unless it looks like a typo.
func (r *reader) unknown(m member, key string, known []string) {
	n := &node{offset: m.offset}
	near, hint := "", ""
	if r.guesses++; r.guesses <= maxWarnings {
		near = nearest.Of(m.name, known)
	}
	if near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	if r.spec.strict {
		if hint == "" {
			hint = "allowed are " + strings.Join(known, ", ")
		}
		r.fail(n, key, "the field is not known").Hint = hint
	} else if near != "" {
		r.warn(n, key, "the field is not known").Hint = hint
	}
}

// extra stores an unknown member.
func extra(list []Extra, name string, v *node) []Extra {
	return append(list, Extra{Key: name, Value: v.raw()})
}

// isSecret decides whether the value of a variable or header is marked as secret.
func isSecret(name string, value Text) bool {
	if redact.IsSecretName(name) {
		return true
	}
	for _, p := range value {
		if redact.IsKey(p.Literal) {
			return true
		}
	}
	return false
}
