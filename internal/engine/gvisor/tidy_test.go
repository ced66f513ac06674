//go:build linux && (amd64 || arm64)

package gvisor

import (
	"slices"
	"testing"
)

// TestLook: garbage is tidied up when no more is made, and now and then while more
// is; a sentry that has made none is left alone.
func TestLook(t *testing.T) {
	const kb, mb = 1 << 10, 1 << 20
	work := make([]uint64, busyLooks+1) // all the time
	wait := make([]found, busyLooks+1)
	for i := range work {
		work[i], wait[i] = uint64(i+9)*mb, foundBusy
	}
	wait[busyLooks] = foundGarbage
	for name, tt := range map[string]struct {
		allocated []uint64 // at each look
		want      []found
	}{
		"nothing":       {[]uint64{mb, mb}, []found{foundLittle, foundLittle}},
		"little":        {[]uint64{mb + kb, 2*mb - kb, 2*mb - kb}, []found{foundLittle, foundLittle, foundLittle}},
		"once":          {[]uint64{9 * mb, 9*mb + kb}, []found{foundBusy, foundGarbage}},
		"slowly enough": {[]uint64{9 * mb, 9*mb + 63*kb}, []found{foundBusy, foundGarbage}},
		"late":          {[]uint64{mb, mb, 9 * mb, 17 * mb, 17 * mb}, []found{foundLittle, foundLittle, foundBusy, foundBusy, foundGarbage}},
		"all the time":  {work, wait},
	} {
		t.Run(name, func(t *testing.T) {
			l := looks{tidied: mb}
			var got []found
			for _, a := range tt.allocated {
				got = append(got, l.look(a))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("looks at %d bytes: %v, want %v", tt.allocated, got, tt.want)
			}
		})
	}
}
