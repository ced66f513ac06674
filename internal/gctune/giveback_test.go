package gctune

import (
	"testing"
	"testing/synctest"
	"time"
)

// A process returns memory when it stops allocating, and at intervals while it allocates; one
// that has allocated almost nothing is left alone.
func TestGiveBack_WaitsForAQuietProcess(t *testing.T) {
	const s, kb, mb = time.Second, 1 << 10, 1 << 20
	for name, tt := range map[string]struct {
		allocated func(time.Duration) uint64 // at this time after a return
		want      time.Duration
	}{
		"once": {func(d time.Duration) uint64 {
			if d < 3*s {
				return 9 * mb
			}
			return 17 * mb
		}, 11 * s},
		"for a while":      {func(d time.Duration) uint64 { return uint64(min(d, 15*s)/s) * mb }, 16 * s},
		"all the time":     {func(d time.Duration) uint64 { return uint64(d/s) * mb }, 40 * s},
		"little by little": {func(d time.Duration) uint64 { return uint64(d/s) * kb }, 1031 * s},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				allocated := func() uint64 { return tt.allocated(time.Since(begun)) }
				awaitGarbage(allocated)
				awaitQuiet(allocated)
				if got := time.Since(begun); got != tt.want {
					t.Errorf("returned after %s, want %s", got, tt.want)
				}
			})
		})
	}
}
