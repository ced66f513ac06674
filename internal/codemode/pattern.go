package codemode

import (
	"path"
	"strings"
	"unicode/utf8"
)

// matches reports whether a name matches a pattern of path.Match, in which "*" and "?" match
// slashes, too: servers choose the names of their tools, and must not get past a rule. ""
// matches all, and an invalid pattern matches nothing, see [Policy.Check]. The time is at most
// proportional to the product of the lengths: names have at most 200 bytes.
func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return false
	}
	elements, chars := elementsOf(pattern), []rune(name)
	star, resume := -1, 0 // the last "*", and where the text after it was tried last
	i, at := 0, 0
	for at < len(chars) {
		switch {
		case i < len(elements) && elements[i] == "*":
			star, resume = i, at
			i++
		case i < len(elements) && matchesOne(elements[i], chars[at]):
			i, at = i+1, at+1
		case star >= 0:
			resume++
			i, at = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(strings.Join(elements[i:], ""), "*") == ""
}

// matchesOne reports whether an element of a pattern, which is no "*", matches a character.
func matchesOne(element string, char rune) bool {
	if element == "?" {
		return true
	}
	ok, err := path.Match(element, string(char))
	return ok && err == nil
}

// elementsOf splits a valid pattern into elements: "*", and what matches one character.
func elementsOf(pattern string) (elements []string) {
	for pattern != "" {
		n := 1
		switch pattern[0] {
		case '\\':
			n += lengthOfFirst(pattern[1:])
		case '[':
			for pattern[n] != ']' {
				if pattern[n] == '\\' {
					n++
				}
				n++
			}
			n++
		default:
			n = lengthOfFirst(pattern)
		}
		elements, pattern = append(elements, pattern[:n]), pattern[n:]
	}
	return elements
}

// lengthOfFirst returns the length of the first character of s in bytes.
func lengthOfFirst(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	return n
}
