package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// A warm Pod runs an agent that nobody has connected to. It has the label warmLabel and no
// holder: whichever engine of the namespace needs a Pod of its spec takes it. The claim is
// one patch at the version of the Pod that was checked, so that the cluster refuses all but
// the first. It removes the label, and nothing puts it back.
const (
	warmLabel = "glovebox.dev/warm"
	warmValue = "true"
	// specLabel has the hash of what the Pod shall be.
	specLabel = "glovebox.dev/spec"
	// makerLabel has the holder's name of the engine that has made the Pod.
	makerLabel = "glovebox.dev/maker"

	warmSelector = selector + "," + warmLabel + "=" + warmValue

	// maxWarmKnown bounds the warm Pods that an engine knows, and may claim.
	maxWarmKnown = 200
	// claimAttempts bounds the races for warm Pods that one Create loses. Then it makes a
	// Pod: losing this often means that the warm ones are used up.
	claimAttempts = 5
)

// warmName is the name of a warm Pod, which it keeps once it is claimed.
var warmName = lazyregexp.New(`^warm-[0-9a-f]{32}$`)

func isWarm(p *kubeapi.Pod) bool { return p.Metadata.Labels[warmLabel] == warmValue }

// warmable reports whether Pods of a spec are interchangeable: their commands have no id, and
// claims of volumes are checked for each box.
func warmable(s *engine.Spec) bool { return s != nil && s.Hostname != "" && len(s.Mounts) == 0 }

// hash identifies what a Pod shall be, and the version of the program.
func (e *Engine) hash(s *kubeapi.PodSpec) string {
	b, err := json.Marshal(struct {
		Program string
		Spec    *kubeapi.PodSpec
	}{e.program, s})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// warmPods are the warm Pods of the namespace as the watch reports them, and the specs that
// the engine keeps warm. An entry may be out of date: then the claim fails.
type warmPods struct {
	mu    sync.Mutex
	known map[string]*kubeapi.Pod // guarded by mu; by UID
	unfit map[string]string       // guarded by mu; versions of Pods that are not what their labels say, by UID
	kept  []*keptWarm             // guarded by mu
}

// see records the state of a Pod.
func (w *warmPods) see(p *kubeapi.Pod, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seeLocked(p, deleted)
}

func (w *warmPods) seeLocked(p *kubeapi.Pod, deleted bool) {
	uid := p.Metadata.UID
	if deleted || !isWarm(p) || p.Metadata.DeletionTimestamp != nil {
		delete(w.known, uid)
		delete(w.unfit, uid)
		return
	}
	if w.known == nil {
		w.known, w.unfit = make(map[string]*kubeapi.Pod), make(map[string]string)
	}
	if len(w.known) < maxWarmKnown || w.known[uid] != nil {
		w.known[uid] = p
	}
}

// replace records all warm Pods that there are.
func (w *warmPods) replace(pods []*kubeapi.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.known)
	for _, p := range pods {
		w.seeLocked(p, false)
	}
	for uid := range w.unfit {
		if w.known[uid] == nil {
			delete(w.unfit, uid)
		}
	}
}

// take removes and returns a Pod that is ready and what want says; nil: there is none.
// Engines that choose at random rarely race for the same one. unfit describes Pods with the
// hash that are something else, each of their versions once.
func (w *warmPods) take(hash string, want *kubeapi.PodSpec) (taken *kubeapi.Pod, unfit []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var candidates []*kubeapi.Pod
	for _, p := range w.known {
		if p.Metadata.Labels[specLabel] == hash && isReady(p) && w.unfit[p.Metadata.UID] != p.Metadata.ResourceVersion {
			candidates = append(candidates, p)
		}
	}
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	for _, p := range candidates {
		if err := checkPod(want, p); err != nil {
			w.unfit[p.Metadata.UID] = p.Metadata.ResourceVersion
			unfit = append(unfit, detail(p.Metadata.Name)+": "+err.Error())
			continue
		}
		delete(w.known, p.Metadata.UID)
		return p, unfit
	}
	return nil, unfit
}

// keeps reports whether the engine keeps Pods with the hash warm.
func (w *warmPods) keeps(hash string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.kept, func(k *keptWarm) bool { return k.hash == hash })
}

// claimed makes the engine check whether a Pod with the hash is missing, if it keeps such Pods
// warm.
func (w *warmPods) claimed(hash string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.kept {
		if k.hash == hash {
			select {
			case k.wake <- struct{}{}:
			default: // it looks soon
			}
		}
	}
}

// claim makes a warm Pod that of the guest with the id, and returns it; nil if there is
// none, or others were faster. want is the Pod that the guest gets otherwise.
func (e *Engine) claim(ctx context.Context, id string, want *kubeapi.Pod) *kubeapi.Pod {
	hash := e.hash(&want.Spec)
	for range claimAttempts {
		if ctx.Err() != nil {
			return nil
		}
		p, unfit := e.warm.take(hash, &want.Spec)
		for _, why := range unfit {
			e.log.Warn("a Pod has the labels of a warm one and is something else; it is not used", logkey.Detail, why)
		}
		if p == nil {
			return nil
		}
		claimed, err := e.patchClaim(ctx, id, p)
		switch code := kubeapi.Code(err); {
		case err == nil:
			e.warm.claimed(hash)
			return claimed
		case code == http.StatusNotFound || code == http.StatusConflict: // another one was faster, or its state has changed
		case code == 0 || code >= http.StatusInternalServerError:
			e.deleteUncertain(id, p)
			return nil
		default:
			e.log.Warn("cannot take a warm Pod; making one", logkey.Guest, id, logkey.Error, err)
			return nil
		}
	}
	return nil
}

// patchClaim makes the engine the holder of a warm Pod, and the Pod the guest with the id,
// unless the Pod has changed. It does not end with the caller's context: whether the Pod is
// claimed would be unknown then.
func (e *Engine) patchClaim(ctx context.Context, id string, p *kubeapi.Pod) (*kubeapi.Pod, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createWait)
	defer cancel()
	return e.api.PatchPod(ctx, e.namespace, p.Metadata.Name, map[string]any{
		"metadata": map[string]any{
			"uid": p.Metadata.UID, "resourceVersion": p.Metadata.ResourceVersion,
			"labels":      map[string]any{warmLabel: nil, holderLabel: e.holder.name},
			"annotations": map[string]any{idAnnotation: id},
		},
	})
}

// deleteUncertain deletes a warm Pod whose claim may or may not have succeeded, so that it
// neither stays claimed without a use nor is claimed later still. The Lease of this engine
// bounds the life of a Pod whose removal fails.
func (e *Engine) deleteUncertain(id string, p *kubeapi.Pod) {
	ctx, cancel := context.WithTimeout(context.Background(), createWait)
	defer cancel()
	for range claimAttempts {
		err := e.api.DeletePodAt(ctx, e.namespace, p, graceSeconds)
		if err == nil || kubeapi.Code(err) == http.StatusNotFound {
			return
		}
		found, err := e.api.GetPod(ctx, e.namespace, p.Metadata.Name)
		switch ours := err == nil && found.Metadata.Labels[holderLabel] == e.holder.name && found.Metadata.Annotations[idAnnotation] == id; {
		case kubeapi.Code(err) == http.StatusNotFound, err == nil && found.Metadata.UID != p.Metadata.UID:
			return
		case err == nil && !isWarm(found) && !ours: // another one's
			return
		case err == nil:
			p = found
		}
	}
	e.log.Warn("a Pod may be left behind until its holder's Lease ends", logkey.Guest, id)
}
