package mcpjson

import (
	"strconv"
	"strings"
)

// Text is a string of a file, taken apart into literal pieces and references
// but not expanded. What it expands to is never taken apart again.
type Text []Piece

// Piece is a literal, or a reference if Sources is not empty.
type Piece struct {
	Literal string `json:",omitempty"`

	// Sources are tried in order; the first that has a value that is not empty
	// wins. If all that are set are empty, the reference is empty; if none is
	// set, expanding it is an error.
	Sources []Source `json:",omitempty"`
}

// Source is one place that a value may come from.
type Source struct {
	Scheme Scheme
	Name   string
}

// Scheme is a kind of Source. Files may name others than those below; they need
// a function of that name in the Resolver.
type Scheme string

const (
	SchemeEnv      Scheme = "env"      // a variable of the environment
	SchemeValue    Scheme = "value"    // the name itself: a default
	SchemeInput    Scheme = "input"    // an answer of the user, by id
	SchemeDir      Scheme = "dir"      // one of the names Dir… below
	SchemeFile     Scheme = "file"     // the contents of a file
	SchemeCommand  Scheme = "command"  // what a command prints
	SchemeKeychain Scheme = "keychain" // an entry of the system's keyring
	SchemeOP       Scheme = "op"       // an entry of 1Password
)

// Names of SchemeDir.
const (
	DirRoot      = "root"      // the directory that the configuration is for
	DirRootName  = "rootName"  // its last element
	DirHome      = "home"      // the user's
	DirSeparator = "separator" // between elements of a path
)

// Literal makes a Text of a string without placeholders. An empty string makes
// an empty Text.
func Literal(s string) Text {
	if s == "" {
		return nil
	}
	return Text{{Literal: s}}
}

// Ref makes a Text that is one reference.
func Ref(sources ...Source) Text { return Text{{Sources: sources}} }

// Literal returns the string if the text has no references.
func (t Text) Literal() (s string, ok bool) {
	var b strings.Builder
	for _, p := range t {
		if len(p.Sources) > 0 {
			return "", false
		}
		b.WriteString(p.Literal)
	}
	return b.String(), true
}

// Sources returns all sources of all references, in order.
func (t Text) Sources() []Source {
	var all []Source
	for _, p := range t {
		all = append(all, p.Sources...)
	}
	return all
}

// String shows the text with its references in the form ${scheme:name | …}. It
// is for people: a literal that looks like a reference is not marked.
func (t Text) String() string {
	var b strings.Builder
	for _, p := range t {
		if len(p.Sources) == 0 {
			b.WriteString(p.Literal)
			continue
		}
		b.WriteString("${")
		for i, s := range p.Sources {
			if i > 0 {
				b.WriteString(" | ")
			}
			b.WriteString(s.String())
		}
		b.WriteString("}")
	}
	return b.String()
}

// String shows the source as scheme:name.
func (s Source) String() string { return string(s.Scheme) + ":" + s.Name }

// indexed is the path of an element of a list.
func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
