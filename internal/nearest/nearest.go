// Package nearest finds the name that somebody has probably meant.
package nearest

import (
	"cmp"
	"strings"
)

// maxWord bounds the words that are compared, in bytes: comparing takes the product of
// their lengths.
const maxWord = 100

// Of returns the one of names that word is probably a misspelling of, or "" if there
// is none, or several that are as likely. Case, hyphens, underscores and spaces count
// only between names that are otherwise as near. In words of up to three letters nothing
// else may differ.
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
		c.letters, c.bytes = distance(w, c.plain), distance(word, name)
		part := short >= 3 && (2*short >= long && strings.Contains(w, c.plain) || 3*short >= 2*long && strings.Contains(c.plain, w))
		if c.letters > allowed(short) && !part {
			continue
		}
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

// candidate is a name and how far it is from the word.
type candidate struct {
	name, plain    string
	letters, bytes int // without and with case and separators
}

// allowed is how many letters may differ where the shorter word has n of them.
func allowed(n int) int {
	if n < 4 {
		return 0
	}
	return n * 3 / 10
}

// plain leaves only what the spellings http_headers, httpHeaders and http-headers
// share.
func plain(s string) string { return separators.Replace(strings.ToLower(s)) }

var separators = strings.NewReplacer("_", "", "-", "", " ", "")

// distance counts the bytes to insert, delete or change to make b of a, and swapped
// neighbours as one.
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
