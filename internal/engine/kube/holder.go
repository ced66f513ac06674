package kube

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// leaseSeconds is how long a Lease counts without a renewal: an engine may miss three
	// renewals, as when the API server restarts.
	leaseSeconds = 60
	// sharedLeaseSeconds is that of a server which shares its boxes. Calls into them wait for
	// that when it was killed.
	sharedLeaseSeconds = 20

	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

// holder is an Engine as the holder of Pods, and its Lease. Pods carry its name, so that other
// engines know when their holder has gone and they must remove them.
type holder struct {
	api       *kubeapi.Client
	namespace string
	name      string
	address   netip.AddrPort // where other servers reach this one; not valid: nowhere
	log       *slog.Logger
}

func newHolder(ctx context.Context, api *kubeapi.Client, namespace string, address netip.AddrPort, log *slog.Logger) (*holder, error) {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	h := &holder{api: api, namespace: namespace, name: leasePrefix + hex.EncodeToString(b), address: address, log: log}
	err := api.CreateLease(ctx, namespace, h.lease())
	if kubeapi.Code(err) == http.StatusNotFound {
		err = fmt.Errorf("%w; create the namespace, or name another: kubectl create namespace %s: %w", err, namespace, engine.ErrUnavailable)
	}
	return h, err
}

func (h *holder) lease() *kubeapi.Lease {
	l := &kubeapi.Lease{
		Metadata: kubeapi.Meta{Name: h.name, Labels: map[string]string{managedLabel: managedBy}},
		Spec:     kubeapi.LeaseSpec{Holder: h.name, Duration: h.leaseSeconds(), Renewed: time.Now().UTC().Format(microTime)},
	}
	if h.address.IsValid() {
		l.Metadata.Annotations = map[string]string{addressAnnotation: h.address.String()}
	}
	return l
}

func (h *holder) leaseSeconds() int {
	if h.address.IsValid() {
		return sharedLeaseSeconds
	}
	return leaseSeconds
}

// renewEvery is the interval of the renewals of the Lease.
func (h *holder) renewEvery() time.Duration { return time.Duration(h.leaseSeconds()) * time.Second / 4 }

// renew renews the Lease until ctx ends, and creates it again if someone deleted it.
func (h *holder) renew(ctx context.Context) {
	tick := time.NewTicker(h.renewEvery())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := h.api.PatchLease(ctx, h.namespace, h.name, map[string]any{
			"spec": map[string]string{"renewTime": time.Now().UTC().Format(microTime)},
		})
		if kubeapi.Code(err) == http.StatusNotFound {
			err = h.api.CreateLease(ctx, h.namespace, h.lease())
		}
		if err != nil && ctx.Err() == nil {
			h.log.Warn("cannot renew the Lease of this server", logkey.Retry, h.renewEvery(), logkey.Error, err)
		}
	}
}

// close deletes the Lease.
func (h *holder) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := h.api.DeleteLease(ctx, h.namespace, h.name); err != nil {
		h.log.Debug("cannot delete the Lease of this server", logkey.Error, err)
	}
}

// watched is what a sweep knows about a holder. Clocks of different machines are not
// compared: only how long this engine has seen the Lease unchanged.
type watched struct {
	version string
	since   time.Time
}

// sweepEvery removes Pods of holders whose Lease is missing or unchanged for a time.
func (e *Engine) sweepEvery(ctx context.Context, every, after time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	holders := make(map[string]watched)
	for {
		e.sweep(ctx, holders, max(after, warmAfter), time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// warmAfter is how long the maker's Lease of a warm Pod must have been missing or unchanged:
// nothing is lost with such a Pod.
const warmAfter = 2 * time.Minute

// sweep checks the Pods once. It forgets holders without Pods. The maker of a warm Pod counts as its
// holder, unless this engine keeps such Pods itself.
func (e *Engine) sweep(ctx context.Context, holders map[string]watched, after time.Duration, now time.Time) {
	type orphan struct {
		// pod has name, UID and version only: a namespace may have many Pods, and the rest of each
		// is kilobytes.
		pod  kubeapi.Meta
		warm bool
	}
	pods := make(map[string][]orphan) // by holder
	_, err := e.api.ListPods(ctx, e.namespace, selector, func(p *kubeapi.Pod) {
		name, warm := p.Metadata.Labels[holderLabel], isWarm(p)
		if warm {
			if e.warm.keeps(p.Metadata.Labels[specLabel]) {
				return
			}
			name = p.Metadata.Labels[makerLabel]
		}
		if name != e.holder.name && e.guestOf(p) == nil {
			pods[name] = append(pods[name], orphan{kubeapi.Meta{Name: p.Metadata.Name, UID: p.Metadata.UID, ResourceVersion: p.Metadata.ResourceVersion}, warm})
		}
	})
	if err != nil {
		e.log.Debug("cannot look for Pods whose holders are gone; the next sweep tries again", logkey.Error, err)
		return
	}
	for name := range holders {
		if pods[name] == nil {
			delete(holders, name)
		}
	}
	for name, orphans := range pods {
		version := "none"
		if name != "" {
			lease, err := e.api.GetLease(ctx, e.namespace, name)
			switch {
			case err == nil:
				version = lease.Metadata.ResourceVersion
			case kubeapi.Code(err) != http.StatusNotFound:
				e.log.Debug("cannot read the Lease of a Pod's holder; the next sweep tries again", logkey.Error, err)
				continue
			}
		}
		if known, ok := holders[name]; !ok || known.version != version {
			holders[name] = watched{version, now}
			continue
		}
		for _, o := range orphans {
			unchanged := now.Sub(holders[name].since)
			if unchanged < after && !(o.warm && unchanged >= warmAfter) {
				continue
			}
			// Unless it is claimed or taken over at this moment.
			err := e.api.DeletePodAt(ctx, e.namespace, &kubeapi.Pod{Metadata: o.pod}, graceSeconds)
			switch code := kubeapi.Code(err); {
			case err == nil:
				e.log.Info("removed a Pod whose holder is gone", logkey.Guest, detail(o.pod.Name))
			case ctx.Err() != nil:
				return
			case code != http.StatusNotFound && code != http.StatusConflict: // another engine was faster
				e.log.Warn("cannot remove a Pod whose holder is gone; the next sweep tries again", logkey.Guest, detail(o.pod.Name), logkey.Error, err)
			}
		}
	}
}
