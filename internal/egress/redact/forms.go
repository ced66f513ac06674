package redact

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// fold maps ASCII letters to lower case: values are found in any case, since hosts return
// them in that of a header's name or of a lookup, and digits of escapes have either case.
var fold = func() (table [256]byte) {
	for i := range table {
		table[i] = byte(i)
		if 'A' <= i && i <= 'Z' {
			table[i] += 'a' - 'A'
		}
	}
	return table
}()

// foldEncoded also makes one of the two alphabets of base64.
var foldEncoded = func() [256]byte {
	table := fold
	table['-'], table['_'] = '+', '/'
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

// needed returns how many of the first bytes of a value are masked: nearly all. A program cannot
// try the others: whatever follows is masked in their place.
func needed(value string) int {
	n := len(value)
	return max(n-maxUnchecked, (n+1)/2, min(minNeeded, n))
}

// texts returns the beginnings of a value as it is, or escaped.
func texts(value string) []beginning {
	n := needed(value)
	list := []beginning{{value[:n], 0, len(value) - n}}
	if strings.Contains(value[:n], " ") { // in the query of a URL
		list = append(list, beginning{strings.ReplaceAll(value[:n], " ", "+"), 0, len(value) - n})
	}
	return list
}

// encodings returns the beginnings of a value in hexadecimal, and in base64 at any position in
// another text. These also encode the case of the value: there are forms of it in lower and in
// upper case. Forms may occur twice.
func encodings(value string) (list []beginning) {
	n := needed(value)
	for _, v := range []string{value, lower(value), upper(value)} {
		list = append(list, beginning{hex.EncodeToString([]byte(v[:n])), 0, 2 * (len(v) - n)})
		for at := range 3 {
			list = append(list, base64At(v, n, at))
		}
	}
	return list
}

// base64At returns the beginning of value, with its first n bytes, in the base64 encoding of a text
// in which value begins after 3k+at bytes. The automaton reads the characters that these bytes alone
// determine. The characters at either end of the value that also have bits of a neighbouring byte
// are masked, too.
func base64At(value string, n, at int) beginning {
	encoded := base64.RawStdEncoding.EncodeToString(append(make([]byte, at), value[:n]...))
	first, end := (8*at+5)/6, 8*(at+n)/6
	all := (8*(at+len(value)) + 5) / 6
	return beginning{encoded[first:end], first - 8*at/6, all - end}
}
