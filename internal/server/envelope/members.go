package envelope

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
)

// maxValues bounds the values of a message: each takes at least a hundred bytes once
// decoded, and as few as two before. Calls have a dozen.
const maxValues = 1 << 18

// values counts the values of a message, or a few more. The message need not be valid.
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

// members are the members of a message.
var members = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// ambiguous finds a member that decoders read in different ways: one that is there twice,
// or in another case. The handlers must not see another message than was checked.
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

// names returns the names of the members of an object, which must be valid JSON, without
// decoding the values.
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

// textEnd returns the end of a string that began before b, including its quote.
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
