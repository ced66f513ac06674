package codemode

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// isDeprecated reports whether the server of a tool says that programs should use another one.
func isDeprecated(t Tool) bool {
	title := strings.ToLower(t.Title)
	if t.Annotations != nil {
		title += " " + strings.ToLower(t.Annotations.Title)
	}
	if strings.Contains(title[:min(len(title), maxSearched)], "(deprecated)") {
		return true
	}
	return saysDeprecated(strings.ToLower(t.Description[:min(len(t.Description), maxSearched)]))
}

// saysDeprecated reports whether a lower-case description says that its tool should no longer be
// used: in its first word, or as a remark at the beginning of a later sentence. "Lists items.
// Deprecated items are left out." says no such thing.
//
// A search asks this of thousands of tools, with descriptions that servers choose: it looks at no
// byte more than a few times.
func saysDeprecated(text string) bool {
	const word = "deprecated"
	for rest := text; ; {
		i := strings.Index(rest, word)
		if i < 0 {
			return false
		}
		before := rest[:i] // of the last occurrence on, or all
		first := len(rest) == len(text)
		rest = rest[i+len(word):]
		between := before[len(strings.TrimRightFunc(before, unlettered)):]
		if first && len(between) == len(before) && !beginsWithWord(rest) {
			return true
		}
		if strings.ContainsAny(between, ".!?\n)") && isRemark(rest) {
			return true
		}
	}
}

// unlettered reports whether a character is neither a letter nor a digit.
func unlettered(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }

// beginsWithWord reports whether text goes on with the word before it.
func beginsWithWord(text string) bool {
	return text != "" && (text[0] == '_' || text[0] >= '0' && text[0] <= '9' || text[0] >= 'a' && text[0] <= 'z')
}

// isRemark reports whether the word "deprecated" before text stands for itself: a sign or the
// end follows, or the tool to use.
func isRemark(text string) bool {
	after := strings.TrimLeft(text, " \t\n\f\r")
	if next, _ := utf8.DecodeRuneInString(after); after == "" || unlettered(next) {
		return true
	}
	rest, use := strings.CutPrefix(after, "use")
	return use && len(after) < len(text) && !beginsWithWord(rest)
}
