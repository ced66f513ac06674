package mcpjson

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
)

// reader makes a Config of a file's tree.
type reader struct {
	doc  *document
	spec *spec
	opts Options
	cfg  *Config

	guesses int // how often it was asked what could be meant

	// Of the server being read.
	s    *Server
	at   string            // its path in the file
	set  map[string]string // which key said what a field is
	word *node             // what the file calls the transport
	argv *node             // command, if it is a list
	args *node
	errs []*Error
}

// complain makes an Error about a place in the server being read.
func (r *reader) complain(offset int, field, format string, args ...any) *Error {
	e := r.doc.fail(offset, format, args...)
	e.Field = field
	if r.s != nil {
		e.Server = r.s.Name
	}
	return e
}

// fail says that the server, or outside of one the file, cannot be used.
func (r *reader) fail(n *node, field, format string, args ...any) *Error {
	e := r.complain(n.offset, field, format, args...)
	if len(r.errs) <= maxErrors {
		r.errs = append(r.errs, e)
	}
	return e
}

// maxWarnings bounds what is said about a file that can be used.
const maxWarnings = 200

func (r *reader) warn(n *node, field, format string, args ...any) *Error {
	e := r.complain(n.offset, field, format, args...)
	if len(r.cfg.Warnings) < maxWarnings {
		r.cfg.Warnings = append(r.cfg.Warnings, e)
	}
	return e
}

// origin remembers where a field was written. key is its path below the server.
func (r *reader) origin(field, key string, n *node) {
	line, column := r.doc.place(n.offset)
	r.s.Origins[field] = Origin{File: r.doc.file, Line: line, Column: column, Key: r.at + "." + key}
}

// note adds to an origin how the value came about.
func (r *reader) note(field, note string) {
	o := r.s.Origins[field]
	o.Note = note
	r.s.Origins[field] = o
}

// wrong complains of a value of the wrong kind.
func (r *reader) wrong(n *node, field string, want kind) {
	r.fail(n, field, "found %s, want %s", n.describe(), want)
}

// absent says that a value counts as not written.
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

// text reads a string that may hold placeholders.
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
		// What other clients would expand was probably meant to be.
		if t, _ := (syntax{braces: true}).parse(n.text); len(t.Sources()) > 0 {
			r.warn(n, key, "it looks like a placeholder, but %s does not expand it; it is taken as it stands", r.spec.title)
		}
	}
	t, strange := r.spec.syntax.parse(n.text)
	for _, s := range strange {
		if r.spec.strict {
			r.fail(n, key, "%q is no placeholder that is known", s).Hint = "allowed are ${NAME}, ${NAME:-default} and ${scheme:name | …}"
		} else {
			r.warn(n, key, "%q is no placeholder that is known; it is taken as it stands", s)
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

// asText takes a number or a switch for the string that was meant, where a
// dialect is not strict.
func (r *reader) asText(n *node, field string) *node {
	if r.spec.strict {
		return n
	}
	r.warn(n, field, "found %s where a string belongs; it is taken as one", n.kind)
	return &node{kind: text, text: n.text, offset: n.offset}
}

// strings reads a list of strings without placeholders. Not nil if there is one.
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

// maxTimeout bounds time-outs: a longer one is a mistake of units.
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

// int reads a whole number of at least low.
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

// once reports whether a field is still unset, and complains if two keys set it.
func (r *reader) once(n *node, field, key string) bool {
	if first, ok := r.set[field]; ok {
		r.fail(n, key, "it says the same as %q; only one of them may be there", first)
		return false
	}
	r.set[field] = key
	return true
}

// maxItems bounds the lists and objects of a definition. People have dozens.
const maxItems = 1000

// list are the elements of an array. It complains of what is no array, or too
// long, and has none of its elements.
func (r *reader) list(n *node, key string) []*node {
	if n.kind != array {
		r.wrong(n, key, array)
	}
	if n.kind != array || r.tooMany(n, key) {
		return nil
	}
	return n.elems
}

// entries are the members of an object. It complains of what is no object, or too
// long, and has none of its members.
func (r *reader) entries(n *node, key string) []member {
	if n.kind != object {
		r.wrong(n, key, object)
	}
	if n.kind != object || r.tooMany(n, key) {
		return nil
	}
	return n.members
}

// tooMany complains of a list or an object that is longer than any that is
// meant.
func (r *reader) tooMany(n *node, key string) bool {
	if count := max(len(n.elems), len(n.members)); count > maxItems {
		r.fail(n, key, "it has %d entries, more than %d", count, maxItems)
		return true
	}
	return false
}

// members walks an object whose keys must be known: f returns false for one
// that is not.
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

// unknown complains of a key: strict dialects refuse it, in others it may be
// from a newer version of the client, unless it looks like a slip.
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

// extra keeps what is not known.
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
