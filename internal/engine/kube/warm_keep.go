package kube

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// MaxWarm bounds Config.Warm.
const MaxWarm = 50

const (
	// maxWarmPods is the number of warm Pods of all specs in the namespace at which no
	// engine makes another.
	maxWarmPods = 100
	// maxKept bounds the specs that one engine keeps warm.
	maxKept = 8
	// keepEvery is the interval of refills without an event: another engine may have ended.
	keepEvery = 30 * time.Second
	// keepJitter bounds the time by which engines that have the same reason to look are
	// apart.
	keepJitter = 300 * time.Millisecond
	// minKeepDelay and maxKeepDelay bound the backoff after a failure, which doubles.
	minKeepDelay, maxKeepDelay = time.Second, time.Minute
	// notReadyAfter is how long a warm Pod may take to become ready: a node pulls a large
	// image in minutes.
	notReadyAfter = 5 * time.Minute
	// removeWarmWait bounds the removal of this engine's warm Pods when it is closed.
	removeWarmWait = 10 * time.Second
)

// keptWarm is a spec that an engine keeps warm.
type keptWarm struct {
	spec kubeapi.PodSpec
	hash string
	wake chan struct{} // holds an element if there is a reason to look; capacity 1
	// seen is when the engine first saw each Pod: clocks of different machines are not
	// compared. Only the goroutine that keeps the spec warm uses it.
	seen map[string]time.Time
}

// KeepWarm keeps Config.Warm Pods of a spec ready until the engine is closed, together with
// all engines of the namespace that keep it warm: each makes one at a time and counts them
// before, so that n engines exceed the number by n-1 at most. It returns at once and does
// nothing if Config.Warm is 0. The spec has a host name and no mounts. Do not call it while
// or after the engine is closed.
func (e *Engine) KeepWarm(ctx context.Context, spec *engine.Spec) error {
	if e.target == 0 {
		return nil
	}
	if !warmable(spec) {
		return fmt.Errorf("keep Pods warm: the spec has no host name, or it has mounts: %w", engine.ErrInvalid)
	}
	pod, err := e.pod(ctx, "warm", spec)
	if err != nil {
		return fmt.Errorf("keep Pods warm: %w", err)
	}
	k := &keptWarm{spec: pod.Spec, hash: e.hash(&pod.Spec), wake: make(chan struct{}, 1)}
	if e.warm.keeps(k.hash) {
		return nil
	}
	e.warm.mu.Lock()
	full := len(e.warm.kept) >= maxKept
	if !full {
		e.warm.kept = append(e.warm.kept, k)
	}
	e.warm.mu.Unlock()
	if full {
		return fmt.Errorf("keep Pods warm: more than %d specs: %w", maxKept, engine.ErrInvalid)
	}
	e.workers.Go(func() { e.keep(e.running, k) })
	return nil
}

// jittered returns a time between d/2 and d.
func jittered(d time.Duration) time.Duration { return d/2 + mathrand.N(d/2+1) }

