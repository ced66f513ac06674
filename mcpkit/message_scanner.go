package mcpkit

import "github.com/modelcontextprotocol/go-sdk/jsonrpc"

// maxEnvelope bounds the envelope of a message: the message without what the objects and
// arrays in it contain. A larger one has members that the protocol does not know.
const maxEnvelope = 4 << 10

// countValues returns an upper bound of the values in JSON text, less one.
func countValues(b []byte) int {
	var s scanner
	s.add(b)
	return s.values
}

// scanner reads a message that arrives in parts.
type scanner struct {
	size     int
	values   int    // an upper bound, less one
	envelope []byte // at most maxEnvelope+1 bytes
	depth    int
	quoted   bool
	escaped  bool
}

func (s *scanner) add(b []byte) {
	s.size += len(b)
	for _, c := range b {
		switch {
		case s.escaped:
			s.escaped = false // this byte does not end the string
		case s.quoted:
			s.escaped, s.quoted = c == '\\', c != '"'
		case c == '"':
			s.quoted = true
		case c == ',':
			s.values++
		case c == '[' || c == '{':
			s.values++
			s.depth++
			if s.depth == 2 { // its end is kept, too
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

func (s *scanner) keep(c byte) {
	if len(s.envelope) <= maxEnvelope {
		s.envelope = append(s.envelope, c)
	}
}

// response returns the id if the message is a response, otherwise one that is not valid.
// ok is false if the SDK will not decode the message, or would take it for another one.
func (s *scanner) response() (id jsonrpc.ID, ok bool) {
	if len(s.envelope) > maxEnvelope {
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
