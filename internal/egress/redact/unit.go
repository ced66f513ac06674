package redact

import (
	"bytes"
	"unicode/utf8"
)

// maxUnit is the length of the longest escape that next decodes, such as &#0000043;.
const maxUnit = 10

// escapes are kinds of escapes, a set of bits.
type escapes uint8

const (
	inURL  escapes = 1 << iota // %41
	inJSON                     // \u0041, and those of most programming languages
	inHTML                     // &#65;
)

// introduces are the kinds of the escapes that begin with a byte.
var introduces = [256]escapes{'%': inURL, '\\': inJSON, '&': inHTML}

// A unit is a byte of a text, or an escape that stands for one character. Which units a text has
// depends on the text and the kinds of escapes alone.
type unit struct {
	size    int               // bytes of the text
	decoded [utf8.UTFMax]byte // what it stands for
	n       int               // bytes of decoded
}

// bytes returns what the unit stands for.
func (u *unit) bytes() []byte { return u.decoded[:u.n] }

func (u *unit) setByte(size int, c byte) { u.size, u.n, u.decoded[0] = size, 1, c }
func (u *unit) setRune(size int, r rune) { u.size, u.n = size, utf8.EncodeRune(u.decoded[:], r) }

// isLineEnd reports whether the unit stands for an end of a line, or a part of one.
func (u *unit) isLineEnd() bool { return u.n == 1 && (u.decoded[0] == '\r' || u.decoded[0] == '\n') }

// next sets u to the first unit of p, which is not empty. more reports that p may be the beginning
// of an escape of one of the kinds; then u is its first byte.
func (u *unit) next(p []byte, kinds escapes) (more bool) {
	u.setByte(1, p[0])
	switch introduces[p[0]] & kinds {
	case inURL:
		code, n, ok := digits(p[1:], 2, 16)
		if ok && n == 2 {
			u.setByte(3, byte(code))
		}
		return ok && n < 2
	case inJSON:
		return u.nextBackslash(p)
	case inHTML:
		return u.nextReference(p)
	}
	return false
}

// nextBackslash is next for an escape of JSON and most programming languages.
func (u *unit) nextBackslash(p []byte) (more bool) {
	if len(p) < 2 {
		return true
	}
	length := 2
	switch c := p[1]; c {
	case '"', '\'', '\\', '/':
		u.setByte(2, c)
		return false
	case 'b', 'f', 'n', 'r', 't':
		u.setByte(2, "\b\f\n\r\t"[bytes.IndexByte([]byte("bfnrt"), c)])
		return false
	case 'u':
		length = 4
	case 'x':
	default:
		return false
	}
	code, n, ok := digits(p[2:], length, 16)
	switch {
	case !ok:
		return false
	case n < length:
		return true
	case length == 2: // a byte
		u.setByte(4, byte(code))
	default:
		u.setRune(6, code)
	}
	return false
}

// nextReference is next for a character reference of HTML.
func (u *unit) nextReference(p []byte) (more bool) {
	end := bytes.IndexByte(p[:min(len(p), maxUnit)], ';')
	name := p[1:]
	if end > 0 {
		name = p[1:end]
	}
	name = name[:min(len(name), maxUnit-1)]
	if len(name) == 0 {
		return end < 0
	}
	if name[0] != '#' {
		if end < 0 {
			return len(p) < maxUnit && isName(name)
		}
		if c, ok := references[string(name)]; ok {
			u.setByte(end+1, c)
		}
		return false
	}
	number, base := name[1:], rune(10)
	if len(number) > 0 && (number[0] == 'x' || number[0] == 'X') {
		number, base = number[1:], 16
	}
	code, n, ok := digits(number, maxUnit, base)
	switch {
	case !ok:
		return false
	case end < 0:
		return len(p) < maxUnit
	case n > 0:
		u.setRune(end+1, code)
	}
	return false
}

// isName reports whether p has letters only.
func isName(p []byte) bool {
	for _, c := range p {
		if fold[c] < 'a' || fold[c] > 'z' {
			return false
		}
	}
	return true
}

// digits reads up to most digits. ok is false if p has another character before them all.
func digits(p []byte, most int, base rune) (code rune, n int, ok bool) {
	for n < min(len(p), most) {
		d := rune(-1)
		switch c := fold[p[n]]; {
		case '0' <= c && c <= '9':
			d = rune(c - '0')
		case 'a' <= c && c <= 'f':
			d = rune(c-'a') + 10
		}
		if d < 0 || d >= base {
			return 0, n, false
		}
		code, n = code*base+d, n+1
	}
	return code, n, true
}

// references are the characters of ASCII that have names in HTML.
var references = map[string]byte{
	"quot": '"', "QUOT": '"', "amp": '&', "AMP": '&', "apos": '\'', "lt": '<', "LT": '<', "gt": '>', "GT": '>',
	"excl": '!', "num": '#', "dollar": '$', "percnt": '%', "lpar": '(', "rpar": ')', "ast": '*', "midast": '*', "plus": '+',
	"comma": ',', "period": '.', "sol": '/', "colon": ':', "semi": ';', "equals": '=', "quest": '?', "commat": '@',
	"lsqb": '[', "lbrack": '[', "bsol": '\\', "rsqb": ']', "rbrack": ']', "Hat": '^', "lowbar": '_', "UnderBar": '_',
	"grave": '`', "lcub": '{', "lbrace": '{', "verbar": '|', "vert": '|', "rcub": '}', "rbrace": '}', "Tab": '\t', "NewLine": '\n',
}
