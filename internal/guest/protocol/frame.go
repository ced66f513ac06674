// Package protocol is the language that the host's end (internal/guest/client) and the
// agent inside a guest (internal/guest/agent) speak over one byte stream: frames,
// messages, limits, version. It imports the standard library only.
// docs/agent-protocol.md explains the protocol.
package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the protocol's version. Host and agent must agree on it; builds
// may differ.
const Version = 1

const (
	// HeaderSize is the length of a frame's header in bytes.
	HeaderSize = 12
	// MaxPayload bounds the payload of one frame: large enough that a call costs
	// one frame each way, small enough that a hostile length costs little memory.
	MaxPayload = 256 << 10
	// Window is how many bytes of data one side may send on one operation before
	// the other grants more. It bounds what a slow reader makes anyone hold.
	Window = 512 << 10
	// MaxOps bounds the operations under way at once on one link.
	MaxOps = 256
	// MaxDisplay bounds one display (all its representations, as JSON).
	MaxDisplay = 8 << 20
	// MaxCode bounds the code of one run, in bytes.
	MaxCode = 16 << 20

	magic = 0x47
)

// Type says what a frame is.
type Type uint8

// The closed set of frame types.
const (
	Open   Type = 1 + iota // begins an operation; payload: JSON of Request
	Data                   // bytes of one channel of an operation
	EOF                    // the sender has no more bytes for that channel
	Credit                 // payload: uint32, bytes of data the receiver has used up
	Cancel                 // asks to end an operation; its End still comes
	End                    // ends an operation; payload: JSON of Response
)

// Channel says which bytes a Data or EOF frame carries.
type Channel uint8

// The closed set of channels.
const (
	Control Channel = iota // not used by Data
	Stdin
	Stdout
	Stderr
	Displays // JSON of Display, one after the other, each ending with a frame without More
	Body     // the content of a file or archive, the code of a run
	numChannels
)

// Header precedes each payload.
type Header struct {
	Type    Type
	Channel Channel
	More    bool   // the message goes on in the next Data frame of this channel
	Op      uint32 // odd: begun by the host; even: begun by the agent
	Length  uint32 // of the payload, at most MaxPayload
}

// ErrFrame is wrapped by every error about bytes that are not a frame.
var ErrFrame = errors.New("malformed frame")

// Append appends the header's encoding to b.
func (h Header) Append(b []byte) []byte {
	var flags byte
	if h.More {
		flags = 1
	}
	b = append(b, magic, byte(h.Type), byte(h.Channel), flags)
	b = binary.BigEndian.AppendUint32(b, h.Op)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// ParseHeader decodes and checks a header. b must hold HeaderSize bytes.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("%w: %d bytes of %d", ErrFrame, len(b), HeaderSize)
	}
	h := Header{
		Type: Type(b[1]), Channel: Channel(b[2]), More: b[3] == 1,
		Op: binary.BigEndian.Uint32(b[4:]), Length: binary.BigEndian.Uint32(b[8:]),
	}
	switch {
	case b[0] != magic:
		return Header{}, fmt.Errorf("%w: begins with %#x", ErrFrame, b[0])
	case h.Type < Open || h.Type > End:
		return Header{}, fmt.Errorf("%w: type %d", ErrFrame, h.Type)
	case h.Channel >= numChannels:
		return Header{}, fmt.Errorf("%w: channel %d", ErrFrame, h.Channel)
	case b[3] > 1:
		return Header{}, fmt.Errorf("%w: flags %#x", ErrFrame, b[3])
	case h.Length > MaxPayload:
		return Header{}, fmt.Errorf("%w: %d bytes, more than %d", ErrFrame, h.Length, MaxPayload)
	}
	return h, nil
}
