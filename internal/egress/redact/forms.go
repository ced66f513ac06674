package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
)

// fold maps ASCII letters to lower case: forms are found in any case, since hosts return
// values in that of a header's name or of a lookup, and escapes have digits of either case.
var fold = func() (table [256]byte) {
	for i := range table {
		table[i] = byte(i)
		if 'A' <= i && i <= 'Z' {
			table[i] += 'a' - 'A'
		}
	}
	return table
}()

// lower returns s with its ASCII letters in lower case, and upper with them in upper case. All
// other bytes stay as they are.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		b[i] = fold[c]
	}
	return string(b)
}

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}

// forms returns value and the encodings of it that servers commonly return: base64 at
// any position in another text, hexadecimal, and escaped for URLs, JSON and HTML. The case
// of ASCII letters in a form does not count, but base64 and hexadecimal also encode the case
// of the value: there are forms of it in lower and in upper case. Forms may occur twice.
func forms(value string) []string {
	query := url.QueryEscape(value)
	escaped := html.EscapeString(value)
	all := []string{
		value,
		query, strings.ReplaceAll(query, "+", "%20"), url.PathEscape(value),
		inJSON(value, true), inJSON(value, false), strings.ReplaceAll(inJSON(value, false), "/", `\/`),
		escaped, strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(escaped),
	}
	for _, format := range []string{"%%%02x", `\u%04x`, `\x%02x`, "&#%d;", "&#x%x;"} {
		all = append(all, eachByte(value, format))
	}
	for _, v := range []string{value, lower(value), upper(value)} {
		all = append(all, hex.EncodeToString([]byte(v)))
		for at := range 3 {
			all = append(all, base64At(base64.RawStdEncoding, v, at), base64At(base64.RawURLEncoding, v, at))
		}
	}
	return all
}

// eachByte formats every byte of value.
func eachByte(value, format string) string {
	var b strings.Builder
	for i := range len(value) {
		fmt.Fprintf(&b, format, value[i])
	}
	return b.String()
}

// inJSON returns value as the content of a JSON string.
func inJSON(value string, escapeHTML bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(escapeHTML)
	if err := enc.Encode(value); err != nil {
		return value // cannot happen: strings encode
	}
	return strings.TrimSuffix(strings.TrimPrefix(b.String(), `"`), "\"\n")
}

// base64At returns the characters that value alone determines in the base64 encoding of
// a text in which value begins after 3n+at bytes. A character at either end that also
// has bits of a neighbouring byte is left out.
func base64At(enc *base64.Encoding, value string, at int) string {
	encoded := enc.EncodeToString(append(make([]byte, at), value...))
	return encoded[(8*at+5)/6 : 8*(at+len(value))/6]
}
