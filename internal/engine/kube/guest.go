package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/remote"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// goneCheck is the interval of checks whether a Pod is gone, in case the watch does
	// not tell.
	goneCheck = 2 * time.Second
	// maxBackoff bounds the time between two attempts at a request.
	maxBackoff = 10 * time.Second
	// closeWait bounds the wait for Pods when the engine is closed or a creation has
	// failed.
	closeWait = time.Minute
	// attemptTimeout bounds one attempt at a further connection to a Pod.
	attemptTimeout = 15 * time.Second
)

// guest is a Pod as held by one Engine, until it is gone or detached.
type guest struct {
	e       *Engine
	id      string
	name    string // of the Pod
	uid     string // of the Pod
	helper  string // path of the helper in the container
	release func() // frees the id; may be repeated

	end *guests.End
	// These channels are closed with mu held.
	detached    chan struct{} // closed by Detach
	ready       chan struct{} // closed when the Pod runs, or has failed or ended
	over        chan struct{} // closed when the Pod's end has been seen
	gone        chan struct{} // closed when the cluster no longer has the Pod
	terminating chan struct{} // closed when the Pod shall end

	dialer *remote.Dialer

	mu      sync.Mutex
	running bool        // guarded by mu
	failed  error       // guarded by mu; why it does not start
	exit    engine.Exit // guarded by mu; valid once over is closed
}

var _ engine.Guest = (*guest)(nil)

// adopt makes a guest of a Pod, which the watch tells about from now on.
func (e *Engine) adopt(id string, pod *kubeapi.Pod, release func()) *guest {
	_, helper, _ := parsePod(pod)
	g := &guest{
		e: e, id: id, helper: helper, name: pod.Metadata.Name, uid: pod.Metadata.UID, release: release,
		end: guests.NewEnd(), detached: make(chan struct{}), ready: make(chan struct{}), over: make(chan struct{}),
		gone: make(chan struct{}), terminating: make(chan struct{}),
	}
	g.dialer = remote.NewDialer(g.lost)
	e.mu.Lock()
	e.byID[g.uid] = g
	early := e.early[g.name]
	e.mu.Unlock()
	g.update(pod)
	if early.Pod != nil && early.Pod.Metadata.UID == g.uid {
		g.told(early)
	}
	e.workers.Go(g.run)
	return g
}

// forget ends what the watch tells.
func (g *guest) forget() {
	g.e.mu.Lock()
	delete(g.e.byID, g.uid)
	g.e.mu.Unlock()
}

// update records the state of the Pod. States may come late and repeatedly.
func (g *guest) update(pod *kubeapi.Pod) {
	if g.record(pod) {
		g.e.log.Info("a Pod has ended", logkey.Guest, g.id, logkey.Detail, endedAs(pod))
	}
}

// told records an event of the Pod.
func (g *guest) told(ev kubeapi.Event) {
	g.update(ev.Pod)
	if ev.Deleted {
		g.markGone()
	}
}

// record records the state of the Pod. It reports whether the Pod has ended by itself, once.
func (g *guest) record(pod *kubeapi.Pod) (ended bool) {
	exit, over := exitOf(pod)
	failed := failureOf(pod)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case over:
		ended = !guests.Closed(g.over) && !guests.Closed(g.terminating)
		g.overLocked(exit)
	case isRunning(pod):
		g.running = true
		closeOnce(g.ready)
	case failed != nil && !g.running:
		g.failed = failed
		closeOnce(g.ready)
	}
	return ended
}

// markGone records that the cluster no longer has the Pod.
func (g *guest) markGone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.overLocked(engine.Exit{Reason: engine.ExitDestroyed, Detail: "the Pod was deleted"})
	closeOnce(g.gone)
}

// closeOnce closes c unless it is closed. Callers hold the lock that guards it.
func closeOnce(c chan struct{}) {
	if !guests.Closed(c) {
		close(c)
	}
}

func (g *guest) overLocked(exit engine.Exit) {
	if guests.Closed(g.over) {
		return
	}
	g.exit = exit
	if guests.Closed(g.terminating) {
		g.exit = engine.Exit{Reason: engine.ExitDestroyed}
	}
	close(g.over)
	closeOnce(g.ready)
}

// failure returns why the Pod has not started, once it is ready.
func (g *guest) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.running && !guests.Closed(g.over):
		return nil
	case g.failed != nil:
		return g.failed
	case guests.Closed(g.over):
		return fmt.Errorf("the Pod has ended at its start: %s %s (exit code %d): %w", g.exit.Reason, g.exit.Detail, g.exit.Code, engine.ErrUnavailable)
	}
	return nil
}

// terminate makes the Pod end.
func (g *guest) terminate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	closeOnce(g.terminating)
}

// abandon makes the Pod of a failed creation end, and waits for closeWait at most until it
// is gone. After that, run goes on with the removal.
func (g *guest) abandon() {
	g.terminate()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if _, err := g.end.Wait(ctx); err != nil {
		g.e.log.Warn("the Pod of a failed creation does not end", logkey.Guest, g.id, logkey.Error, err)
	}
}

// run ends the guest: when its Pod shall end or has ended, it removes the Pod and
// publishes why.
func (g *guest) run() {
	defer g.forget()
	select {
	case <-g.over:
	case <-g.terminating:
		g.dialer.HangUp()
	case <-g.detached:
		return
	}
	g.remove()
	g.mu.Lock()
	exit := g.exit
	g.mu.Unlock()
	g.release()
	g.end.Reach(exit)
	// The stream ends last: callers whose calls fail ask at once why the guest ended.
	g.dialer.HangUp()
}