// keep makes warm Pods that are missing, until ctx ends.
func (e *Engine) keep(ctx context.Context, k *keptWarm) {
	delay := time.Duration(0)
	for ctx.Err() == nil {
		pause(ctx, mathrand.N(keepJitter))
		short, err := e.refill(ctx, k, time.Now())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			level := slog.LevelDebug // the first of a row says enough
			if delay == 0 {
				level = slog.LevelWarn
			}
			delay = min(max(2*delay, minKeepDelay), maxKeepDelay)
			e.log.Log(ctx, level, "cannot keep Pods warm; boxes start without them", logkey.Retry, delay, logkey.Error, err)
			pause(ctx, jittered(delay))
		case !short:
			delay = 0
			timer := time.NewTimer(jittered(keepEvery))
			select {
			case <-k.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}
}

// refill counts the warm Pods, removes those that have failed, and makes one if too few are
// left. short says that it should be called again at once.
func (e *Engine) refill(ctx context.Context, k *keptWarm, now time.Time) (short bool, err error) {
	living, total := 0, 0
	var failed []*kubeapi.Pod
	seen := make(map[string]time.Time)
	if _, err := e.api.ListPods(ctx, e.namespace, warmSelector, func(p *kubeapi.Pod) {
		if p.Metadata.DeletionTimestamp != nil {
			return
		}
		total++
		if p.Metadata.Labels[specLabel] != k.hash {
			return
		}
		since, known := k.seen[p.Metadata.UID]
		if !known {
			since = now
		}
		seen[p.Metadata.UID] = since
		_, over := exitOf(p)
		usable := isReady(p) && checkPod(&k.spec, p) == nil
		if over || !usable && now.Sub(since) >= notReadyAfter {
			p.WholeSpec = nil
			failed = append(failed, p)
		} else {
			living++
		}
	}); err != nil {
		return false, err
	}
	k.seen = seen
	if len(failed) > 0 {
		return false, e.removeFailed(ctx, failed)
	}
	if living >= e.target || total >= maxWarmPods {
		return false, nil
	}
	if err := e.makeWarm(ctx, k); err != nil {
		return false, err
	}
	return living+1 < e.target, nil
}

// removeFailed removes warm Pods that cannot be used, and returns why one of them cannot.
// Another engine may remove or claim them at the same time.
func (e *Engine) removeFailed(ctx context.Context, pods []*kubeapi.Pod) error {
	for _, p := range pods {
		err := e.api.DeletePodAt(ctx, e.namespace, p, graceSeconds)
		if code := kubeapi.Code(err); err != nil && code != http.StatusNotFound && code != http.StatusConflict {
			return err
		}
	}
	why := failureOf(pods[0])
	if exit, over := exitOf(pods[0]); over {
		why = fmt.Errorf("it has ended: %s %s", exit.Reason, exit.Detail)
	}
	if why == nil {
		why = fmt.Errorf("it is not ready after %v, or not what was asked for", notReadyAfter)
	}
	return fmt.Errorf("removed warm Pod %s (%d in all): %w", detail(pods[0].Metadata.Name), len(pods), why)
}

// makeWarm makes a warm Pod. It does not wait until the Pod runs.
func (e *Engine) makeWarm(ctx context.Context, k *keptWarm) error {
	nonce := make([]byte, 16)
	rand.Read(nonce) // never fails
	text := hex.EncodeToString(nonce)
	pod := &kubeapi.Pod{
		Metadata: kubeapi.Meta{
			Name: "warm-" + text,
			Labels: map[string]string{
				managedLabel: managedBy, roleLabel: roleBox, warmLabel: warmValue, specLabel: k.hash, makerLabel: e.holder.name,
			},
			Annotations: map[string]string{nonceAnnotation: text},
		},
		Spec: k.spec,
	}
	creating, cancel := context.WithTimeout(context.WithoutCancel(ctx), createWait)
	defer cancel()
	stored, err := e.api.CreatePod(creating, e.namespace, pod)
	if err != nil {
		if kubeapi.Code(err) == 0 {
			e.removeUnknown(pod)
		}
		return err
	}
	if err := checkPod(&k.spec, stored); err != nil {
		// Such as an admission webhook that adds a container: nothing would ever be claimed.
		if rerr := e.api.DeletePodAt(creating, e.namespace, stored, graceSeconds); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return fmt.Errorf("the cluster changes the Pods of boxes, so that warm ones cannot be used: %w; exempt the namespace %s from what changes them, or set kube-warm to 0", err, e.namespace)
	}
	return nil
}

// removeOwnWarm removes the warm Pods that this engine has made and nobody has claimed.
// Engines that keep the spec warm make others.
func (e *Engine) removeOwnWarm() {
	if e.target == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeWarmWait)
	defer cancel()
	var own []*kubeapi.Pod
	_, err := e.api.ListPods(ctx, e.namespace, warmSelector+","+makerLabel+"="+e.holder.name, func(p *kubeapi.Pod) {
		p.WholeSpec = nil
		own = append(own, p)
	})
	for _, p := range own {
		derr := e.api.DeletePodAt(ctx, e.namespace, p, graceSeconds)
		if code := kubeapi.Code(derr); derr != nil && code != http.StatusNotFound && code != http.StatusConflict { // gone, or claimed
			err = derr
		}
	}
	if err != nil {
		e.log.Warn("warm Pods are left behind until another server removes them", logkey.Error, err)
	}
}
