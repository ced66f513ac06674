// Package nearest finds the known name that a misspelled one probably stands for.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// maxWord bounds the compared words, in bytes: a comparison takes the product of their
// lengths.
const maxWord = 100

// Of returns the name that word is probably a misspelling of, or "" if no name or more
// than one is likely. Case, hyphens, underscores and spaces only decide between
// otherwise equal names.
func Of(word string, names []string) string {
	w := plain(word)
	if w == "" || len(word) > maxWord {
		return ""
	}
	best, tie := candidate{letters: maxWord}, false
	for _, name := range names {
		c := candidate{name: name, plain: plain(name)}
		short, long := min(len(w), len(c.plain)), max(len(w), len(c.plain))
		if short == 0 || len(name) > maxWord {
			continue
		}
		c.letters = distance(w, c.plain)
		part := short >= 3 && (2*short >= long && strings.Contains(w, c.plain) || 3*short >= 2*long && strings.Contains(c.plain, w))
		if !similar(w, c.plain, c.letters) && !part {
			continue
		}
		c.bytes = distance(word, name)
		switch order := cmp.Or(cmp.Compare(c.letters, best.letters), cmp.Compare(c.bytes, best.bytes)); {
		case order < 0:
			best, tie = c, false
		case order == 0 && c.plain != best.plain:
			tie = true
		}
	}
	if tie {
		return ""
	}
	return best.name
}

// candidate is a name and its distance from the word.
type candidate struct {
	name, plain    string
	letters, bytes int // without and with case and separators
}

// similar reports whether b, at the given distance, is a likely spelling of a. Long words
// may differ in 3 of 10 letters. Words of up to three letters may differ in one, if it is
// a swap, or if one of them has three letters or more and the first letter is right: in
// shorter words, and where the first letter differs, most words would be similar.
func similar(a, b string, distance int) bool {
	short, long := min(len(a), len(b)), max(len(a), len(b))
	switch {
	case distance == 0 || short >= 4:
		return distance <= short*3/10
	case distance > 1:
		return false
	}
	return long >= 3 && a[0] == b[0] || short == long && sorted(a) == sorted(b)
}

// sorted returns the bytes of s in order; those of a swap are the same.
func sorted(s string) string { return string(slices.Sorted(slices.Values([]byte(s)))) }

// plain folds the spellings http_headers, httpHeaders and http-headers into one.
func plain(s string) string { return separators.Replace(strings.ToLower(s)) }

var separators = strings.NewReplacer("_", "", "-", "", " ", "")

// distance is the number of bytes to insert, delete, change or swap with a neighbor to
// turn a into b.
func distance(a, b string) int {
	n := len(b) + 1
	rows := make([]int, 3*n)
	before, previous, row := rows[:n], rows[n:2*n], rows[2*n:] // before is of no use for the first letter of a
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
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
		before, previous, row = previous, row, before
	}
	return previous[len(b)]
}
