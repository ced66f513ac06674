package envelope

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
)

// maxValues bounds the values of a message. Each takes a hundred bytes and more once
// it is decoded, and as few as two before: so many take about what the largest
// message does. Calls have a dozen.
const maxValues = 1 << 18

// values is how many values are in a message, or a few more. It need not be valid.
func values(message []byte) (n int) {
	for i := 0; i < len(message); i++ {
		switch message[i] {
		case '{', '[', ',', ':':
			n++
		case '"':
			i += textEnd(message[i+1:])
		}
	}
	return n
}

// members are what a message is made of.
var members = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// ambiguous finds a name in an object by which decoders differ: it is there twice, or
// in other letters than ours, which some take for the same. Whoever serves the
// message must not read another one than has been judged.
func ambiguous(object []byte) (name string, found bool) {
	var seen [6]bool
	for key := range names(object) {
		for i, member := range members {
			if !strings.EqualFold(key, member) {
				continue
			}
			if key != member || seen[i] {
				return key, true
			}
			seen[i] = true
		}
	}
	return "", false
}

// names are those of the members of an object, which must be valid JSON. They are
// found without decoding the values, of which one may be a large file.
func names(object []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		depth, isName := 0, false
		for i := 0; i < len(object); i++ {
			switch object[i] {
			case '{', '[':
				depth++
				isName = depth == 1
			case '}', ']':
				depth--
			case ',':
				isName = depth == 1
			case '"':
				end := i + 1 + textEnd(object[i+1:])
				if isName && !yield(text(object[i:end])) {
					return
				}
				isName = false
				i = end - 1
			}
		}
	}
}

// textEnd returns where the text that has begun before b is over, its quote included.
func textEnd(b []byte) int {
	for end := 0; ; end++ {
		quote := bytes.IndexByte(b[end:], '"')
		if quote < 0 {
			return len(b) // not of valid JSON
		}
		end += quote
		escapes := end - len(bytes.TrimRight(b[:end], `\`))
		if escapes%2 == 0 {
			return end + 1
		}
	}
}

func text(quoted []byte) (s string) {
	_ = json.Unmarshal(quoted, &s) // of valid JSON it is one
	return s
}
