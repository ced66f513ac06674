package polltest

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		polls := 0
		if !Soon(time.Minute, func() bool { polls++; return time.Since(start) >= time.Second }) || polls > 40 {
			t.Errorf("%d polls for a condition that is true after a second", polls)
		}
		if took := time.Since(start); took > time.Second+lastPause {
			t.Errorf("noticed after %v", took)
		}
		start = time.Now()
		if Soon(time.Minute, func() bool { return false }) {
			t.Error("false is taken for true")
		}
		if took := time.Since(start); took < time.Minute || took > time.Minute+lastPause {
			t.Errorf("gave up after %v", took)
		}
		// The condition is polled once more than there is time for.
		if !Soon(0, func() bool { return true }) {
			t.Error("true at once is not noticed without time")
		}
	})
}
