//go:build linux

package microsandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
)

// stateVersion is the version of engine.GuestState.Data.
const stateVersion = 1

// state is engine.GuestState.Data, as JSON.
type state struct {
	Sandbox string `json:"sandbox"`
}

func encode(id, name string) engine.GuestState {
	b, err := json.Marshal(state{Sandbox: name})
	if err != nil {
		panic(err) // strings always marshal
	}
	return engine.GuestState{ID: id, Version: stateVersion, Data: b}
}

// decode returns the name of a guest's sandbox.
func decode(st engine.GuestState) (name string, err error) {
	if st.Version != stateVersion {
		return "", fmt.Errorf("state has version %d, want %d: %w", st.Version, stateVersion, engine.ErrInvalid)
	}
	var s state
	d := json.NewDecoder(bytes.NewReader(st.Data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || !isName(s.Sandbox) {
		return "", fmt.Errorf("state is malformed: %w", engine.ErrInvalid)
	}
	return s.Sandbox, nil
}

// List returns the states of the living guests of all engines with the state directory.
// See engine.Recoverer.
func (e *Engine) List(context.Context) ([]engine.GuestState, error) {
	list, err := e.list()
	if err != nil {
		return nil, fmt.Errorf("list guests: %w", err)
	}
	var states []engine.GuestState
	for _, s := range list {
		if had, err := holdingOf(e.dir, s.Name); err == nil && s.lives() {
			states = append(states, encode(had.id, s.Name))
		}
	}
	slices.SortFunc(states, func(a, b engine.GuestState) int { return strings.Compare(a.ID, b.ID) })
	return states, nil
}

// State returns the state of a guest. See engine.Recoverer.
func (e *Engine) State(_ context.Context, id string) (engine.GuestState, error) {
	return e.set.State(id, func(g *guest) engine.GuestState { return encode(id, g.name) })
}

// Detach releases a guest without ending it. See engine.Recoverer.
func (e *Engine) Detach(_ context.Context, id string) error {
	return e.set.Detach(id, (*guest).detach)
}

func (g *guest) detach() error {
	g.mu.Lock()
	ours := g.lost() == nil
	if ours {
		close(g.detached)
	}
	g.mu.Unlock()
	if !ours {
		return engine.ErrGone
	}
	g.dialer.HangUp()
	g.release()
	return takeHold(g.e.dir, g.name, holding{file: heldPrefix + g.e.holder.name}, "")
}

// Recover adopts a guest that is detached, or whose engine's process has ended. See
// engine.Recoverer.
func (e *Engine) Recover(ctx context.Context, st engine.GuestState) (engine.Guest, error) {
	err := engine.CheckID(st.ID)
	var name string
	if err == nil {
		name, err = decode(st)
	}
	if err != nil {
		return nil, fmt.Errorf("recover guest %q: %w", st.ID, err)
	}
	g, err := e.set.Create(ctx, st.ID, func(ctx context.Context, release func()) (*guest, error) {
		return e.take(ctx, st.ID, name, release)
	})
	if err != nil {
		return nil, fmt.Errorf("recover guest %q: %w", st.ID, err)
	}
	return g, nil
}

// take makes a guest of a sandbox that lives and that no living engine holds.
func (e *Engine) take(ctx context.Context, id, name string, release func()) (*guest, error) {
	had, err := holdingOf(e.dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errUnheld):
		return nil, engine.ErrGone
	case err != nil:
		return nil, err
	case had.id != id:
		return nil, fmt.Errorf("the state is of another guest: %w", engine.ErrInvalid)
	case had.holder != "" && had.holder != e.holder.name && !dead(e.dir, had.holder):
		return nil, fmt.Errorf("another process holds the guest: %w", engine.ErrUnavailable)
	}
	g := e.newGuest(id, name, release)
	s, err := g.status(ctx)
	switch {
	case says(err, notFound), err == nil && !s.lives():
		return nil, engine.ErrGone // a sweep removes what is left
	case err != nil:
		return nil, unavailable(err)
	}
	if err := takeHold(e.dir, name, had, e.holder.name); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("another process has just taken the guest: %w", engine.ErrUnavailable)
	} else if err != nil {
		return nil, err
	}
	e.workers.Go(g.run)
	return g, nil
}
