// Package crc32c forms the checksums of the files that Glovebox keeps. CRC-32C detects damage: it
// finds any single one, and processors have an instruction for it, so that it is several times as
// fast as memory is copied. It does not protect against tampering.
package crc32c

import (
	"fmt"
	"hash"
	"hash/crc32"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// New returns a hash whose sum Text writes.
func New() hash.Hash32 { return crc32.New(table) }

// Text returns the sum of h as it stands in files: "crc32c:" and eight hexadecimal digits.
func Text(h hash.Hash32) string { return fmt.Sprintf("crc32c:%08x", h.Sum32()) }

// Of returns the checksum of b, as Text.
func Of(b []byte) string {
	h := New()
	h.Write(b)
	return Text(h)
}
