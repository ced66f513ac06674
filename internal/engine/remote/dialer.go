package remote

import (
	"context"
	"fmt"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
)

// Dialer keeps the one stream that a guest has. Create one with NewDialer. All methods may
// be called concurrently.
type Dialer struct {
	lost     func() error
	dialling chan struct{} // holds an element while a Dial is in progress

	mu      sync.Mutex
	current *Stream // guarded by mu; nil: none
}

// NewDialer returns the dialer of a guest. lost returns an error once the guest has ended
// or was detached.
func NewDialer(lost func() error) *Dialer {
	return &Dialer{lost: lost, dialling: make(chan struct{}, 1)}
}

// Dial ends the current stream and opens another with open. The context of open ends with
// ctx and when one of ends is closed. Errors: the cause of ctx, the error of lost, or that
// of open.
func (d *Dialer) Dial(ctx context.Context, ends []<-chan struct{}, open func(ctx context.Context) (*Stream, error)) (*Stream, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	select {
	case d.dialling <- struct{}{}:
		defer func() { <-d.dialling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := d.lost(); err != nil {
		return nil, err
	}
	d.HangUp()
	opening, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, end := range ends {
		go func() {
			select {
			case <-end:
				cancel(engine.ErrGone)
			case <-opening.Done():
			}
		}()
	}
	s, err := open(opening)
	if err != nil {
		if lost := d.lost(); lost != nil {
			return nil, lost
		}
		if cause := context.Cause(opening); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	d.mu.Lock()
	d.current = s
	d.mu.Unlock()
	if err := d.lost(); err != nil {
		d.HangUp()
		return nil, err
	}
	return s, nil
}

// HangUp ends the current stream.
func (d *Dialer) HangUp() {
	d.mu.Lock()
	s := d.current
	d.current = nil
	d.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// Wait waits for the end of the guest with the id. Its errors are the cause of ctx, and that
// of lost if the guest is detached first.
func Wait(ctx context.Context, id string, end *guests.End, detached <-chan struct{}, lost func() error) (engine.Exit, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-detached:
			cancel(lost())
		case <-waiting.Done():
		}
	}()
	exit, err := end.Wait(waiting)
	if err != nil {
		return exit, fmt.Errorf("wait for guest %q: %w", id, err)
	}
	return exit, nil
}
