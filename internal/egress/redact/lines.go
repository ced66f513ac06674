package redact

import "bytes"

// lines finds the ends of lines. No value goes on in the next line, except in base64, and not after a
// blank line.
type lines struct {
	tail []byte // the last bytes
}

const (
	// base64End is how many characters at the end of a line have to look like base64, with escapes of
	// them or of a carriage return, for a value to go on in the next line. Encoders break lines after 60
	// or more.
	base64End = 16
	maxTail   = base64End + 8 // and carriage returns
)

// end reads the next bytes, and returns how many of them there are up to the last end of a line after
// which no value goes on; 0: none. It does not depend on the values.
func (l *lines) end(p []byte) int {
	known := len(l.tail)
	all := append(l.tail, p[:min(len(p), maxTail)]...)
	n := 0
	for rest := p; ; { // the ends in p, from the last one
		i := bytes.LastIndexByte(rest, '\n')
		if i < 0 {
			break
		}
		before := p[max(0, i-maxTail):i]
		if i < maxTail {
			before = all[:known+i]
		}
		if endsText(before) {
			n = i + 1
			break
		}
		rest = rest[:i]
	}
	if len(p) >= maxTail {
		l.tail = append(l.tail[:0], p[len(p)-maxTail:]...)
	} else {
		l.tail = append(l.tail[:0], all[max(0, len(all)-maxTail):]...)
	}
	return n
}

// endsText reports whether no base64 goes on behind a line that ends with these bytes.
func endsText(line []byte) bool {
	begins := len(line) < maxTail // else there may be more before
	line = bytes.TrimRight(line, "\r")
	for n := range base64End {
		i := len(line) - 1 - n
		if i < 0 {
			return begins
		}
		if !inBase64[line[i]] {
			return true
		}
	}
	return false
}

// inBase64 are the characters of base64 and of escapes.
var inBase64 = func() (set [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=%&#;\\") {
		set[c] = true
	}
	return set
}()
