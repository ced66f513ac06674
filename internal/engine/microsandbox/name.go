//go:build linux

package microsandbox

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"
)

// Sandboxes are named by this package only: "gb-", the owner, "-", a random number. An id
// can be that of a guest that is still being removed, and names must differ.
var namePattern = regexp.MustCompile(`^gb-([0-9a-f]{16})-[0-9a-f]{16}$`)

// newName returns the name of a new sandbox.
func newName(owner string) string { return "gb-" + owner + "-" + random() }

// parseName returns the owner of a sandbox.
func parseName(name string) (owner string, ok bool) {
	m := namePattern.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// random returns 16 hexadecimal digits.
func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
