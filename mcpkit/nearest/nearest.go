package mcpjson

import "strings"

// nearest returns the candidate that was probably meant, or "".
func nearest(word string, candidates []string) string {
	if len(word) > maxClip {
		return ""
	}
	best, bestDistance := "", max(1, len(word)*3/10)+1
	for _, c := range candidates {
		if plain(word) == plain(c) {
			return c
		}
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// plain leaves only what the spellings http_headers, httpHeaders and
// http-headers share.
func plain(s string) string { return separators.Replace(strings.ToLower(s)) }

var separators = strings.NewReplacer("_", "", "-", "")

// distance counts the letters to insert, delete or change to make b of a, and
// swapped neighbours as one.
func distance(a, b string) int {
	var before []int
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(previous[j]+cost, previous[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, previous = previous, row
	}
	return previous[len(b)]
}

// Nearest returns the one of the names that a person who wrote word has probably
// meant, or "".
func Nearest(word string, names []string) string { return nearest(word, names) }
