package protocol

import (
	"crypto/rand"
	"encoding/hex"
)

const (
	markPrefix = "GLOVEBOX-RESUME-"
	// NonceSize is the length of a nonce: hex digits.
	NonceSize = 16
	// MarkSize is the length of the mark after which a resumed stream goes on.
	MarkSize = len(markPrefix) + NonceSize
	// preambleSize fills any frame that was cut off, and at least one header
	// more, which zeros cannot be.
	preambleSize = HeaderSize + MaxPayload
)

// NewNonce returns a fresh nonce. It cannot be guessed by code that was in the
// guest before.
func NewNonce() string {
	var b [NonceSize / 2]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// AppendMark appends the mark with the nonce.
func AppendMark(b []byte, nonce string) []byte {
	b = append(b, markPrefix...)
	return append(b, nonce...)
}

// AppendPreamble appends what the host sends before anything else on a resumed
// link.
func AppendPreamble(b []byte, nonce string) []byte {
	b = append(b, make([]byte, preambleSize)...)
	return AppendMark(b, nonce)
}
