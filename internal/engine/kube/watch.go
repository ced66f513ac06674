package kube

import (
	"context"
	"errors"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// guestOf returns this engine's guest of a Pod; nil: none.
func (e *Engine) guestOf(p *kubeapi.Pod) *guest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byID[p.Metadata.UID]
}

// expect keeps the events of a Pod that is about to be created, for its guest, until the
// returned function is called.
func (e *Engine) expect(name string) (forget func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.early == nil {
		e.early = make(map[string]kubeapi.Event)
	}
	e.early[name] = kubeapi.Event{}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.early, name)
	}
}

// tell tells the guest of a Pod an event. If it has no guest yet but is expected, adopt does.
func (e *Engine) tell(ev kubeapi.Event) {
	e.mu.Lock()
	g := e.byID[ev.Pod.Metadata.UID]
	if _, expected := e.early[ev.Pod.Metadata.Name]; expected && g == nil {
		e.early[ev.Pod.Metadata.Name] = ev
	}
	e.mu.Unlock()
	if g != nil {
		g.told(ev)
	}
}

// list tells all guests the state of their Pods, looks for warm Pods, and returns the version
// at which the watch continues. Guests whose Pods were created meanwhile are not affected.
func (e *Engine) list(ctx context.Context) (string, error) {
	e.mu.Lock()
	before := make([]*guest, 0, len(e.byID))
	for _, g := range e.byID {
		before = append(before, g)
	}
	e.mu.Unlock()
	seen := make(map[string]bool, len(before))
	var warm []*kubeapi.Pod
	version, err := e.api.ListPods(ctx, e.namespace, selector, func(p *kubeapi.Pod) {
		if isWarm(p) && len(warm) < maxWarmKnown {
			warm = append(warm, p)
		}
		if g := e.guestOf(p); g != nil {
			seen[g.uid] = true
		}
		e.tell(kubeapi.Event{Pod: p})
	})
	if err != nil {
		return "", err
	}
	e.warm.replace(warm)
	for _, g := range before {
		if !seen[g.uid] {
			g.markGone()
		}
	}
	return version, nil
}

// minWatch is the least time between the beginnings of two watches. A watch lasts minutes; a
// cluster, or a proxy before it, that ends each at once must not get thousands a second.
const minWatch = time.Second

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// watch tells guests about their Pods until ctx ends. After a failure it lists again: an
// event may have been missed.
func (e *Engine) watch(ctx context.Context, version string) {
	wait := time.Duration(0)
	for ctx.Err() == nil {
		begun := time.Now()
		next, err := e.api.WatchPods(ctx, e.namespace, selector, version, func(ev kubeapi.Event) {
			wait = 0
			e.warm.see(ev.Pod, ev.Deleted)
			e.tell(ev)
		})
		if err == nil {
			version = next
		}
		if err == nil || errors.Is(err, kubeapi.ErrExpired) {
			pause(ctx, minWatch-time.Since(begun))
		}
		for err != nil && ctx.Err() == nil {
			if !errors.Is(err, kubeapi.ErrExpired) {
				wait = min(max(2*wait, 100*time.Millisecond), maxBackoff)
				e.log.Debug("the watch of Pods broke", logkey.Retry, wait, logkey.Error, err)
				pause(ctx, wait)
			}
			version, err = e.list(ctx)
		}
	}
}