// remove deletes the Pod and returns when it is gone, with what its node held for it. A
// cluster that does not answer cannot hold up the end of the engine for ever: after
// closeWait the Pod is left to its holder's Lease.
func (g *guest) remove() {
	wait := 100 * time.Millisecond
	var tooLong <-chan time.Time
	closing := g.e.set.Closing()
	for deleted := false; ; {
		if !deleted {
			switch err := g.delete(context.Background()); {
			case errors.Is(err, engine.ErrGone): // or it is another engine's
				g.markGone()
			case err == nil:
				deleted, wait = true, goneCheck
			default:
				g.e.log.Warn("cannot delete a Pod; trying again", logkey.Guest, g.id, logkey.Retry, wait, logkey.Error, err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-g.gone:
			timer.Stop()
			return
		case <-closing:
			timer.Stop()
			closing, tooLong = nil, time.After(closeWait)
			continue
		case <-tooLong:
			timer.Stop()
			g.e.log.Warn("a Pod is left behind until its holder's Lease ends", logkey.Guest, g.id)
			g.markGone()
			return
		case <-timer.C:
		}
		if deleted {
			_ = g.confirm(context.Background()) // asked again if the cluster does not answer
		}
		wait = min(2*wait, maxBackoff)
	}
}

// deleteAttempts bounds the attempts at deleting a Pod whose status changes meanwhile.
const deleteAttempts = 5

// delete has the cluster end the Pod, unless another engine has recovered it: such an engine
// took this one for gone, and the Pod is its own. The error is ErrGone if there is nothing to
// delete.
func (g *guest) delete(ctx context.Context) error {
	if g.e.Fleet() == nil { // no other server takes it over
		err := g.e.api.DeletePod(ctx, g.e.namespace, g.name, g.uid, graceSeconds)
		if code := kubeapi.Code(err); code == http.StatusNotFound || code == http.StatusConflict {
			return engine.ErrGone // another Pod has its name
		}
		return err
	}
	for attempt := 1; ; attempt++ {
		pod, err := g.e.api.GetPod(ctx, g.e.namespace, g.name)
		switch {
		case kubeapi.Code(err) == http.StatusNotFound, err == nil && pod.Metadata.UID != g.uid:
			return engine.ErrGone
		case err != nil:
			return err
		case pod.Metadata.Labels[holderLabel] != g.e.holder.name:
			g.e.log.Info("another server has taken over a Pod of this one", logkey.Guest, g.id)
			return engine.ErrGone
		}
		err = g.e.api.DeletePodAt(ctx, g.e.namespace, pod, graceSeconds)
		switch code := kubeapi.Code(err); {
		case code == http.StatusNotFound:
			return engine.ErrGone
		case code != http.StatusConflict || attempt == deleteAttempts:
			return err
		}
	}
}

// confirm returns an error unless the cluster still has the Pod: ErrGone if it has none of
// that name, or another one, and otherwise that of the cluster.
func (g *guest) confirm(ctx context.Context) error {
	pod, err := g.e.api.GetPod(ctx, g.e.namespace, g.name)
	if kubeapi.Code(err) == http.StatusNotFound || err == nil && pod.Metadata.UID != g.uid {
		g.markGone()
		return engine.ErrGone
	}
	return err
}

// ID returns the id passed to Create.
func (g *guest) ID() string { return g.id }

// lost returns ErrGone if the guest has ended or was detached.
func (g *guest) lost() error {
	switch {
	case guests.Closed(g.detached):
		return fmt.Errorf("detached: %w", engine.ErrGone)
	case guests.Closed(g.over), guests.Closed(g.terminating):
		return engine.ErrGone
	}
	return nil
}

// Dial opens the stream to the agent. See engine.Guest.
func (g *guest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	s, err := g.dialer.Dial(ctx, []<-chan struct{}{g.over, g.terminating, g.detached}, func(ctx context.Context) (*remote.Stream, error) {
		s, err := remote.Open(ctx, g.route())
		return s, unavailable(err)
	})
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, err)
	}
	return s, nil
}

// route leads to the helper in the Pod.
func (g *guest) route() remote.Route {
	return remote.Route{Connect: g.connect, Lost: g.lost, AttemptTimeout: attemptTimeout, Log: g.e.log.With(logkey.Guest, g.id)}
}

// connect runs the helper in the Pod. The cluster runs commands by the name of a Pod, so
// that another Pod of that name may have got the command: it learns nothing of the session.
func (g *guest) connect(ctx context.Context, _ bool) (io.ReadWriteCloser, error) {
	command, err := g.e.api.Exec(ctx, g.e.namespace, g.name, containerName, g.helper, "link")
	if err != nil {
		return nil, err
	}
	// A UID never comes back: if the Pod is there now, it was when the command started.
	if err := g.confirm(ctx); err != nil {
		command.Close()
		return nil, err
	}
	return command, nil
}

// unavailable adds ErrUnavailable to errors of the cluster and of the connection to it.
func unavailable(err error) error {
	var cert *tls.CertificateVerificationError
	if kubeapi.Code(err) != 0 || errors.As(err, &cert) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", err, engine.ErrUnavailable)
	}
	return err
}

// Wait blocks until the guest has ended. See engine.Guest.
func (g *guest) Wait(ctx context.Context) (engine.Exit, error) {
	return remote.Wait(ctx, g.id, g.end, g.detached, g.lost)
}

// Destroy ends the guest. See engine.Guest.
func (g *guest) Destroy(ctx context.Context) error {
	if guests.Closed(g.detached) {
		return fmt.Errorf("destroy guest %q: detached: %w", g.id, engine.ErrGone)
	}
	g.terminate()
	_, err := g.end.Wait(ctx)
	if err != nil {
		return fmt.Errorf("destroy guest %q: %w", g.id, err)
	}
	return nil
}
