package approval

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// maxName bounds the characters of a name in a question. A longer name is shown by its
	// first and last characters and its SHA-256.
	maxName  = 80
	nameHead = 48
	nameTail = 24
)

// rightToLeft are the characters of scripts that are written from right to left. They change the
// order in which the characters around them appear.
var rightToLeft = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x0590, Hi: 0x08ff, Stride: 1}, {Lo: 0xfb1d, Hi: 0xfdff, Stride: 1}, {Lo: 0xfe70, Hi: 0xfeff, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x10800, Hi: 0x10fff, Stride: 1}, {Lo: 0x1e800, Hi: 0x1efff, Stride: 1}},
}

func isRightToLeft(r rune) bool { return unicode.Is(rightToLeft, r) }

// A nameKind says which names are shown without quotes, and whether they may have letters beyond
// ASCII.
type nameKind struct {
	bare  string // the characters besides letters and digits that need no quotes
	ascii bool   // other letters are escaped
}

var (
	boxName        = nameKind{bare: "_-."}
	serverName     = nameKind{bare: "_-"} // a dot would look like that before the tool
	toolName       = nameKind{bare: "_-./"}
	declaredName   = nameKind{bare: "_-.$"}              // an argument in the tool's schema
	undeclaredName = nameKind{bare: "_-.$", ascii: true} // an argument that the program may have invented
)

// show returns a name on one line so that no two names look the same, and whether that is the whole
// name. A name that could be taken for something else is quoted, and characters that look like
// others, or change how others look, are escaped as in JSON.
func (k nameKind) show(s string) (text string, whole bool) {
	mixed := strings.ContainsFunc(s, func(r rune) bool { return r < utf8.RuneSelf && unicode.IsLetter(r) })
	quoted := s == ""
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			quoted = true
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"): // not UTF-8
			quoted = true
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < utf8.RuneSelf && unicode.IsPrint(r):
			quoted = quoted || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(k.bare, r)
			b.WriteRune(r)
		case !k.ascii && (r <= unicode.MaxLatin1 || !mixed) && visible.IsPlain(string(r)) && !unicode.IsMark(r) && !isRightToLeft(r):
			quoted = quoted || !unicode.IsLetter(r) && !unicode.IsDigit(r)
			b.WriteRune(r)
		default:
			quoted = true
			b.WriteString(escaped(r))
		}
	}
	text = withoutMarkup(b.String())
	whole = true
	if r := []rune(text); len(r) > maxName {
		text, whole = string(r[:nameHead])+"…"+string(r[len(r)-nameTail:]), false
	}
	if quoted {
		text = `"` + text + `"`
	}
	if !whole {
		sum := sha256.Sum256([]byte(s))
		text += fmt.Sprintf(" (%d characters, SHA-256 %x)", utf8.RuneCountInString(s), sum[:16])
	}
	return text, whole
}

// escaped returns a character as an escape of JSON or Go.
func escaped(r rune) string {
	if r > 0xffff {
		return fmt.Sprintf(`\U%08x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// withoutMarkup returns text in which no Markdown link or image, HTML tag or character reference
// begins, for clients that render the question. It replaces the character that would begin one by
// its escape in JSON. Addresses that clients recognize in plain text show where they lead, and
// stay. So do [x] and [x][y], which are links only if a line of the question begins with [x]: or
// [y]:, and none does.
func withoutMarkup(s string) string {
	var b strings.Builder
	from := 0
	for i := range len(s) {
		if beginsMarkup(s, i) {
			b.WriteString(s[from:i])
			b.WriteString(escaped(rune(s[i])))
			from = i + 1
		}
	}
	b.WriteString(s[from:])
	return b.String()
}

// maxReference bounds a character reference: the longest name has 31 letters.
const maxReference = 40

func beginsMarkup(s string, i int) bool {
	switch s[i] {
	case '<': // also of <https://...>
		return i+1 == len(s) || s[i+1] != ' '
	case '(': // the address of a link or an image
		return i > 0 && s[i-1] == ']'
	case '[': // the text of an image
		return i > 0 && s[i-1] == '!'
	case '&':
		for _, c := range []byte(s[i+1 : min(len(s), i+maxReference)]) {
			if c == ';' {
				return s[i+1] != ';'
			}
			if c != '#' && !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z') {
				return false
			}
		}
	}
	return false
}

// maxCrowd bounds runs of spaces, which could push the rest of a value to what looks like a line of
// its own, and of combining marks, which could cover other lines.
const maxCrowd = 8

// withoutCrowds returns text with longer runs of spaces or combining marks replaced by their length.
func withoutCrowds(s string) string {
	var b strings.Builder
	from, begin, n, last := 0, 0, 0, ""
	flush := func(end int) {
		if n > maxCrowd {
			fmt.Fprintf(&b, "%s … %d %s … ", s[from:begin], n, last)
			from = end
		}
		n = 0
	}
	for i, r := range s {
		kind := ""
		switch {
		case r == ' ':
			kind = "spaces"
		case r >= utf8.RuneSelf && unicode.In(r, unicode.Mn, unicode.Me):
			kind = "combining marks"
		}
		if kind != last {
			flush(i)
			begin, last = i, kind
		}
		if kind != "" {
			n++
		}
	}
	flush(len(s))
	b.WriteString(s[from:])
	return b.String()
}

// breakLines splits the text of a JSON value after the escaped line breaks in its strings,
// at most most times. The result contains all characters of the text.
func breakLines(text string, most int) (lines []string) {
	from := 0
	for i := 0; i < len(text)-1 && len(lines) < most; i++ {
		if text[i] != '\\' {
			continue
		}
		i++
		if text[i] == 'n' && i+1 < len(text) && text[i+1] != '"' {
			lines = append(lines, text[from:i+1])
			from = i + 1
		}
	}
	return append(lines, text[from:])
}

// excerpt returns the beginning and the end of a text of more than most characters, and
// whether that is all of it.
func excerpt(s string, most int) (text string, whole bool) {
	n := utf8.RuneCountInString(s)
	if n <= most {
		return s, true
	}
	r := []rune(s)
	tail := most / 3
	head := most - tail
	return fmt.Sprintf("%s … %d characters NOT SHOWN … %s", string(r[:head]), n-most, string(r[n-tail:])), false
}
