// Package visible makes untrusted text safe to show: it escapes the characters that
// control a terminal, reorder or hide text, or that people cannot see but models read.
//
// The escapes are those of Go and JSON: \x1b, \u202e, \U000e0041. An escape cannot be
// told from the same characters in the original text, which does no harm.
package visible

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s on a single line of characters that everybody can see. It also escapes
// line breaks, tabs, private and unassigned characters, and all spaces other than the
// ASCII space. Use it for what a person decides on: names, commands, addresses.
func Line(s string) string {
	return escape(s, func(r rune) bool { return isHidden(r) || isJoiner(r) || !unicode.IsPrint(r) })
}

// Text returns s with its line breaks, tabs, spaces, and the joiners that emoji and some
// scripts need, and with all other hidden characters escaped.
func Text(s string) string { return escape(s, isHidden) }

// JSON returns a JSON document with the hidden characters in its strings escaped. The
// document keeps its meaning.
func JSON(document []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(document))
	for len(document) > 0 {
		r, n := utf8.DecodeRune(document)
		switch high, low := utf16.EncodeRune(r); {
		case !isHidden(r) || r < ' ' || n == 1 && r == utf8.RuneError:
			out.Write(document[:n])
		case high != unicode.ReplacementChar:
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		document = document[n:]
	}
	return out.Bytes()
}

// maxDepth bounds the nesting of a decoded JSON value.
const maxDepth = 100

// Schema returns a copy of a JSON schema, as decoded into any, with the hidden characters
// in its titles and descriptions escaped. ok is false if other strings or names in it
// have hidden characters: to escape these would change what the schema allows.
func Schema(schema any) (escaped any, ok bool) { return copySchema("", schema, 0) }

func copySchema(name string, v any, depth int) (any, bool) {
	if depth > maxDepth {
		return nil, false
	}
	ok := true
	switch v := v.(type) {
	case string:
		if name == "title" || name == "description" || name == "$comment" {
			return Text(v), true
		}
		return v, Text(v) == v
	case []any:
		list := make([]any, len(v))
		for i, one := range v {
			var fine bool
			list[i], fine = copySchema("", one, depth+1)
			ok = ok && fine
		}
		return list, ok
	case map[string]any:
		object := make(map[string]any, len(v))
		for key, one := range v {
			var fine bool
			object[key], fine = copySchema(key, one, depth+1)
			ok = ok && fine && Line(key) == key
		}
		return object, ok
	}
	return v, true
}

// IsPlain reports whether a line has no characters that [Line] escapes.
func IsPlain(s string) bool { return Line(s) == s }

func escape(s string, hidden func(rune) bool) string {
	if !strings.ContainsFunc(s, hidden) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !hidden(r):
			b.WriteString(s[i : i+n])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += n
	}
	return b.String()
}

// isHidden reports whether r controls a terminal, changes the order of text, or is not
// visible, apart from spaces and joiners.
func isHidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || isJoiner(r):
		return false
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Noncharacter_Code_Point, unicode.Variation_Selector):
		return true
	}
	switch r {
	case 0x034f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xffa0: // fillers that are letters or symbols to Unicode
		return true
	}
	// Unassigned characters that programs ignore, and tags, assigned or not.
	return r == 0x2065 || 0xfff0 <= r && r <= 0xfff8 || 0xe0000 <= r && r <= 0xe0fff
}

// isJoiner reports whether r shapes its neighbours in emoji and in scripts such as
// Persian.
func isJoiner(r rune) bool { return r == 0x200c || r == 0x200d || r == 0xfe0e || r == 0xfe0f }
