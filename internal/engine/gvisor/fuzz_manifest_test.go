//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"testing"
)

// FuzzDecodeManifest: the manifest of a snapshot that somebody changed is refused, or is one
// that encode writes.
func FuzzDecodeManifest(f *testing.F) {
	for _, s := range []string{`{"format":1,"engine":"gvisor"}`, `{"engine":"gvisor","format":1,"files":[{"name":"checkpoint.img","size":1}]}`, `[]`, `null`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest(b)
		if err != nil {
			return
		}
		if got, err := m.encode(); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%q is accepted, and written as %q, %v", b, got, err)
		}
	})
}
