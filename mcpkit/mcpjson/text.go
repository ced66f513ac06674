package mcpjson

import (
	"strconv"
	"strings"
)

// Text is a string of a file, parsed into literals and references but not expanded.
// Expanded values are not parsed again.
type Text []Piece

// Piece is a literal, or a reference if Sources is not empty.
type Piece struct {
	Literal string `json:",omitempty"`

	// Sources are tried in order; the first with a value that is not empty is used. If
	// all values are empty, the reference is empty. If no source has a value, expanding
	// it is an error.
	Sources []Source `json:",omitempty"`
}

// Source is a source of a value.
type Source struct {
	Scheme Scheme
	Name   string
}

// Scheme is the kind of a Source. Files may use other schemes, which need a function in
// the Resolver.
type Scheme string

const (
	SchemeEnv      Scheme = "env"      // a variable of the environment
	SchemeValue    Scheme = "value"    // the name itself, as a default
	SchemeInput    Scheme = "input"    // an answer of the user, by id
	SchemeDir      Scheme = "dir"      // one of the constants Dir…
	SchemeFile     Scheme = "file"     // the contents of a file
	SchemeCommand  Scheme = "command"  // the output of a command
	SchemeKeychain Scheme = "keychain" // an entry of the system's keyring
	SchemeOP       Scheme = "op"       // an entry of 1Password
)

// Names for SchemeDir.
const (
	DirRoot      = "root"      // the directory that the configuration is for
	DirRootName  = "rootName"  // its last element
	DirHome      = "home"      // the user's home directory
	DirSeparator = "separator" // the separator of path elements
)

// Literal returns a Text without references. An empty string yields an empty Text.
func Literal(s string) Text {
	if s == "" {
		return nil
	}
	return Text{{Literal: s}}
}

// Ref returns a Text of one reference.
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

// String returns the text with references in the form ${scheme:name | …}, for display:
// a literal that looks like a reference is not marked.
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

// String returns the source as scheme:name.
func (s Source) String() string { return string(s.Scheme) + ":" + s.Name }

// indexed returns the path of a list element.
func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
