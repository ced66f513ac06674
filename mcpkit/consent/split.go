package consent

import (
	"slices"
	"strings"
)

// maxWords bounds the words of a command line after env has split some.
const maxWords = 4096

// splitStrings returns a command line in which the text of the flag -S of env stands as
// the words into which env splits it: env -S "node server.js" runs node. It expands no
// variables.
func splitStrings(argv []string) []string {
	argv = slices.Clone(argv)
	env := false // the word belongs to env: a flag, its value, or a variable
	for i := 0; i < len(argv) && len(argv) < maxWords; i++ {
		word := argv[i]
		switch {
		case baseName(word) == "env":
			env = true
		case !env:
		case strings.HasPrefix(word, "-"):
			text, words, ok := splitFlag(argv[i:])
			if !ok {
				continue
			}
			// env obeys flags in the text too.
			argv = slices.Replace(argv, i, i+words, splitWords(text)...)
			i--
		case strings.Contains(word, "="):
		default:
			env = strings.HasPrefix(argv[i-1], "-") // it may be the value of that flag
		}
	}
	return argv
}

// splitFlag returns the text that env would split, and of how many words of argv the flag
// and its text consist. It reports false if argv does not begin with such a flag.
func splitFlag(argv []string) (text string, words int, ok bool) {
	flag := argv[0]
	if name, value, joined := strings.Cut(flag, "="); len(name) >= len("--s") && strings.HasPrefix("--split-string", name) {
		if joined {
			return value, 1, true
		}
		flag = "-S"
	}
	// Flags without values may stand before it, as in -iS.
	letters := strings.TrimLeft(strings.TrimPrefix(flag, "-"), "i0v")
	switch {
	case strings.HasPrefix(flag, "--") || !strings.HasPrefix(letters, "S"):
		return "", 0, false
	case letters != "S":
		return letters[1:], 1, true
	case len(argv) > 1:
		return argv[1], 2, true
	}
	return "", 1, true
}

// splitWords splits a text as env does: at white space, except in quotes and after a
// backslash. An unclosed quote, with which env fails, ends with the text.
func splitWords(text string) (words []string) {
	var word strings.Builder
	var quote byte // 0 outside of quotes
	began := false
	end := func() {
		if began {
			words = append(words, word.String())
		}
		word.Reset()
		began = false
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text) && (quote != '\'' || text[i+1] == '\\' || text[i+1] == '\''):
			i++
			switch c = text[i]; {
			case c == 'c' && quote == 0: // env ignores the rest
				end()
				return words
			case c == '_' && quote == 0:
				end()
				continue
			case c == '_':
				c = ' '
			case strings.IndexByte("fnrtv", c) >= 0:
				c = "\f\n\r\t\v"[strings.IndexByte("fnrtv", c)]
			}
			word.WriteByte(c)
			began = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, began = c, true
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			end()
		case c == '#' && !began:
			return words // a comment
		default:
			word.WriteByte(c)
			began = true
		}
	}
	end()
	return words
}
