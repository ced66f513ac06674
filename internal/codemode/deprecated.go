package codemode

import (
	"regexp"
	"strings"
)

// deprecation matches a lower-case description that says that its tool should no longer be used: in
// its first word, or as a remark at the beginning of a later sentence. "Lists items. Deprecated items
// are left out." says no such thing.
var deprecation = regexp.MustCompile(`^[^\pL\pN]*deprecated\b|[.!?\n)]\s*[^\pL\pN]*deprecated(?:\s*[^\pL\pN\s]|\s*$|\s+use\b)`)

// isDeprecated reports whether the server of a tool says that programs should use another one.
func isDeprecated(t Tool) bool {
	title := strings.ToLower(t.Title)
	if t.Annotations != nil {
		title += " " + strings.ToLower(t.Annotations.Title)
	}
	if strings.Contains(title[:min(len(title), maxSearched)], "(deprecated)") {
		return true
	}
	text := strings.ToLower(t.Description[:min(len(t.Description), maxSearched)])
	return strings.Contains(text, "deprecated") && deprecation.MatchString(text)
}
