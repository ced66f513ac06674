package tools

import (
	"strings"
	"testing"
)

// TestPlainID: an id in a log has letters, digits, spaces, "-", "_" and "." only, and at most 128 of them.
func TestPlainID(t *testing.T) {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_. "
	for b := range 256 {
		id := "a" + string([]byte{byte(b)})
		if got, want := plainID(id), strings.IndexByte(allowed, byte(b)) >= 0; got != want {
			t.Errorf("plainID(%q) = %t", id, got)
		}
	}
	if plainID("") || !plainID(strings.Repeat("x", 128)) || plainID(strings.Repeat("x", 129)) {
		t.Error("an id has 1 to 128 characters")
	}
}
