package protocol

import (
	"crypto/rand"
	"encoding/hex"
)

const (
	markerPrefix = "GLOVEBOX-RESUME-"
	// NonceSize is the length of a nonce: hex digits.
	NonceSize = 16
	// MarkerSize is the length of the marker after which a resumed stream continues.
	MarkerSize = len(markerPrefix) + NonceSize
	// preambleSize completes any truncated frame and adds at least one more header,
	// which zeros cannot be.
	preambleSize = HeaderSize + MaxPayload
)

// NewNonce returns a new nonce, which code that was in the guest before cannot guess.
func NewNonce() string {
	var b [NonceSize / 2]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// AppendMarker appends the marker with the nonce.
func AppendMarker(b []byte, nonce string) []byte {
	b = append(b, markerPrefix...)
	return append(b, nonce...)
}

// AppendPreamble appends what the host sends first on a resumed connection.
func AppendPreamble(b []byte, nonce string) []byte {
	b = append(b, make([]byte, preambleSize)...)
	return AppendMarker(b, nonce)
}
