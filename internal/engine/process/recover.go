//go:build linux

package process

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
)

// stateVersion is the version of engine.GuestState.Data: the mark of the family.
const stateVersion = 1

// living holds the guests of this process, of all engines, by home directory.
var living = struct {
	sync.Mutex
	guests map[string]*guest
}{guests: make(map[string]*guest)}

// handle is a guest as held by one Engine, until it is detached.
type handle struct {
	*guest
	release  func()        // removes it from the engine's set
	detached chan struct{} // closed by Detach
}

var _ engine.Guest = (*handle)(nil)

// adopt makes a new handle the holder of the guest, unless it has one.
func (g *guest) adopt(release func()) (*handle, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agentEnded() {
		return nil, engine.ErrGone
	}
	if g.holder != nil {
		return nil, fmt.Errorf("another engine holds it: %w", engine.ErrUnavailable)
	}
	g.holder = &handle{guest: g, release: release, detached: make(chan struct{})}
	return g.holder, nil
}

// lives reports whether a guest with the home lives, in any engine.
func lives(home string) bool {
	living.Lock()
	defer living.Unlock()
	return living.guests[home] != nil
}

// gone returns ErrGone after Detach.
func (h *handle) gone() error {
	select {
	case <-h.detached:
		return fmt.Errorf("detached: %w", engine.ErrGone)
	default:
		return nil
	}
}

// Dial opens the stream to the agent. See engine.Guest.
func (h *handle) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	err := h.gone()
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", h.id, err)
	}
	conn, err := h.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", h.id, err)
	}
	return conn, nil
}

// Wait blocks until the guest has ended. See engine.Guest.
func (h *handle) Wait(ctx context.Context) (engine.Exit, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-h.detached:
			cancel(h.gone())
		case <-waiting.Done():
		}
	}()
	exit, err := h.end.Wait(waiting)
	if err != nil {
		return exit, fmt.Errorf("wait for guest %q: %w", h.id, err)
	}
	return exit, nil
}

// Destroy ends the guest. See engine.Guest.
func (h *handle) Destroy(ctx context.Context) error {
	err := h.gone()
	if err == nil {
		err = h.destroy(ctx)
	}
	if err != nil {
		return fmt.Errorf("destroy guest %q: %w", h.id, err)
	}
	return nil
}

// List returns the states of the guests below the engine's directory. See
// engine.Recoverer.
func (e *Engine) List(context.Context) ([]engine.GuestState, error) {
	living.Lock()
	defer living.Unlock()
	var states []engine.GuestState
	for home, g := range living.guests {
		if filepath.Dir(home) == e.dir {
			states = append(states, g.state())
		}
	}
	slices.SortFunc(states, func(a, b engine.GuestState) int { return strings.Compare(a.ID, b.ID) })
	return states, nil
}

func (g *guest) state() engine.GuestState {
	return engine.GuestState{ID: g.id, Version: stateVersion, Data: []byte(g.family)}
}

// State returns the state of a guest. See engine.Recoverer.
func (e *Engine) State(_ context.Context, id string) (engine.GuestState, error) {
	return e.set.State(id, (*handle).state)
}

// Detach releases a guest without ending it. See engine.Recoverer.
func (e *Engine) Detach(_ context.Context, id string) error {
	return e.set.Detach(id, (*handle).detach)
}

func (h *handle) detach() error {
	h.mu.Lock()
	ours := h.holder == h && !h.agentEnded()
	if ours {
		h.holder = nil
	}
	h.mu.Unlock()
	if !ours {
		return engine.ErrGone
	}
	close(h.detached)
	h.release()
	// A new connection supersedes the current one, whose reads and writes fail.
	if conn, err := h.stream.Dial(); err == nil {
		conn.Close()
	}
	return nil
}

// Recover adopts a guest that another Engine of this process has detached. See
// engine.Recoverer.
func (e *Engine) Recover(ctx context.Context, state engine.GuestState) (engine.Guest, error) {
	err := engine.CheckID(state.ID)
	if err == nil && state.Version != stateVersion {
		err = fmt.Errorf("state has version %d, want %d: %w", state.Version, stateVersion, engine.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("recover guest %q: %w", state.ID, err)
	}
	h, err := e.set.Create(ctx, state.ID, func(_ context.Context, release func()) (*handle, error) {
		living.Lock()
		g := living.guests[e.Home(state.ID)]
		living.Unlock()
		if g == nil || string(g.family) != string(state.Data) {
			return nil, engine.ErrGone
		}
		return g.adopt(release)
	})
	if err != nil {
		return nil, fmt.Errorf("recover guest %q: %w", state.ID, err)
	}
	return h, nil
}
