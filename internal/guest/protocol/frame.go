// Package protocol defines the protocol between the host (internal/guest/client) and
// the agent inside a guest (internal/guest/agent) over one byte stream: frames,
// messages, limits, version. It imports the standard library only.
// docs/agent-protocol.md explains it.
//
// Where to look: frame.go, reader.go and outbox.go have the bytes on the stream, message.go and
// network.go what they mean, window.go flow control (of each operation, and of all dials
// together: the connections of programs in the guest, which the host relays), resume.go a new
// connection to an agent that has had one. An engine brings the stream: stdiolink on this
// host, remote from elsewhere, both in internal/engine.
package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the protocol's version. Host and agent must have the same; their builds
// may differ.
const Version = 1

const (
	// HeaderSize is the length of a frame's header in bytes.
	HeaderSize = 12
	// MaxPayload bounds the payload of one frame: large enough that ordinary code or
	// output fits into one Data frame, small enough that a hostile length costs little
	// memory.
	MaxPayload = 256 << 10
	// Window is how many bytes of data one side may send on one operation before the
	// other grants more credit. It bounds the memory that a slow reader costs. Dials, the
	// connections of programs in the guest, have windows of their own: DialWindow.
	Window = 512 << 10
	// MaxOps bounds the concurrent operations of one connection.
	MaxOps = 256
	// MaxDisplay bounds one display: a value or figure that code shows, in all its MIME
	// types, as JSON.
	MaxDisplay = 8 << 20
	// MaxRepresentations bounds the representations of one display. A value has up to
	// about ten.
	MaxRepresentations = 64
	// MaxDisplays bounds the displays of one run.
	MaxDisplays = 40
	// MaxCode bounds the code of one run, in bytes.
	MaxCode = 16 << 20
	// MaxCalls bounds the concurrent calls of one connection: operations that the agent
	// opens. Together with MaxCallArgs it bounds the memory that a guest costs the host.
	MaxCalls = 16
	// MaxRunCalls bounds the calls of one run, however small. Budgets of the host are
	// far lower.
	MaxRunCalls = 10_000
	// MaxCallArgs bounds the arguments of one call, in bytes.
	MaxCallArgs = 1 << 20
	// MaxCallResult bounds the result of one call, in bytes.
	MaxCallResult = 16 << 20

	magic = 0x47
)

// Type is the type of a frame.
type Type uint8

// The closed set of frame types.
const (
	Open   Type = 1 + iota // starts an operation; payload: JSON of Request
	Data                   // bytes of one channel of an operation
	EOF                    // the sender has no more bytes for that channel
	Credit                 // payload: uint32, bytes of data that the receiver has consumed
	Cancel                 // requests the end of an operation; End still follows
	End                    // ends an operation; payload: JSON of Response
)

// Channel identifies the byte stream of a Data or EOF frame.
type Channel uint8

// The closed set of channels.
const (
	Control Channel = iota // not used by Data
	Stdin
	Stdout
	Stderr
	Displays // JSON of Display, one after another; a frame without More ends each
	Body     // content of a file or archive, code of a run
	numChannels
)

// Header precedes each payload.
type Header struct {
	Type    Type
	Channel Channel
	More    bool   // the message continues in the next Data frame of this channel
	Op      uint32 // of the operation; odd if the host opened it, even and not 0 if the agent did; 0 is Credit for AllDialsWindow
	Length  uint32 // of the payload, at most MaxPayload
}

// ErrFrame is wrapped by every error about bytes that are not a valid frame.
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

// ParseHeader decodes and validates a header. b must have at least HeaderSize bytes.
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
		return Header{}, fmt.Errorf("%w: first byte %#x", ErrFrame, b[0])
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
