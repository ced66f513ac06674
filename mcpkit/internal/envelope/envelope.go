// Package envelope reads what a message is from its bytes while they pass: how many values it
// has, and which request it answers. It keeps none of its contents.
package envelope

import (
	"bytes"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Max bounds the envelope of a message: the message without what the objects and
// arrays in it contain. A larger one has members that the protocol does not know.
const Max = 4 << 10

// A Scanner reads a message that arrives in parts, and keeps only its envelope. The zero
// value has read nothing.
type Scanner struct {
	Size     int    // bytes so far
	Values   int    // an upper bound, less one, of the JSON values so far
	outer    byte   // the last bracket that opened a value in the message
	envelope []byte // at most Max+1 bytes
	depth    int
	quoted   bool
	escaped  bool
}

// Add reads the next part of the message.
func (s *Scanner) Add(b []byte) {
	s.Size += len(b)
	for _, c := range b {
		switch {
		case s.escaped:
			s.escaped = false // this byte does not end the string
		case s.quoted:
			s.escaped, s.quoted = c == '\\', c != '"'
		case c == '"':
			s.quoted = true
		case c == ',':
			s.Values++
		case c == '[' || c == '{':
			s.Values++
			s.depth++
			if s.depth == 2 { // its end is kept, too
				s.outer = c
				s.keep(c)
			}
		case c == ']' || c == '}':
			s.depth--
		}
		if s.depth <= 1 {
			s.keep(c)
		}
	}
}

func (s *Scanner) keep(c byte) {
	if len(s.envelope) <= Max {
		s.envelope = append(s.envelope, c)
	}
}

// Response returns the id if the message is a response, otherwise one that is not valid.
// ok is false if the SDK will not decode the message, or would take it for another one.
func (s *Scanner) Response() (id jsonrpc.ID, ok bool) {
	if len(s.envelope) > Max {
		return id, false
	}
	m, err := jsonrpc.DecodeMessage(s.envelope)
	if err != nil {
		return id, false
	}
	if r, isResponse := m.(*jsonrpc.Response); isResponse {
		id = r.ID
	}
	return id, true
}

// Answers returns the id of the request that a message answers of which only the beginning
// was read, otherwise one that is not valid.
func (s *Scanner) Answers() (id jsonrpc.ID) {
	if s.quoted && s.depth == 1 || s.depth < 1 || len(s.envelope) > Max {
		return id
	}
	rest := "}"
	switch {
	case s.depth > 1 && s.outer == '[':
		rest = "]}"
	case s.depth > 1:
		rest = "}}"
	}
	m, err := jsonrpc.DecodeMessage(append(append([]byte{}, s.envelope...), rest...))
	if err != nil {
		return id
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		return r.ID
	}
	return id
}

// Foreign reports whether what was read begins no message with an envelope that fits.
func (s *Scanner) Foreign() bool {
	begin := bytes.TrimLeft(s.envelope, " \t\r\n")
	return len(s.envelope) > Max || len(begin) > 0 && begin[0] != '{'
}
