//go:build linux

package microsandbox

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// Sandboxes are named by this package only: "gb-" and a random number. An id can be that
// of a guest that is still being removed, and names must differ.
var namePattern = lazyregexp.New(`^gb-[0-9a-f]{16}$`)

// newName returns the name of a new sandbox.
func newName() string { return "gb-" + random() }

// isName reports whether an engine can have chosen the name.
func isName(name string) bool { return namePattern().MatchString(name) }

// random returns 16 hexadecimal digits.
func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
