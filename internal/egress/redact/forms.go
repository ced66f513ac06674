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

// forms returns value and the encodings of it that servers commonly return: base64 at
// any position in another text, hexadecimal, and escaped for URLs, JSON and HTML. Forms
// may occur twice.
func forms(value string) []string {
	query := url.QueryEscape(value)
	escaped := html.EscapeString(value)
	lower := hex.EncodeToString([]byte(value))
	all := []string{
		value,
		lower, strings.ToUpper(lower),
		query, strings.ReplaceAll(query, "+", "%20"), url.PathEscape(value),
		lowerEscapes(query), lowerEscapes(url.PathEscape(value)),
		inJSON(value, true), inJSON(value, false), strings.ReplaceAll(inJSON(value, false), "/", `\/`),
		escaped, strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(escaped),
	}
	for _, format := range []string{"%%%02x", "%%%02X", `\u%04x`, `\u%04X`, `\x%02x`, `\x%02X`, "&#%d;", "&#x%x;", "&#x%X;"} {
		all = append(all, eachByte(value, format))
	}
	for at := range 3 {
		all = append(all, base64At(base64.RawStdEncoding, value, at), base64At(base64.RawURLEncoding, value, at))
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

// lowerEscapes writes the hexadecimal digits of the escapes in lower case.
func lowerEscapes(escaped string) string {
	b := []byte(escaped)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:i+3], bytes.ToLower(b[i:i+3]))
		}
	}
	return string(b)
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
