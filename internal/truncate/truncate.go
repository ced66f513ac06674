// Package truncate shortens text for messages, logs and tables.
package truncate

import (
	"strings"
	"unicode/utf8"
)

// mark stands for the text that was cut off.
const mark = "…"

// Bytes returns s if it has at most limit bytes. Otherwise it returns at most the first
// limit bytes and "…". It never splits a character, and leaves out invalid UTF-8 of a
// text that it cuts.
func Bytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + mark
}

// Runes returns s if it has at most limit characters. Otherwise it returns the first
// limit-1 characters and "…". limit is at least 1.
func Runes(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	n := 0
	for i := range s {
		if n++; n == limit {
			return s[:i] + mark
		}
	}
	return s
}
