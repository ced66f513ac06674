package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// stateVersion is the version of engine.GuestState.Data.
const stateVersion = 1

// state is engine.GuestState.Data, as JSON.
type state struct {
	Pod string `json:"pod"`
	UID string `json:"uid"`
	// Helper is the path of the helper in the container.
	Helper string `json:"helper"`
}

func encode(id string, s state) engine.GuestState {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always marshal
	}
	return engine.GuestState{ID: id, Version: stateVersion, Data: b}
}

// List returns the states of the living Pods in the namespace. See engine.Recoverer.
func (e *Engine) List(ctx context.Context) ([]engine.GuestState, error) {
	var states []engine.GuestState
	_, err := e.api.ListPods(ctx, e.namespace, selector, func(p *kubeapi.Pod) {
		if id, helper, ok := parsePod(p); ok && isRunning(p) {
			states = append(states, encode(id, state{Pod: p.Metadata.Name, UID: p.Metadata.UID, Helper: helper}))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list guests: %w", err)
	}
	slices.SortFunc(states, func(a, b engine.GuestState) int { return strings.Compare(a.ID, b.ID) })
	return states, nil
}

// mayHave reports whether the Pod of a guest may have a name: its own, or that of a warm Pod.
func mayHave(id, name string) bool { return name == podName(id) || warmName().MatchString(name) }

// parsePod returns the id of a Pod's guest and the path of its helper, if it is a guest's
// Pod: others may create Pods with our labels.
func parsePod(p *kubeapi.Pod) (id, helper string, ok bool) {
	id = p.Metadata.Annotations[idAnnotation]
	if engine.CheckID(id) != nil || isWarm(p) || !mayHave(id, p.Metadata.Name) {
		return "", "", false
	}
	for _, c := range p.Spec.Containers {
		if c.Name == containerName && len(c.Command) > 0 {
			return id, strings.ReplaceAll(c.Command[0], "$$", "$"), true
		}
	}
	return "", "", false
}

// State returns the state of a guest. See engine.Recoverer.
func (e *Engine) State(_ context.Context, id string) (engine.GuestState, error) {
	return e.set.State(id, func(g *guest) engine.GuestState { return encode(id, state{Pod: g.name, UID: g.uid, Helper: g.helper}) })
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
	g.forget()
	g.release()
	g.dialer.HangUp()
	return nil
}

// Recover adopts a Pod, which other engines may hold as well. See engine.Recoverer.
func (e *Engine) Recover(ctx context.Context, st engine.GuestState) (engine.Guest, error) {
	return e.recover(ctx, st, "")
}

// recover is Recover; with a version, for a Pod that has not changed since.
func (e *Engine) recover(ctx context.Context, st engine.GuestState, version string) (engine.Guest, error) {
	err := engine.CheckID(st.ID)
	var s state
	if err == nil {
		s, err = decode(st)
	}
	if err != nil {
		return nil, fmt.Errorf("recover guest %q: %w", st.ID, err)
	}
	g, err := e.set.Create(ctx, st.ID, func(ctx context.Context, release func()) (*guest, error) {
		return e.take(ctx, st.ID, s, version, release)
	})
	if err != nil {
		return nil, fmt.Errorf("recover guest %q: %w", st.ID, err)
	}
	return g, nil
}

func decode(st engine.GuestState) (state, error) {
	var s state
	if st.Version != stateVersion {
		return s, fmt.Errorf("state has version %d, want %d: %w", st.Version, stateVersion, engine.ErrInvalid)
	}
	d := json.NewDecoder(bytes.NewReader(st.Data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || s.UID == "" || !mayHave(st.ID, s.Pod) {
		return s, fmt.Errorf("state is malformed, or of another guest: %w", engine.ErrInvalid)
	}
	return s, nil
}

// take makes a guest of a Pod that lives, and this engine its holder. The error wraps
// fleet.ErrChanged if the Pod has another version than the given one, unless that is "".
func (e *Engine) take(ctx context.Context, id string, s state, version string, release func()) (*guest, error) {
	pod, err := e.api.GetPod(ctx, e.namespace, s.Pod)
	if err != nil {
		if kubeapi.Code(err) == http.StatusNotFound {
			return nil, engine.ErrGone
		}
		return nil, unavailable(err)
	}
	found, helper, ok := parsePod(pod)
	if !ok || found != id || pod.Metadata.UID != s.UID || helper != s.Helper || !isRunning(pod) {
		return nil, engine.ErrGone
	}
	metadata := map[string]any{"uid": s.UID, "labels": map[string]string{holderLabel: e.holder.name}}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	stored, err := e.api.PatchPod(ctx, e.namespace, s.Pod, map[string]any{"metadata": metadata})
	switch code := kubeapi.Code(err); {
	case code == http.StatusConflict && version != "":
		return nil, fleet.ErrChanged
	case code == http.StatusNotFound || code == http.StatusConflict:
		return nil, engine.ErrGone
	case err != nil:
		return nil, unavailable(err)
	}
	return e.adopt(id, stored, release), nil
}
