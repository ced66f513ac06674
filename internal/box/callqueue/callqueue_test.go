package callqueue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestEnter_Parked checks that a call waits for a parked one only for a moment.
func TestEnter_Parked(t *testing.T) {
	for name, tc := range map[string]struct {
		parked time.Duration
		want   error
	}{"a quick answer": {MaxParkedWait / 2, nil}, "no answer": {time.Hour, ErrParked}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(1, 10)
				if err := q.Enter(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				q.SetParked(true)
				go func() {
					time.Sleep(tc.parked)
					q.SetParked(false)
					time.Sleep(time.Minute) // it works on
					q.Leave()
				}()
				begun := time.Now()
				err := q.Enter(t.Context(), nil)
				took := time.Since(begun)
				time.Sleep(2 * time.Hour) // the other call ends
				if !errors.Is(err, tc.want) || err != nil && took != MaxParkedWait || q.Waiting() != 0 {
					t.Errorf("got %v after %v, and %d wait", err, took, q.Waiting())
				}
			})
		})
	}
}
