package egress

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// TestGate_WaitsAtMost30Seconds: a connection waits for its share of the bytes for 30 s at most, in
// each direction and for the limit of the box as for that of the owner. If it would have to wait
// for longer, it ends at once, passes none of these bytes, and its record says why.
func TestGate_WaitsAtMost30Seconds(t *testing.T) {
	const second = 2 << 10 // bytes; those of 31 s are read at once
	for name, limiter := range map[string]func(*Network) *rate.Limiter{
		"box":   func(n *Network) *rate.Limiter { return n.bytes },
		"owner": func(n *Network) *rate.Limiter { return n.owner.bytes },
	} {
		for _, direction := range []string{"download", "upload"} {
			t.Run(name+", "+direction, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Options{MaxBytesPerMinute: 60 * second}, []string{"tcp://a.example.org:7"})
					to, from, spliced := w.piped(t)
					if direction == "upload" {
						to, from = from, to
					}
					l := limiter(w.n)
					l.SetLimit(second)              // also of the owner, who has more
					l.AllowN(time.Now(), l.Burst()) // no burst
					begun := time.Now()
					write := func(seconds int) {
						t.Helper()
						if _, err := from.Write(make([]byte, seconds*second)); err != nil {
							t.Fatal(err)
						}
					}
					write(29)
					if n, err := io.ReadFull(to, make([]byte, 29*second)); err != nil || time.Since(begun) != 29*time.Second {
						t.Fatalf("%d bytes that have to wait for 29 s arrive in %v, %v", n, time.Since(begun), err)
					}
					begun = time.Now()
					write(31)
					if n, err := io.Copy(io.Discard, to); err != nil || n != 0 || time.Since(begun) != 0 {
						t.Errorf("bytes that would have to wait for 31 s: %d arrive, and the connection ends after %v, %v; want none, and the end at once", n, time.Since(begun), err)
					}
					<-spliced
					w.wantOutcomes(t, "a.example.org limit")
				})
			})
		}
	}
}
