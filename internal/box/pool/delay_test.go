package pool

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// TestReady_GivesUpWhileFillContinues checks the backoff between failed attempts, after
// which of them Ready gives up, and that the pool itself continues.
func TestReady_GivesUpWhileFillContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var at []time.Duration // of the attempts
		var log lines
		p := New(Config{
			Size: 3,
			Make: func(context.Context, Class) (*machine.Machine, error) {
				at = append(at, time.Since(begun))
				return nil, errors.New("python does not start")
			},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		p.Start([]Class{small})
		err := p.Ready(t.Context())
		if err == nil || !strings.Contains(err.Error(), "fill the pool of python/small: 5 attempts failed: python does not start") {
			t.Errorf("Ready: got %v", err)
		}
		if got, want := time.Since(begun), 15*time.Second; got != want {
			t.Errorf("Ready took %v, want %v", got, want)
		}
		time.Sleep(4 * time.Minute)
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		var want []time.Duration
		for _, s := range []int{0, 1, 3, 7, 15, 31, 63, 123, 183, 243} {
			want = append(want, time.Duration(s)*time.Second)
		}
		if !slices.Equal(at, want) {
			t.Errorf("times of the attempts: got %v, want %v", at, want)
		}
		if got := log.with("WARN"); len(got) != 1 || !strings.Contains(got[0], "retry=1s") {
			t.Errorf("warnings: got %q, want one", got)
		}
	})
}

// TestFill_BackoffResets checks that old failures do not count.
func TestFill_BackoffResets(t *testing.T) {
	c := &clock{now: time.Now()}
	p := New(Config{Size: 1, Now: c.Now})
	s := &class{id: small}
	for _, step := range []struct{ pass, want time.Duration }{
		{0, time.Second},
		{500 * time.Millisecond, 500 * time.Millisecond}, // it waits already
		{600 * time.Millisecond, 2 * time.Second},
		{calm, 4 * time.Second},
		{calm + time.Second, time.Second},
	} {
		c.pass(p, step.pass)
		p.mu.Lock()
		p.failLocked(s, errors.New("broken"))
		p.mu.Unlock()
		if got := s.retry.Sub(c.Now()); got != step.want {
			t.Errorf("%v after the failure before: tried again in %v, want %v", step.pass, got, step.want)
		}
	}
}

// TestFill_ReplacementWaitsBriefly checks that the replacement of an expired instance
// waits for room for yieldTimeout, and a missing instance without limit.
func TestFill_ReplacementWaitsBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Size: 1, Yield: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		begun := time.Now()
		err := p.yield(true)
		if got := time.Since(begun); got != yieldTimeout || err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("yield for a successor: got %v after %v, want an error after %v", err, got, yieldTimeout)
		}
		done := make(chan error)
		go func() { done <- p.yield(false) }()
		time.Sleep(time.Hour)
		select {
		case err := <-done:
			t.Errorf("yield for one that is missing: got %v, want it to wait", err)
		default:
		}
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-done; !errors.Is(err, errClosed) {
			t.Errorf("yield when the pool is closed: got %v", err)
		}
	})
}
