package tools

import "bytes"

// otherCharset guesses the character set of text that is not UTF-8, as Python names it;
// "" for data that do not look like text.
func otherCharset(data []byte) string {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return "utf-16"
	}
	charset := "latin-1"
	for _, c := range data {
		switch {
		case c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != 0x1b, c == 0x7f:
			return ""
		case c >= 0x80 && c < 0xa0: // control characters in Latin-1, letters and quotes in Windows' set
			charset = "cp1252"
		}
	}
	return charset
}

// readAs says how to read a text file that is not UTF-8.
func readAs(charset string) string {
	return "the file is not UTF-8. It looks like text in " + charset + ": read it with execute_code, as in open(path, encoding='" + charset + "')."
}
