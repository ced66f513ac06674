//go:build linux && (amd64 || arm64)

package gvisor

import (
	"slices"
	"testing"
)

// TestTidyDue: garbage is collected when no more is made, and now and then while
// more is; a sentry that has made none is left alone.
func TestTidyDue(t *testing.T) {
	const kb, mb = 1 << 10, 1 << 20
	for name, tt := range map[string]struct {
		allocated []uint64 // at each look
		want      []bool
	}{
		"nothing":       {[]uint64{mb, mb, mb, mb}, []bool{false, false, false, false}},
		"little":        {[]uint64{mb + kb, 2*mb - kb, 2*mb - kb, 2*mb - kb}, []bool{false, false, false, false}},
		"once":          {[]uint64{9 * mb, 9*mb + kb}, []bool{false, true}},
		"slowly enough": {[]uint64{9 * mb, 9*mb + 63*kb}, []bool{false, true}},
		"all the time":  {[]uint64{9 * mb, 17 * mb, 25 * mb}, []bool{false, false, true}},
		"late":          {[]uint64{mb, mb, mb, mb, 9 * mb, 9 * mb}, []bool{false, false, false, false, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			l := looks{tidied: mb}
			var got []bool
			for _, a := range tt.allocated {
				got = append(got, l.due(a))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("looks at %d bytes: tidied at %v, want %v", tt.allocated, got, tt.want)
			}
		})
	}
}
